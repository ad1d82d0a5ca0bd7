"""What a run reports while it goes on. No torch here: the loop hands over numbers and numpy arrays.

``metrics.py`` says what every logged name means and keeps ``metrics.jsonl``, ``console.py`` talks to people,
``wandb_run.py`` to Weights & Biases, and ``recorder.py`` is the one object that the loop speaks to.
"""

from __future__ import annotations

from dfme.tracking.metrics import METRICS, Metric, MetricsFile, metrics_table, read_metrics
from dfme.tracking.recorder import Recorder

__all__ = ["METRICS", "Metric", "MetricsFile", "Recorder", "metrics_table", "read_metrics"]
