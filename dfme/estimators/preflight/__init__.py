"""Pre-flight check: an API's answers, which finite differences survive them, what to choose."""

from dfme.estimators.preflight.choose import (
    Finding,
    StepCandidate,
    choose,
    default_settings,
    explain,
    flags,
    needs_preflight,
    warning,
)
from dfme.estimators.preflight.diagnostics import Resolution, decimals, difference_snr, probe_alignment
from dfme.estimators.preflight.measure import (
    POINTS,
    Channel,
    preflight_calls,
    preflight_images,
    require_budget,
    run_preflight,
)

__all__ = [
    "POINTS",
    "Channel",
    "Finding",
    "Resolution",
    "StepCandidate",
    "choose",
    "decimals",
    "default_settings",
    "difference_snr",
    "explain",
    "flags",
    "needs_preflight",
    "preflight_calls",
    "preflight_images",
    "probe_alignment",
    "require_budget",
    "run_preflight",
    "warning",
]
