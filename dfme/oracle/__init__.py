"""The metered door to the teacher: every image is charged here before it is sent."""
