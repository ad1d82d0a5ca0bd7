"""Teacher answers, on both sides: how they are read, what a defence changes, what can be
recovered.
"""
