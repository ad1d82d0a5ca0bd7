"""What a run's directory says: its configuration, records, ledger, samples and, at the end, its summary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.yaml_files import load_yaml
from dfme.errors import RunError, UserError
from dfme.files import read_npz
from dfme.oracle.ledger_log import Totals, audit
from dfme.report.metrics import read_metrics
from dfme.report.summary_file import read_summary

Series = list[tuple[int, float]]

MAX_BYTES = 1 << 28
"""Bytes of the arrays of one sheet of samples, by far."""


@dataclass(frozen=True)
class Samples:
    """Queries as they were at one moment: 8-bit images (N, C, H, W), and answers (N, K) or (N,) if known."""

    queries: int
    images: NDArray[np.uint8]
    answers: NDArray[Any] | None


@dataclass(frozen=True)
class RunFiles:
    """One run, read from its directory. ``summary`` is None while the run is not finished."""

    name: str
    config_text: str
    config: dict[str, Any]
    summary: dict[str, Any] | None
    metrics: list[dict[str, float | None]]
    ledger: Totals
    samples: list[Samples]

    def series(self, metric: str) -> Series:
        """(queries, value) of every record that has a finite value of the metric, in order."""
        pairs = ((record["queries"], record.get(metric)) for record in self.metrics)
        return [(int(queries), value) for queries, value in pairs if queries is not None and value is not None]

    @property
    def teacher_accuracy(self) -> float | None:
        """Of the summary, else the latest logged; None without labelled evaluation images."""
        if self.summary is not None:
            return self.summary.get("teacher_accuracy")
        logged = self.series("teacher_accuracy")
        return logged[-1][1] if logged else None


def read_run(run_dir: Path) -> RunFiles:
    """Read a run's files. Raises ``UserError`` where there is no run and ``RunError`` for damaged files."""
    config, ledger = run_dir / "config.yaml", run_dir / "ledger.jsonl"
    if not config.is_file():
        raise UserError(f"report: expected a run directory, but {run_dir} has no config.yaml")
    return RunFiles(
        name=run_dir.resolve().name,
        config=_read_config(config),
        config_text=config.read_text(encoding="utf-8"),
        summary=read_summary(run_dir / "summary.json"),
        metrics=read_metrics(run_dir / "metrics.jsonl"),
        ledger=audit(ledger) if ledger.is_file() else Totals(),
        samples=[_read_samples(path) for path in sorted((run_dir / "samples").glob("queries-*.npz"))],
    )


def _read_config(path: Path) -> dict[str, Any]:
    config = load_yaml(path)
    for name in ("teacher", "method", "evaluation"):
        if not isinstance(config.get(name) or {}, dict):
            raise RunError(f"{path}: expected the config.yaml of a run, but its {name} is {str(config[name])[:80]!r}")
    return config


def _read_samples(path: Path) -> Samples:
    try:
        arrays = read_npz(path, MAX_BYTES)
        images, answers = arrays["images"], arrays.get("answers")
        if images.ndim != 4 or not images.size or images.dtype != np.uint8:
            raise ValueError(f"its images are {images.dtype} {images.shape}")
        if answers is not None and not (answers.shape[:1] == images.shape[:1] and _is_answer(answers)):
            raise ValueError(f"its answers are {answers.dtype} {answers.shape}")
        return Samples(int(path.stem.removeprefix("queries-")), images, answers)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: expected a sheet of samples: {error}; delete it to go on") from error


def _is_answer(answers: NDArray[Any]) -> bool:
    """Whether they are labels (N,) or scores (N, K)."""
    return answers.dtype.kind == {1: "i", 2: "f"}.get(answers.ndim)
