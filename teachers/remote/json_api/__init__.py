"""Services that are described in a YAML file: any HTTP API that answers JSON."""
