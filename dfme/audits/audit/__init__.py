"""The audit: one command, one page, a decision."""
