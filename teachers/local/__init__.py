"""Teachers that run in this process."""
