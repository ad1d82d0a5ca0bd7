"""What stands behind ``dfme.cli.main``: from words and files to configurations, one file per command beside it."""
