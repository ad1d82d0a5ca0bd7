"""What computations of both sides need of PyTorch."""
