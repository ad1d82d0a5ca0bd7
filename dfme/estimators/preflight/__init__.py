"""Pre-flight check: an API's answers, which finite differences survive them, what to choose."""
