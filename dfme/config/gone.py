"""Options that no longer exist, and what to write instead."""

GONE = {"graphs": "leave it out: there are no CUDA graphs any more (docs/gpu.md has their figures)"}
"""By dotted key."""
