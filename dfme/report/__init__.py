"""A run's pictures and its page, drawn from the files in its directory alone. No torch here."""
