"""Is this model a copy of mine? ``run.py verify``."""
