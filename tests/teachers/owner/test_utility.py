"""The honest users' bill: figures against brute force and arithmetic, toy defences."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import run
from pydantic import TypeAdapter
from torch import Tensor
from toys import LinearTeacher

from dfme.data import ImageSet
from dfme.errors import Refused
from dfme.measured import Bill
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.statistics import wilson_interval
from dfme.teachers.label_modes import restrict
from dfme.teachers.owner import utility
from dfme.teachers.owner.utility import (
    as_probabilities,
    calibration_error,
    confidence_auroc,
    corrupted,
    figures,
)

SPEC = ImageSpec((1, 4, 4), levels=256)
MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda p: p,
    "temperature": lambda p: p.log().div(2).softmax(1),
    "roll": lambda p: p.roll(1, dims=1),
}


class Toy:
    """A teacher with a map on its answers that refuses all images after so many."""

    def __init__(self, change: str = "identity", limit: int = 10**9) -> None:
        base = LinearTeacher(SPEC)
        self.spec, self.num_classes, self.label_mode = base.spec, base.num_classes, base.label_mode
        self.info = TeacherInfo(stateful=self)
        self.heard: Callable[[Tensor], object] = lambda images: None
        self._base, self._change, self._limit, self._seen = base, MAPS[change], limit, 0

    def __call__(self, images: Tensor, /) -> Tensor:
        if self._seen + len(images) > self._limit:
            raise Refused("no more", "quota")
        self._seen += len(images)
        self.heard(images)
        return self._change(self._base(images))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": torch.zeros(self._seen, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = len(state["seen"])

    def replay_answer(self, images: Tensor, answers: Tensor) -> None:
        raise AssertionError("nothing is resumed")

    def report(self) -> dict[str, Any]:
        return {"pow": {"seconds_of_work": self._seen / 10}}


def draw(count: int, rng: torch.Generator) -> Tensor:
    return torch.rand(count, *SPEC.shape, generator=rng)


def billed(*teachers: Any, labelled: bool = True, count: int = 50) -> list[Bill]:
    """The bills of some teachers beside the undefended one, with random images."""
    images = torch.rand(count, *SPEC.shape, generator=torch.Generator().manual_seed(3))
    data = ImageSet("toy", images, torch.arange(count) % 3 if labelled else None)
    rows = [((), teacher) for teacher in (LinearTeacher(SPEC), *teachers)]
    return [*utility.bills(rows, data, draw, seed=0)][1:]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utility, "ROUNDS_SECONDS", 0.01)


def test_figures_of_twenty_answers_are_those_of_brute_force() -> None:
    rng = torch.Generator().manual_seed(5)
    p, y = (
        torch.randn(20, 4, generator=rng, dtype=torch.float64).mul(2).softmax(1) for _ in range(2)
    )
    y[3] = y[4] = torch.tensor([0.5, 0.5, 0.0, 0.0])  # equal scores, a tie, and zeros
    labels = torch.randint(4, (20,), generator=rng)
    labels[3], labels[4] = 2, 0
    paid = figures(p, y, labels)
    rows = [(a, b, int(label)) for a, b, label in zip(p.tolist(), y.tolist(), labels, strict=True)]
    tops = [(a.index(max(a)), b.index(max(b)), label) for a, b, label in rows]
    l1 = sorted(sum(abs(u - v) for u, v in zip(a, b, strict=True)) for a, b, _ in rows)
    right = [max(b) for (_, b, _), (_, top, label) in zip(rows, tops, strict=True) if top == label]
    wrong = [max(b) for (_, b, _), (_, top, label) in zip(rows, tops, strict=True) if top != label]
    pairs = [1.0 if r > w else 0.5 if r == w else 0.0 for r in right for w in wrong]
    gap = 0.0
    for place in range(15):
        both = (
            (max(b), top == label) for (_, b, _), (_, top, label) in zip(rows, tops, strict=True)
        )
        here = [score for score in both if place / 15 < score[0] <= (place + 1) / 15]
        gap += abs(sum(score for score, _ in here) - sum(hit for _, hit in here)) / 20
    assert paid.to_json() == {
        "answered": 20,
        "top1_changed": pytest.approx(sum(was != now for was, now, _ in tops) / 20),
        "l1_mean": pytest.approx(sum(l1) / 20),
        "l1_p95": pytest.approx(
            l1[18] + 0.05 * (l1[19] - l1[18])
        ),  # at 19 x .95 = 18.05 of the sorted ones
        "l1_max": pytest.approx(l1[19]),
        "accuracy": pytest.approx(len(right) / 20),
        "accuracy_drop": pytest.approx(
            sum((was == label) - (now == label) for was, now, label in tops) / 20
        ),
        "became_wrong": sum(was == label != now for was, now, label in tops),
        "became_right": sum(was != label == now for was, now, label in tops),
        "ece": pytest.approx(gap),
        "nll": pytest.approx(-sum(math.log(max(b[label], 1e-12)) for _, b, label in rows) / 20),
        "confidence_auroc": pytest.approx(sum(pairs) / len(pairs)),
        "state_mb": 0.0,
        "report": {},
        "accuracy_interval": wilson_interval(len(right) / 20, 20),
    }


def test_figures_by_hand() -> None:
    scores, right = (
        torch.tensor([0.9, 0.9, 0.6, 0.4]).double(),
        torch.tensor([True, False, True, False]),
    )
    assert confidence_auroc(scores, right) == (0.5 + 1 + 0 + 1) / 4
    assert confidence_auroc(torch.ones(6).double(), torch.arange(6) < 2) == 0.5
    assert confidence_auroc(scores, torch.ones(4, dtype=torch.bool)) is None
    # the two of .9 share a bin: |1.8 - 1| + |.6 - 1| + |.4 - 0|, of four
    assert calibration_error(scores, right) == pytest.approx((0.8 + 0.4 + 0.4) / 4)
    assert wilson_interval(0.0, 180) == (0.0, pytest.approx(0.0209, abs=5e-5))


def test_answers_of_every_form_are_probabilities() -> None:
    answers = torch.tensor([[0.7, torch.nan, 0.1, torch.nan]])
    top = as_probabilities(answers, LabelMode.parse("top_k:2"), 4)
    assert top.tolist() == [pytest.approx([0.7, 0.1, 0.1, 0.1])]
    assert as_probabilities(torch.tensor([2]), LabelMode("label"), 4).tolist() == [[0, 0, 1, 0]]
    logits = as_probabilities(torch.tensor([[0.0, math.log(3)]]), LabelMode("logits"), 2)
    assert logits.tolist() == [pytest.approx([0.25, 0.75])]


def test_images_are_corrupted_in_four_equal_parts() -> None:
    x = torch.zeros(4_000, 1, 5, 5)
    x[:, :, 2, 2] = 0.5
    spec = ImageSpec((1, 5, 5), (-1.0, 1.0))
    images = corrupted(x * 2 - 1, spec, torch.Generator().manual_seed(0)) / 2 + 0.5
    moved, bright, noisy, blurred = (images[kind::4, 0] for kind in range(4))
    places = {tuple(divmod(int(image.flatten().argmax()), 5)) for image in moved}
    assert places == {(1, 2), (3, 2), (2, 1), (2, 3)}
    assert moved.amax((1, 2)).tolist() == [0.5] * 1000
    factors = bright[:, 2, 2] / 0.5
    assert (float(factors.min()), float(factors.max())) == pytest.approx((0.7, 1.3), abs=0.01)
    assert noisy[:, 2, 2].std().item() == pytest.approx(0.05, rel=0.1)
    assert blurred[0][2, 1:4].tolist() == pytest.approx([1 / 16, 1 / 8, 1 / 16])
    assert blurred[0].sum().item() == pytest.approx(0.5)


def test_a_temperature_keeps_the_class_and_a_roll_changes_all() -> None:
    rows = dict(zip(MAPS, billed(*map(Toy, MAPS)), strict=True))
    for stream in ("held_out", "corrupted"):
        plain, kept, rolled = (getattr(rows[name], stream) for name in MAPS)
        assert (plain.l1_max, plain.top1_changed, plain.accuracy_drop) == (0, 0, 0)
        assert (kept.top1_changed, kept.accuracy, kept.became_wrong) == (0, plain.accuracy, 0)
        assert 0 < kept.l1_mean < kept.l1_p95 <= kept.l1_max
        assert rolled.top1_changed == 1.0
        changed = rolled.became_wrong - rolled.became_right
        assert rolled.accuracy_drop == pytest.approx(changed / 50)
        assert rolled.became_wrong == round(50 * plain.accuracy) > 0
    assert [*rows["identity"].ms] == ["ms_1", "times_1", "ms_256", "times_256"]


def test_labels_are_one_hot_and_what_needs_true_labels_is_left_out_without() -> None:
    paid = billed(restrict(LinearTeacher(SPEC), LabelMode("label")))[0].held_out
    assert paid.accuracy is not None
    assert (paid.confidence_auroc, paid.top1_changed) == (0.5, 0)
    assert paid.ece == pytest.approx(1 - paid.accuracy)
    assert paid.nll == pytest.approx((1 - paid.accuracy) * -math.log(1e-12))
    keys = "answered top1_changed l1_mean l1_p95 l1_max state_mb report work_s_per_1000"
    assert billed(Toy("roll"), labelled=False)[0].held_out.to_json().keys() == {*keys.split()}


def test_every_stream_begins_cold_and_ends_at_a_refusal() -> None:
    limits = {256: 256, 300: 300, 10: 0}  # 300 images in batches of 256 and 44
    bills = billed(*(Toy(limit=limit) for limit in limits), count=300)
    for answered, bill in zip(limits.values(), bills, strict=True):
        for paid in (bill.held_out, bill.corrupted, bill.data_free):
            assert paid.answered == answered
            assert paid.report == {"pow": {"seconds_of_work": answered / 10}}
            assert paid.work_s_per_1000 == (100 if answered else None)
        assert bill.state_mb == bill.held_out.state_mb == answered * 8 / 1e6
        assert TypeAdapter(Bill).validate_json(json.dumps(bill.to_json())) == bill


def test_of_every_two_images_the_second_is_measured() -> None:
    images = torch.arange(10).view(10, 1, 1, 1).expand(10, *SPEC.shape) / 255
    toy, seen = Toy(), list[int]()
    toy.heard = lambda x: seen.extend((x[:, 0, 0, 0] * 255).round().long().tolist())
    data = ImageSet("toy", images, torch.arange(10) % 3)
    _, bill = utility.bills([((), LinearTeacher(SPEC)), ((), toy)], data, draw, seed=0, every=2)
    assert bill.held_out.answered == 5
    assert sorted(seen[:5]) == [1, 3, 5, 7, 9]


@pytest.mark.integration
def test_the_command_writes_table_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bill"
    assert run(f"utility --teacher.defences label,probabilities:1,lattice:n=20 --out {out}") == 0
    rows = json.loads((out / "utility.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["none", "label", "probabilities:1", "lattice:n=20"]
    none, label, rounded, lattice = (row["held_out"] for row in rows)
    states = rows[3]["states"]
    assert (states["top_kept"], states["l1_at_most"], states["needs"]) == ("yes", "0.35", "nothing")
    assert rows[1]["states"] == {}
    assert lattice["top1_changed"] == 0
    assert lattice["l1_max"] <= float(states["l1_at_most"])
    assert none["l1_max"] == 0
    assert none["accuracy_interval"] == [*wilson_interval(none["accuracy"], 359)]
    assert label["l1_mean"] == pytest.approx(
        0.041, abs=5e-4
    )  # as measured elsewhere, by another program
    assert rounded["l1_mean"] == pytest.approx(0.013, abs=5e-4)
    printed = capsys.readouterr().out
    assert printed.startswith("### what each states\n")
    assert printed.rpartition("\n\n")[0] in (out / "utility.md").read_text()
    assert (out / "utility.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--teacher.defences lattice,modelgard_w", "did you mean modelguard_w?"),
        ("--teacher.defences top_k", "top_k:K[:DECIMALS]"),
        ("--teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model m", "this machine"),
        ("--evaluation.dataset none", "expected a data set"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"utility {words}") == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
