"""The Open Inference Protocol, version 2: what its client and its server both need."""
