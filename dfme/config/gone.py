"""Options that no longer exist, and what to write instead."""

GONE = {
    "estimator.prior": "leave it out: there is no kind prior_guided any more (docs/gradients.md)",
    "graphs": "leave it out: there are no CUDA graphs any more (docs/gpu.md has their figures)",
}
"""By dotted key."""
