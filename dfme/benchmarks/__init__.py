"""What is measured of the project itself: methods side by side, gradients, speed."""
