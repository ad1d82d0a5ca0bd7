"""Methods side by side: a run for each row, seed, budget and label mode, and what they come to
together.
"""
