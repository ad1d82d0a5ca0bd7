"""What stands behind ``dfme.cli``: from words and files to configurations, one file per command beside it."""
