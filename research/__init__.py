"""Scripts that measure the project itself; README.md says what each measures and how it is
started.
"""
