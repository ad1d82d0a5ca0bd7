"""What a person sees of a run: a bar in a terminal, plain lines elsewhere, a short table at the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

LINE_SHARE = 0.05  # of the budget between two plain lines ...
LINE_SECONDS = 300.0  # ... unless so much time has passed: a slow teacher is not a dead one
BAR = "{percentage:3.0f}% |{bar}| {n:,}/{total:,} [{elapsed} < {remaining}, {rate_fmt}] {desc}"
LOGGER = logging.getLogger("dfme")


class Console:
    """Progress of one run on ``stream``, and its end table on ``results``.

    ``budget`` is in images. ``quiet`` writes nothing; notes then go to the logger ``dfme`` alone.
    """

    def __init__(
        self,
        budget: int,
        stream: TextIO | None = None,
        results: TextIO | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget, self._quiet, self._clock = budget, quiet, clock
        self._stream = sys.stderr if stream is None else stream
        self._results = sys.stdout if results is None else results
        self._latest: dict[str, float] = {}
        self._bar: tqdm[NoReturn] | None = None
        self._begin(0)

    def start(self, queries: int) -> None:
        """Begin to show progress, with ``queries`` images spent by an earlier part of the run."""
        self._begin(queries)
        if not self._quiet and self._stream.isatty():
            self._bar = tqdm(
                total=self._budget,
                initial=queries,
                file=self._stream,
                bar_format=BAR,
                unit=" queries",
                dynamic_ncols=True,
            )

    def step(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Show training metrics after ``queries`` images; plain lines come at a sensible rate only."""
        self._show(queries, metrics, self._due(queries))

    def evaluation(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Show how good the student is after ``queries`` images."""
        self._show(queries, metrics, line=True)

    def note(self, line: str) -> None:
        """Show one line at once, above the bar where there is one. A program without a console is warned by the log."""
        LOGGER.log(logging.WARNING if self._quiet and line.startswith("warning: ") else logging.INFO, line)
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            self._write(self._stream, line)

    def table(self, summary: Mapping[str, Any], run_dir: Path) -> None:
        """Show the end table on the results stream."""
        self.close()
        for line in summary.get("warnings", ()) if self._quiet else ():
            self.note(f"warning: {line}")
        self._write(self._results, end_table(summary, run_dir))

    def close(self) -> None:
        """Remove the bar's hold on the terminal; more than once does no harm."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _begin(self, queries: int) -> None:
        self._start = self._last = queries
        self._start_time = self._last_time = self._clock()

    def _show(self, queries: int, metrics: Mapping[str, float], line: bool) -> None:
        self._latest.update(metrics)
        if self._bar is not None:
            self._bar.set_description_str(self._state(), refresh=False)
            self._bar.update(queries - self._bar.n)
        elif line:
            self._line(queries)

    def _due(self, queries: int) -> bool:
        share = (queries - self._last) / self._budget
        return share >= LINE_SHARE or self._clock() - self._last_time >= LINE_SECONDS

    def _line(self, queries: int) -> None:
        self._last, self._last_time = queries, self._clock()
        seconds = self._last_time - self._start_time
        rate = (queries - self._start) / seconds if seconds > 0 else 0.0
        parts = [f"{queries:,} / {self._budget:,} queries ({queries / self._budget:.0%})", self._state()]
        if rate > 0:
            parts += [f"{rate:,.0f} queries/s", f"{duration((self._budget - queries) / rate)} left"]
        self._write(self._stream, "  ".join(part for part in parts if part))

    def _state(self) -> str:
        shown = []
        if "agreement" in self._latest:
            shown.append(f"agreement {self._latest['agreement']:.2%}")
        if "cost" in self._latest:
            shown.append(f"cost {self._latest['cost']:,.2f}")
        for name, label in (("student_loss", "student loss"), ("generator_loss", "generator loss")):
            if name in self._latest:
                shown.append(f"{label} {self._latest[name]:.4g}")
        return "  ".join(shown)

    def _write(self, stream: TextIO, text: str) -> None:
        if not self._quiet:
            stream.write(text + "\n")
            stream.flush()


def duration(seconds: float) -> str:
    """A time as people write it: 42 s, 3:07, 1:02:03."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


OUTPUTS = {
    "student": "student.safetensors",
    "curve": "curve.png",
    "samples": "samples.png",
    "report": "report.html",
}


def end_table(summary: Mapping[str, Any], run_dir: Path) -> str:
    """The table of a finished run, from its ``summary.json``, with the paths of the files that exist."""
    rows = [
        ("budget", f"{summary['budget']:,} queries"),
        ("spent", _spent(summary)),
        *_service(summary),
        ("teacher accuracy", _share(summary.get("teacher_accuracy"))),
        ("student accuracy", _share(summary.get("accuracy"))),
        ("agreement", _agreement(summary)),
        *constant_answer(summary),
        ("time", f"{summary['wall_seconds']:,.1f} s ({summary['queries_per_second'] or 0:,.0f} queries/s)"),
    ]
    rows += [(label, str(run_dir / name)) for label, name in OUTPUTS.items() if (run_dir / name).exists()]
    rows += [("warning", line) for line in summary.get("warnings", ())]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def _spent(summary: Mapping[str, Any]) -> str:
    purposes = ", ".join(f"{name} {count:,}" for name, count in summary["spent_by_purpose"].items() if count)
    evaluation = summary["evaluation_queries"]
    extra = f"; {evaluation:,} more for evaluation, not charged" if evaluation else ""
    extra += f"; {summary['failed']:,} without an answer" if summary.get("failed") else ""
    return f"{summary['spent']:,} ({purposes}{extra})"


def _service(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a service did, and what it costs, where there is one and where it has a price."""
    rows, service = [], summary.get("service")
    if service is not None:
        told = [
            f"{count:,} requests {event} ({reason})"
            for event in ("refused", "failed")
            for reason, count in service[event].items()
        ]
        rows.append(("service", ", ".join([f"{summary['requests']:,} requests", *told])))
    if summary.get("cost") is not None:
        rows.append(("cost", f"{summary['cost']:,.2f} at the price given, evaluation and losses included"))
    return rows


def constant_answer(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the shares above stand beside: one answer to everything, and a guess."""
    told = summary.get("baselines") or {}
    known = {name: told.get(f"constant_{name}") for name in ("accuracy", "agreement")}
    shares = [f"{name} {share:.2%}" for name, share in known.items() if share is not None]
    return [("constant answer", f"{', '.join(shares)}; a guess: {told['chance']:.2%}")] if shares else []


def _share(value: float | None) -> str:
    return "unknown: no evaluation set" if value is None else f"{value:.2%}"


def _agreement(summary: Mapping[str, Any]) -> str:
    value, evaluation = summary.get("agreement"), summary.get("evaluation") or {}
    if value is None:
        return "unknown: no evaluation set, and too few batches to hold one back"
    return f"{value:.2%}" + (" on held-back generated queries" if evaluation.get("held_back") else "")
