"""Settings of a run and how they are read: typed models, YAML files, imports by name. No torch
here.
"""
