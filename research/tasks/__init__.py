"""Tasks of the size of real ones, to measure extraction on: data files that are made, never
committed.
"""
