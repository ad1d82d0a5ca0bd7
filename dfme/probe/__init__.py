"""The pre-flight probe: what an API's answers are like, which finite differences survive them, and what to choose."""

from dfme.probe.choice import choose, draft, explain, flags, is_open, warning
from dfme.probe.finding import Finding, Rung
from dfme.probe.own_side import difference_snr, probe_alignment
from dfme.probe.resolution import Resolution, decimals
from dfme.probe.wire import POINTS, probe, probe_images, require_budget

__all__ = [
    "POINTS",
    "Finding",
    "Resolution",
    "Rung",
    "choose",
    "decimals",
    "difference_snr",
    "draft",
    "explain",
    "flags",
    "is_open",
    "probe",
    "probe_alignment",
    "probe_images",
    "require_budget",
    "warning",
]
