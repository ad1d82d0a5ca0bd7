"""The short table that ends a run: what was spent, what came of it, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        ("time", f"{summary['wall_seconds']:,.1f} s ({summary['queries_per_second'] or 0:,.0f} queries/s)"),
    ]
    rows += [(label, str(run_dir / name)) for label, name in OUTPUTS.items() if (run_dir / name).exists()]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def _spent(summary: Mapping[str, Any]) -> str:
    purposes = ", ".join(f"{name} {count:,}" for name, count in summary["spent_by_purpose"].items() if count)
    evaluation = summary["evaluation_queries"]
    extra = f"; {evaluation:,} more for evaluation, not charged" if evaluation else ""
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


def _share(value: float | None) -> str:
    return "unknown: no evaluation set" if value is None else f"{value:.2%}"


def _agreement(summary: Mapping[str, Any]) -> str:
    value, evaluation = summary.get("agreement"), summary.get("evaluation") or {}
    if value is None:
        return "unknown: no evaluation set, and too few batches to hold one back"
    return f"{value:.2%}" + (" on held-back generated queries" if evaluation.get("held_back") else "")
