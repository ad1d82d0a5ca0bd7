"""The time of an audit: what it says of examining, against the images that are counted in its own
parts.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dfme.audits.audit.document import PHASES, record_seconds
from dfme.audits.audit.examine import PROCEDURAL
from dfme.audits.audit.forecast import BACKWARD, Forecast, forecast
from dfme.audits.audit.options import TWIN_EPOCHS
from dfme.audits.audit.transfer import Surrogate, eps_of, measure
from dfme.audits.compare.rehearsal import Rehearsal
from dfme.cli.audit import plan_of
from dfme.owner_side import owner_of
from dfme.spec import ImageSpec
from dfme.teachers.owner.measuring import Measuring
from dfme.teachers.owner.training import train

SPEC = ImageSpec((1, 8, 8))
SCORED = 20


class Owner(Measuring):
    """An owner whose honest accounts are of round numbers."""

    def benign_at_most(self, images: int, stacks: bool, sessions: int, cells: int) -> int:
        return 1_000 if sessions else 0

    def streamed(self, sessions: int) -> int:
        return 4_000 if sessions else 0


def foretold(
    words: str, step: float = 0.0, answer: float = 0.0, attack: float = 60.0, finished: int = 0
) -> Forecast:
    """The forecast for two copies, whose attacks take a minute each on one core; so many are
    finished.
    """
    plan = plan_of(f"--budget 200 --label-modes probabilities --defences none {words}".split())
    cells = plan.first.cells
    seconds = {(cell.row, cell.budget): attack for cell in cells}
    assert len(cells) == 2
    plan = replace(plan, first=replace(plan.first, jobs=1))
    waiting = [cell.name for cell in cells[finished:]]
    rehearsal = Rehearsal(0, SCORED, SPEC, 10, seconds, [(step, answer)])
    owner: Any = Owner(plan.job, SimpleNamespace())
    return forecast(plan, cells, waiting, rehearsal, owner)


def examining(words: str, step: float = 0.0, answer: float = 0.0) -> float:
    return foretold(words, step, answer).seconds["to examine the copies"]


def counted() -> Counter[str]:
    """Images that go through students, through the teacher for its gradient, and that are asked."""
    seen = Counter[str]()

    def logits(name: str) -> Any:
        def through(x_BCHW: Tensor) -> Tensor:
            seen[name] += len(x_BCHW)
            return x_BCHW.flatten(1)[:, :10]

        return through

    def ask(source: Surrogate, eps: float, x_BCHW: Tensor) -> Tensor:
        seen["asked"] += len(x_BCHW)
        return torch.zeros(len(x_BCHW), dtype=torch.int64)

    sources = [
        Surrogate("random signs", "stranger", None),
        *[Surrogate(name, "stranger", logits("student")) for name in ("untrained", "twin")],
        Surrogate("teacher", "ceiling", logits("teacher")),
        *[Surrogate(f"clone {number}", "clone", logits("student")) for number in range(2)],
    ]
    labels_N = torch.zeros(SCORED, dtype=torch.int64)
    measure(
        sources, torch.rand(SCORED, *SPEC.shape), labels_N, SPEC, eps_of(SPEC, brief=True), 0, ask
    )
    return seen


def test_images_through_students_the_teacher_and_its_answers_are_those_that_are_counted() -> None:
    seen = counted()
    by_students = examining("--twin none", step=1.0)
    # what is asked beside the adversarial images, and random signs for all attacks, are at most
    # some more
    assert seen["student"] <= by_students <= seen["student"] + 11 * PROCEDURAL
    assert examining("--twin none", answer=1.0) == pytest.approx(
        seen["asked"] + PROCEDURAL + BACKWARD * seen["teacher"], rel=0.05
    )
    assert examining("--transfer false --twin none", step=1.0, answer=1.0) == 0


def test_a_twin_takes_the_images_of_its_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Counter[str]()

    def counted(self: Any, x_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        trained["images"] += len(x_BCHW)
        return torch.zeros(()), torch.zeros(len(x_BCHW), 10)

    monkeypatch.setattr(train._Training, "_step", counted)
    owner = owner_of(plan_of(["--defences", "none"]).job)
    owner.train_twin("cnn_small", SPEC.shape, TWIN_EPOCHS, tmp_path / "twin.safetensors", print)
    with_twin, without = (
        examining(f"--transfer false --twin {twin}", step=1.0) for twin in ("train", "none")
    )
    assert with_twin - without == pytest.approx(trained["images"], rel=0.05)


def test_the_line_has_the_whole_and_its_parts() -> None:
    whole = foretold("--twin none --transfer false")
    assert whole.time == "about 2:00 on this machine: 2:00 for the attacks"
    resumed = foretold("--twin none --transfer false", finished=1)
    assert resumed.time == "about 1:00 on this machine: 1:00 for the attacks"
    assert (resumed.total, resumed.line) == (
        whole.total,
        whole.line,
    )  # --total counts the whole audit
    assert foretold("--twin none --transfer false", answer=0.03).time == (
        "about 4:00 on this machine: 2:00 for the attacks, 2:00 to watch honest accounts"
    )
    hint = "shorter with a smaller --budget, fewer --student-steps, --attackers or --defences"
    for seconds, is_long in ((500.0, False), (1500.0, True)):  # 20 minutes are 1,200 s
        assert (hint in foretold("--twin none --transfer false", attack=seconds).time) is is_long
    unknown = foretold("--twin none --transfer false", attack=0.0).time
    assert unknown == "the time is not known: no attack is left here to be rehearsed"


def test_honest_accounts_take_the_time_of_images_that_detectors_look_at() -> None:
    plan = plan_of("--budget 200 --label-modes probabilities --defences none --twin none".split())
    cells = plan.first.cells
    seconds = {(cell.row, cell.budget): 60.0 for cell in cells}
    rehearsal = Rehearsal(0, SCORED, SPEC, 10, seconds, [(0.0, 0.001)], building=3.0, watched=0.002)
    expected = forecast(plan, cells, [cell.name for cell in cells], rehearsal, owner_of(plan.job))
    # four streams of six accounts with 600 images each
    assert expected.seconds["to watch honest accounts"] == pytest.approx(3 + 4 * 6 * 600 * 0.002)
    # frugal's 200 queries and knockoff's 179, from 1, 5, 25, 125 and as many accounts as queries
    looked = 5 * (200 + 179) * (0.002 - 0.001)
    begun = 0.003 * (156 + 200 + 156 + 179)
    split = expected.seconds["to score the attacks from many accounts"]
    assert split == pytest.approx(looked + begun)
    size = 4 * 64 + 8 * 10 + 8
    assert expected.recorded == size * (200 + 179)
    assert expected.disk == "1 MB for the queries of 2 attacks, which are recorded"
    assert (plan.accounts, plan_of(["--profile", "standard"]).accounts) == (6, 20)
    assert plan_of(["--evaluation.dataset", "none", "--teacher.shape", "1,8,8"]).accounts == 0
    asked = 3 * (SCORED + plan.held_back) * 0.001 * (1 + len(plan.texts))
    billed = expected.seconds["to bill honest users"]
    assert bool(plan.texts) == bool(billed)
    assert billed >= asked * bool(plan.texts)


def test_the_seconds_of_a_phase_are_those_of_all_sessions(tmp_path: Path) -> None:
    for seconds in (1.25, 2.5):
        record_seconds(tmp_path, "would one notice?", seconds)
    record_seconds(tmp_path, "the price of a copy", 7.0)
    message = json.loads((tmp_path / PHASES).read_text())
    assert message == {"would one notice?": 3.7, "the price of a copy": 7.0}
