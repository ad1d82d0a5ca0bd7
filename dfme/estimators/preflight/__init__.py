"""The pre-flight probe: what an API's answers are like, which finite differences survive them, and what to choose."""

from dfme.estimators.preflight.choose import choose, default_settings, explain, flags, needs_preflight, warning
from dfme.estimators.preflight.diagnostics import difference_snr, probe_alignment
from dfme.estimators.preflight.finding import Finding, StepCandidate
from dfme.estimators.preflight.measure import POINTS, probe, probe_images, require_budget
from dfme.estimators.preflight.resolution import Resolution, decimals

__all__ = [
    "POINTS",
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
    "probe",
    "probe_alignment",
    "probe_images",
    "require_budget",
    "warning",
]
