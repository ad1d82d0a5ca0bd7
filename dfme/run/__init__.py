"""One run: what it is made of, its loop, its directory, how it is resumed."""
