"""Training a teacher to practise on."""
