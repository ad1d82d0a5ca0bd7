"""Which images are paid for."""
