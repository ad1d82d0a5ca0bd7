"""The client of the Open Inference Protocol, version 2: the model's own description, requests, answers."""
