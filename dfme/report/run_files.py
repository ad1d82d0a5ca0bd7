"""What a run's directory says: its configuration, records, ledger, samples and, at the end, its
summary.
"""

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

MAX_BYTES = 1 << 28  # of the arrays of one sheet of samples, by far


@dataclass(frozen=True)
class Samples:
    """Queries as they were at one moment: 8-bit images (N, C, H, W), and answers (N, K) or (N,) if
    known.
    """

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
        pairs = ((int(record["queries"] or 0), record.get(metric)) for record in self.metrics)
        return [(queries, value) for queries, value in pairs if value is not None]

    def final(self, metric: str) -> float | None:
        """The metric of the delivered student; of an unfinished run, of its latest record."""
        if self.summary is not None:
            return self.summary.get(metric)
        return series[-1][1] if (series := self.series(metric)) else None


def read_run(run_dir: Path) -> RunFiles:
    """Read a run's files. Raises ``UserError`` where there is no run and ``RunError`` for damaged
    files.
    """
    config = run_dir / "config.yaml"
    ledger = run_dir / "ledger.jsonl"
    if not config.is_file():
        raise UserError(
            f"report: expected a run directory, but {str(run_dir)!r} has no config.yaml"
        )
    return RunFiles(
        name=run_dir.resolve().name,
        config=load_yaml(config),
        config_text=config.read_text(encoding="utf-8"),
        summary=read_summary(run_dir / "summary.json"),
        metrics=read_metrics(run_dir / "metrics.jsonl"),
        ledger=audit(ledger) if ledger.is_file() else Totals(),
        samples=[
            _read_samples(path) for path in sorted((run_dir / "samples").glob("queries-*.npz"))
        ],
    )


def _read_samples(path: Path) -> Samples:
    try:
        arrays = read_npz(path, MAX_BYTES)
        return Samples(
            int(path.stem.removeprefix("queries-")), arrays["images"], arrays.get("answers")
        )
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{path}: expected a sheet of samples: {error}; delete it to go on"
        ) from error


def to_picture(image_CHW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as (H, W, 3), pixels unchanged. Unless it has three channels the first is shown,
    grey.
    """
    rgb_CHW = image_CHW if image_CHW.shape[0] == 3 else image_CHW[:1].repeat(3, axis=0)
    return rgb_CHW.transpose(1, 2, 0)
