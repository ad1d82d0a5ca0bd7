"""Answers are held to their label mode: what it rules out is refused by name, what is more is
cut.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import exhaustive
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dfme.answers.reading import read_answers
from dfme.compute.modules import DeferredChecks
from dfme.errors import TeacherError
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode, RequestPolicy
from dfme.teachers.custom import wrap_callable
from dfme.teachers.label_modes import reveal

CPU = torch.device("cpu")
HALF = [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]
NAN = float("nan")


def read(raw: object, mode: str, deferred: DeferredChecks | None = None) -> torch.Tensor:
    return read_answers(raw, 2, 3, LabelMode.parse(mode), deferred or DeferredChecks(), CPU)


@pytest.mark.parametrize(
    ("mode", "raw", "dtype"),
    [
        ("logits", torch.tensor(HALF) * 100 - 7, torch.float32),
        ("logits", torch.tensor([[3e38, 3e38, -3.4e38]] * 2), torch.float32),
        ("probabilities", HALF, torch.float32),
        ("probabilities", np.array(HALF), torch.float32),
        ("probabilities", torch.softmax(torch.randn(2, 3), 1).bfloat16(), torch.float32),
        ("probabilities", [[0, 1, 0], [1, 0, 0]], torch.float32),
        ("probabilities:1", [[0.3, 0.3, 0.3], [0.4, 0.4, 0.3]], torch.float32),
        ("top_k:1", [[NAN, 0.5, NAN], [0.9, NAN, NAN]], torch.float32),
        ("top_k:3", HALF, torch.float32),
        ("label", np.array([2, 0], dtype=np.int32), torch.int64),
    ],
)
def test_right_answers_come_back_as_our_own_tensor(
    mode: str, raw: object, dtype: torch.dtype
) -> None:
    answers = read(raw, mode)
    expected = torch.as_tensor(raw)
    assert answers.dtype == dtype
    assert torch.equal(answers.nan_to_num(-1), expected.to(dtype).nan_to_num(-1))


@pytest.mark.parametrize(
    ("mode", "raw", "words"),
    [
        ("logits", None, ["tensor", "NoneType"]),
        ("logits", [[1.0, 2.0], [3.0]], ["list"]),
        ("logits", (torch.zeros(2, 3), torch.zeros(2, 5)), ["tuple"]),
        ("logits", torch.zeros(1, 3), ["(2, 3)", "(1, 3)"]),
        ("logits", torch.zeros(2, 7), ["(2, 3)", "(2, 7)", "--teacher.num-classes 7"]),
        ("logits", torch.zeros(2), ["(2,)", "--teacher.label-mode label"]),
        ("logits", torch.zeros(2, 3, 1), ["(2, 3, 1)"]),
        ("logits", torch.tensor([[0.0, NAN, 1.0], [0.0, 0.0, 0.0]]), ["finite", "nan"]),
        ("logits", torch.tensor([[0.0, float("inf"), 1.0], [0.0, 0.0, 0.0]]), ["finite", "inf"]),
        ("probabilities", torch.tensor([[0.5, NAN, 0.5], [0.2, 0.3, 0.5]]), ["NaN"]),
        ("probabilities", torch.tensor([[0.5, 0.3, 0.5], [0.2, 0.3, 0.5]]), ["0.3", "a sigmoid"]),
        ("probabilities", torch.tensor([[1.1, -0.1, 0.0], [0.2, 0.3, 0.5]]), ["-0.1"]),
        ("probabilities:4", [[0.3, 0.3, 0.3], [0.4, 0.4, 0.3]], ["0.1"]),
        ("top_k:1", [[NAN, 0.5, NAN], [NAN, NAN, NAN]], ["at most 2 NaN", "2 to 3 NaN"]),
        ("top_k:2", [[0.2, 0.1, -5.0], [0.9, NAN, 0.1]], ["-5"]),
        ("top_k:1", [[0.8, 0.7, 0.6], [0.9, NAN, 0.1]], ["2.1"]),
        ("top_k:1", [[NAN, 1.5, NAN], [0.9, NAN, NAN]], ["1.5"]),
        ("label", torch.zeros(2, 3), ["labels", "scores", "--teacher.label-mode"]),
        ("label", torch.zeros(2, 1, dtype=torch.int64), ["(2, 1)"]),
        ("label", torch.zeros(2), ["integers", "float32"]),
        ("label", [0, 3], ["0 to 2", "0 to 3"]),
        ("label", [-1, 2], ["-1"]),
    ],
)
def test_wrong_answers_are_refused_by_name(mode: str, raw: object, words: list[str]) -> None:
    error = refused("teacher: expected ", read, raw, mode, error=TeacherError)
    assert [word for word in words if word not in str(error)] == []


shares = st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=6).map(
    lambda values: (np.array([*values, 1.0]) / (sum(values) + 1.0)).astype(np.float32)
)


def cut(raw: object, mode: str, more: list[str] | None = None) -> np.ndarray[Any, Any]:
    classes, more_told = np.shape(raw)[1], more if more is not None else []
    answers = read_answers(
        raw,
        1,
        classes,
        LabelMode.parse(mode),
        DeferredChecks(),
        CPU,
        lambda: more_told.append("more"),
    )
    return answers.numpy()


def rounded(values: np.ndarray[Any, Any], decimals: int) -> np.ndarray[Any, Any]:
    """By decimal arithmetic, which is exact: every float32 is a decimal number."""
    unit = Decimal(1).scaleb(-decimals)
    exact = [Decimal(float(value)).quantize(unit, ROUND_HALF_EVEN) for value in values]
    return np.array([float(value) for value in exact]).astype(np.float32)


@given(shares, st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_probabilities_are_rounded_as_decimals_are(
    row: np.ndarray[Any, Any], decimals: int
) -> None:
    expected = rounded(row, decimals)
    assert cut([row.tolist()], f"probabilities:{decimals}").tobytes() == expected.tobytes()


@given(shares, st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_what_is_rounded_already_stays_as_it_is_bit_by_bit(
    row: np.ndarray[Any, Any], decimals: int
) -> None:
    """By us, by NumPy in either precision, and as text."""
    mode, lines = LabelMode("probabilities", decimals=decimals), list[str]()
    ours = reveal(torch.from_numpy(row)[None], LabelMode("probabilities"), mode).numpy()
    theirs = np.round(row.astype(np.float64), decimals).astype(np.float32)[None]
    text = np.array([[float(f"{value:.{decimals}f}") for value in row]], np.float32)
    for given_B in (ours, theirs, text):
        assert cut(torch.from_numpy(given_B), str(mode), lines).tobytes() == given_B.tobytes()
    assert lines == []


@pytest.mark.parametrize("decimals", [20, 45, 46, 300, 999_999])
def test_more_decimals_than_a_number_has_change_nothing(decimals: int) -> None:
    row = np.array([[2e-45, 3e-19, 0.25, 0.75]], np.float32)
    assert (
        cut(row, f"probabilities:{decimals}").tobytes()
        == (row if decimals > 20 else np.array([[0, *row[0, 1:]]], np.float32)).tobytes()
    )


@given(shares, st.integers(1, 7), st.sampled_from([None, 1, 4]))
@settings(max_examples=60, deadline=None)
def test_top_k_is_chosen_before_rounding(
    row: np.ndarray[Any, Any], k: int, decimals: int | None
) -> None:
    mode = LabelMode("top_k", k=k, decimals=decimals)
    kept = cut(row[None], str(mode))[0]
    shown = ~np.isnan(kept)
    assert shown.sum() == min(k, len(row))
    assert row[shown].min() >= row[~shown].max(initial=0.0)
    expected = row if decimals is None else rounded(row, decimals)
    assert kept[shown].tobytes() == expected[shown].tobytes()
    lines: list[str] = []
    assert cut(kept[None], str(mode), lines).tobytes() == kept.tobytes()
    assert lines == []


@pytest.mark.parametrize(
    ("raw", "mode", "more"),
    [
        ([[0.1234, 0.8766]], "probabilities:4", False),
        ([[0.12341, 0.87659]], "probabilities:4", True),
        ([[0.12341, 0.87659]], "probabilities", False),
        (torch.tensor([[0.1234, 0.8766]]).half(), "probabilities:4", False),
        (torch.tensor([[0.1234, 0.8766]]).double() + 1e-7, "probabilities:4", True),
        ([[0, 1]], "probabilities:1", False),
        ([[0.1, 0.2, 0.7]], "top_k:2", True),
        ([[torch.nan, 0.2, 0.7]], "top_k:2", False),
        ([[torch.nan, 0.21, 0.7]], "top_k:2:1", True),
        ([[1.25, -3.0]], "logits", False),
    ],
)
def test_what_counts_as_telling_more(raw: object, mode: str, more: bool) -> None:
    lines: list[str] = []
    cut(raw, mode, lines)
    assert bool(lines) == more


class Service:
    """Says that it gives four decimals, and gives all that it has."""

    spec, num_classes = ImageSpec((1, 2, 2)), 3

    def __init__(self, mode: str = "probabilities:4", wire: RequestPolicy | None = None) -> None:
        self.label_mode, self.wire = LabelMode.parse(mode), wire

    def __call__(self, images: Tensor) -> Tensor:
        return (images.flatten(1)[:, :3] * 5).softmax(1)


@pytest.mark.parametrize("wire", [None, RequestPolicy(in_flight=3)])
@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        ("probabilities:4", None),
        ("top_k:2", None),
        ("probabilities", "probabilities:4"),
        ("probabilities", "top_k:2:4"),
    ],
)
def test_it_is_said_once_and_nothing_more_is_learnt_or_written(
    declared: str, wanted: str | None, wire: RequestPolicy | None, tmp_path: Path
) -> None:
    lines: list[str] = []
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    service = Service(declared, wire)
    service.max_batch = 2  # type: ignore[attr-defined]
    teacher = wrap_callable(service, label_mode=wanted)
    oracle = Oracle(teacher, Ledger(100), Journal(tmp_path / "j"), tell=lines.append)
    answers = torch.cat([oracle(x), oracle(x)])
    mode = LabelMode.parse(wanted or declared)
    expected = reveal(service(x), LabelMode("probabilities"), mode)
    assert np.array_equal(answers.numpy(), expected.repeat(2, 1).numpy(), equal_nan=True)
    first = Journal(tmp_path / "j").peek()
    kept = answers[first.start : first.start + 2]
    assert np.array_equal(first.answers.numpy(), kept.numpy(), equal_nan=True)
    silent = (
        wanted is not None and wire is None
    )  # a restriction of one's own teacher is what was asked for
    assert len(lines) == (not silent)
    assert all(f"tells more than {mode}" in line for line in lines)


class Tagged(Tensor):
    """A subclass with data."""


ODD: dict[str, Callable[[Tensor], object]] = {
    "meta": lambda p: p.to("meta"),
    "sparse": lambda p: p.to_sparse(),
    "sparse rows": lambda p: p.to_sparse_csr(),
    "quantised": lambda p: torch.quantize_per_tensor(p, 0.1, 0, torch.quint8),
    "nested": lambda p: torch.nested.nested_tensor(list(p)),
    "jagged": lambda p: torch.nested.nested_tensor(list(p), layout=torch.jagged),
    "complex": lambda p: p.to(torch.complex64),
    "bool": lambda p: p > 0.5,
    "objects": lambda p: np.array(p.tolist(), dtype=object),
    "texts": lambda p: [["a", "b", "c"]] * len(p),
    "endless": lambda p: iter(int, 1),
    "four bits": lambda p: torch.empty(4, 3, dtype=torch.float4_e2m1fn_x2),
    "huge": lambda p: p[:, :1].expand(-1, 10**12),
    "a number too large": lambda p: [[10**400, 0, 0]] * len(p),
    "nested without end": lambda p: loop(),
    "fake": lambda p: fake(),
}


def fake() -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.ones(4, 3) / 3


def loop() -> list[object]:
    inner: list[object] = []
    inner.append(inner)
    return inner


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("mode", ["probabilities", *exhaustive("label")])
def test_odd_answers_are_one_line(name: str, mode: str) -> None:
    def odd(images: Tensor) -> object:
        return ODD[name]((images.flatten(1)[:, :3] * 5).softmax(1))

    teacher = wrap_callable(odd, shape=(1, 2, 2), num_classes=3)
    teacher = wrap_callable(teacher, label_mode="label") if mode == "label" else teacher
    ledger = Ledger(10)
    oracle = Oracle(teacher, ledger)
    error = refused("teacher: expected", oracle, torch.rand(4, 1, 2, 2), error=TeacherError)
    assert len(str(error)) < 700
    assert (ledger.spent, ledger.failed) == (4, 4)


@pytest.mark.parametrize(
    "form",
    [
        lambda p: p.requires_grad_(),
        lambda p: torch.nn.Parameter(p),
        lambda p: p.as_subclass(Tagged),
        lambda p: p.T.contiguous().T,
        lambda p: torch._neg_view(-p),
        lambda p: p.double().numpy(),
        lambda p: p.tolist(),
    ],
)
def test_unusual_tensors_with_numbers_are_answers(
    form: Callable[[Tensor], object], tmp_path: Path
) -> None:
    truth, x = Service().__call__, torch.rand(4, 1, 2, 2)
    teacher = wrap_callable(lambda images: form(truth(images)), shape=(1, 2, 2), num_classes=3)
    answers = Oracle(teacher, Ledger(10), Journal(tmp_path / "j"))(x)
    assert type(answers) is Tensor
    assert not answers.requires_grad
    assert torch.equal(answers, truth(x))
