"""Behind ``dfme.cli.main``: words and files become configurations; one file per command."""
