"""Runs, comparisons and outcomes made by hand, and what a browser would show of a report."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import no_pictures

from dfme.audits.compare.engines import ENGINES
from dfme.audits.compare.engines.pool import WorkerPool, free
from dfme.audits.compare.figures import Figures, Outcome
from dfme.audits.compare.plan import Attempt, Cell, attempt
from dfme.cli.main import main
from dfme.report.page import write_page
from dfme.report.run_files import read_run


@dataclass
class Page(HTMLParser):
    """What a browser would show: text and tables, and every address the page refers to."""

    text: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append(" ".join(data.split()))

    def after(self, label: str) -> str:
        return self.text[self.text.index(label) + 1]


def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def page_of(run: Path, **changes: Any) -> Page:
    """The page alone, since drawing the pictures takes a second; ``changes``: of its summary."""
    if changes:
        (run / "summary.json").write_text(json.dumps(SUMMARY | changes))
    return read_page(write_page(read_run(run), run / "report.html"))


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def charge(seq: int, purpose: str, images: int, spent: int) -> dict[str, Any]:
    return {"seq": seq, "event": "charge", "purpose": purpose, "images": images, "spent": spent}


def ledger(run: Path, *entries: dict[str, Any]) -> None:
    """Write these lines as the run's ledger, each with its check."""
    text, check = b"", 0
    for entry in entries:
        members = json.dumps(entry, separators=(",", ":"))[:-1].encode()
        check = zlib.crc32(members, check)
        text += members + b',"check":"%08x"}\n' % check
    (run / "ledger.jsonl").write_bytes(text)


SUMMARY: dict[str, Any] = {
    **{"method": "dfme", "seed": 0, "budget": 1_000, "spent": 1_000, "label_mode": "probabilities"},
    **{"evaluation_queries": 360, "requests": 4, "refused": 0, "lost": 0},
    "spent_by_purpose": {"generator": 300, "student": 700, "seed": 0, "check": 0},
    "estimator": {
        **{
            "kind": "finite_difference",
            "objective": "kl",
            "directions": 2,
            "step": 4.0,
            "every": 4,
        },
        **{"form": "central", "direction": "dct", "space": "lattice"},
    },
    **{"teacher_accuracy": 0.9889, "accuracy": 0.9611, "agreement": 0.975, "kl": 0.05},
    "evaluation": {"name": "digits", "images": 360, "held_back": False},
    **{
        "student_arch": "cnn_small",
        "student_steps": 77,
        "wall_seconds": 12.5,
        "queries_per_second": 80.0,
    },
    **{"device": "cpu", "config_hash": "abc", "version": "0.1.0", "torch": "2.6"},
}


LEADING: dict[str, Any] = {
    "teacher": {
        **{
            "kind": "json",
            "num_classes": 3,
            "target": "POST https://api.example/v1, model <b>cats</b>",
        },
        "adapter": {"file": "adapter.yaml", "sha256": "0123456789abcdef" * 4},
    },
    **{"started": "2026-01-31T12:00:00Z", "ended": "2026-01-31T12:30:00Z", "cost": 1.36},
    "baselines": {"constant_agreement": 0.5, "constant_accuracy": 0.45, "chance": 1 / 3},
    "answers": {
        **{"classes": [0, 1, 2], "names": ["cat", "<i>dog</i>", "cow"]},
        **{"teacher": [180, 90, 90], "student": [170, 100, 90], "queries": [999, 1, 0]},
    },
    "warnings": [
        "the teacher answered <i>cat</i> to 99.9% of the 1,000 images paid for; likely cause: "
        "<script>"
    ],
}
"""What 0.7.0 adds to a summary."""

DEFENDED: dict[str, Any] = {
    **{"defences": ["counting:<b>n</b>=3"], "defence_report": {"counting": {"<i>asked</i>": 400}}},
    **{"agreement_served": 0.7, "agreement_relabelled": None},
}
"""What a teacher with defences adds."""


def make_run(
    run_dir: Path, *, finished: bool = True, channels: int = 1, dataset: str = "digits"
) -> Path:
    """A run of 1,000 queries with three evaluations and three sheets of samples."""
    (run_dir / "samples").mkdir(parents=True)
    (run_dir / "config.yaml").write_text(
        f"method:\n  name: dfme\nseed: 0\nevaluation:\n  dataset: {dataset}\n"
    )
    scores = [(200, 0.5), (600, 0.85), (1_000, 0.975)]
    shown = [
        {"queries": q, "agreement": a, "accuracy": a - 0.01, "student_loss": 1 - a}
        for q, a in scores
    ]
    (run_dir / "metrics.jsonl").write_text(lines(*shown))
    charged = [
        ("evaluation", 360, 0),
        ("generator", 300, 300),
        ("student", 300, 600),
        ("student", 400, 1000),
    ]
    ledger(run_dir, *(charge(seq, *each) for seq, each in enumerate(charged, start=1)))
    rng = np.random.default_rng(0)
    for queries, _ in scores:
        images = rng.integers(0, 256, (12, channels, 8, 6), dtype=np.uint8)
        answers = rng.dirichlet(np.ones(10), 12)
        np.savez(run_dir / "samples" / f"queries-{queries:09d}.npz", images=images, answers=answers)
    if finished:
        (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
    return run_dir


FIGURES = Figures(
    accuracy=0.9, agreement=0.92, kl=0.25, vote_accuracy=None, vote_agreement=None, teacher_accuracy=0.99,
    queries_to={0.5: 100, 0.8: 200, 0.9: 300, 0.95: None}, queries_to_teacher=300, collapsed=False,
    seconds=10.0, students=1, student_steps=3000, spent=400, curve=[(100, 0.5), (400, 0.92)], made_with="cpu",
)  # fmt: skip


class Here(WorkerPool):
    """An engine that runs its cells one after the other in this process; where one is to fail, it
    does.
    """

    failing = ""

    def run(self, cells: Iterable[Cell], ended: Callable[[Cell, int], bool], *_: object) -> None:
        for cell in cells:
            task = self._task(cell)
            free(task.directory)  # of one that a kill has left
            ended(cell, 1 if self.failing and self.failing in cell.name else main(list(task.words)))


@contextmanager
def cells_here() -> Iterator[None]:
    """The cells of comparisons and audits run in this process, and draw nothing."""
    with no_pictures(), pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENGINES, "local", "handmade:Here")
        patch.setattr(Here, "failing", "")
        yield


def cell_of(row: str, mode: str, budget: int, seed: int, made: Attempt | None = None) -> Cell:
    """A cell without a job: tables ask nothing of it."""
    job: Any = None
    return Cell(row, mode, budget, seed, job, made or Attempt())


def defended(defence: str, answers: str, seed: int, agreement: float, **more: Any) -> Outcome:
    """A finished run of an attacker on a defence; one that cannot be is not applicable."""
    made = attempt(defence, answers, "probabilities")
    cell = cell_of("frugal", "probabilities", 3000, seed, made)
    if made.reason:
        return Outcome(cell, "not applicable", made.reason)
    return Outcome(cell, "finished", figures=replace(FIGURES, agreement=agreement, **more))


def table_rows(text: str) -> list[dict[str, str]]:
    """The lines of the first table of a text, by head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    heads, _, *rows = [[part.strip() for part in line] for line in lines]
    return [dict(zip(heads, row, strict=False)) for row in rows]
