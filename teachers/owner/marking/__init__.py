"""A mark in an owner's model that a copy learns along with the task: a secret rule, its images, and
the key that keeps them.
"""
