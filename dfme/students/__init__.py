"""How students learn."""
