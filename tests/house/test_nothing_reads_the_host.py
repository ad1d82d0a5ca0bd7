"""No step of a method reads what an accelerator holds: each runs on tensors that have no values.

The cases come from the registries, so that what is added there is tried here.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any, get_args, get_type_hints

import pytest
import torch
from numerics import HostReadError, unreadable
from small_runs import small_options
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from toys import LinearTeacher, make_method, make_parts

from dfme.config.sections import QueriesConfig
from dfme.config.settings import StudentConfig
from dfme.estimators import synthetic
from dfme.estimators.base import DIRECTIONS, SPACES
from dfme.estimators.differences import FORMS
from dfme.methods import METHODS, disguide
from dfme.queries import sampler
from dfme.queries.programs import PROGRAMS
from dfme.run.evaluation import HoldOut
from dfme.spec import ImageSpec

REFUSED = (HostReadError, DataDependentOutputException, DynamicOutputShapeException)
BATCH = 32
"""Images that a method asks for at once."""


def choices(section: type, option: str) -> tuple[str, ...]:
    return get_args(get_type_hints(section)[option])


def case(method: str, **options: Any) -> Any:
    """``options``: of a method and its estimator, or one of the sections, or the answers'
    ``mode``.
    """
    return pytest.param(method, options, id=f"{method} {options}")


def in_turn(number: int, kinds: Iterable[str]) -> list[str]:
    """Labels, where a method takes them, and one kind of scores, another for each method."""
    scores = [kind for kind in kinds if kind != "label"]
    return [scores[number % len(scores)], *({"label"} & {*kinds})]


EVERYTHING = {"replay_steps": 1, "average": 0.9, "augment": "both", "optimizer": "adam"}
METHOD_CASES = [
    *[
        case(name, mode={"top_k": "top_k:2"}.get(kind, kind), student=EVERYTHING)
        for number, (name, entry) in enumerate(METHODS.items())
        for kind in in_turn(number, entry.load().label_modes)
    ],
    case("maze", partial_data="procedural", seed_images=4, critic_steps=1),
    case("dfms", adversarial=1.0),
    case("dfms", proxy_share=0.0),
    case("dfme", reuse=True),
    case("dfme", learn_from="all", queries={"base": "procedural", "procedural": 0.5}),
    case("maze", learn_from="all"),
    case("static", mode="probabilities:4"),
    case("static", student={"steps": 100, "rounds": (1.0,)}),
    case("static", student={"steps": 100}),
    *[
        case("static", student={"replay_steps": 1, "augment": how})
        for how in choices(StudentConfig, "augment")
    ],
]
# Every way in one space; the exhaustive tier has every space, and the other cases too.
IN_SPACES = [
    [
        case(
            "dfme",
            form=form,
            **({"space": "lattice", "step": 1.0} if space == "lattice" else {"space": space}),
            **way,
        )
        for space, form in zip(SPACES, itertools.cycle(FORMS))
    ]
    for way in [{"kind": "finite_difference"}, {"kind": "synthetic"}]
]
ESTIMATOR_CASES = [cases.pop(number % len(cases)) for number, cases in enumerate(IN_SPACES)]
QUERY_CASES = [
    *[case("dfme", direction=direction, directions=3) for direction in DIRECTIONS],
    *[case("dfme", objective=objective) for objective in ("l1", "kl")],
    *[case("procedural", queries={"programs": (program,)}) for program in PROGRAMS],
    *[
        case("static", queries=drawn, student={"replay_steps": 1})
        for drawn in [
            {"procedural": 0.5, "programs": ("gradients", "noise")},
            {"base": "procedural"},
            {"evolve": 0.5},
        ]
    ],
    *[
        case("static", queries={"pool": 2, "choose": by, "balance": balance})
        for by, balance in zip(choices(QueriesConfig, "choose"), itertools.cycle((True, False)))
    ],
]


def steps(name: str, options: dict[str, Any]) -> None:
    """Two steps of a method around a toy teacher."""
    mode = options.pop("mode", "probabilities")
    queries = QueriesConfig(**{"programs": ("noise",), **options.pop("queries", {})})
    student = options.pop("student", {})
    teacher = LinearTeacher(ImageSpec((3, 8, 8), levels=256), mode=mode)
    parts = make_parts(teacher, 10**6, queries=queries, count=METHODS[name].students, **student)
    parts = dataclasses.replace(parts, hold_out=HoldOut(teacher.label_mode, teacher.spec).hold_out)
    few = small_options(name, batch_size=BATCH, gan_steps=1, student_steps=1)
    method = make_method(name, parts, **{**few, **options})
    method.prepare()
    for _ in range(2):
        method.step()
        method.students.train_pending(2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "READY", 4)
    monkeypatch.setattr(sampler, "PARENTS", 64)
    monkeypatch.setattr(synthetic, "PAID_FIRST", 1)
    monkeypatch.setattr(disguide, "SETTLING", 1)


OTHERS = [
    pytest.param(*each.values, marks=pytest.mark.exhaustive, id=each.id)
    for each in (*itertools.chain(*IN_SPACES), *QUERY_CASES)
]


@pytest.mark.parametrize(("name", "options"), [*METHOD_CASES, *ESTIMATOR_CASES, *OTHERS])
def test_a_step_reads_nothing(name: str, options: dict[str, Any]) -> None:
    with unreadable():
        steps(name, dict(options))


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "tolist": lambda x: x.sum(dim=1).tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: x.sum().__array__(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "bincount": lambda x: torch.bincount(x.argmax(dim=1)),
    "unique": lambda x: x.unique(),
    "loop": lambda x: [float(value) for value in x.flatten()],
    "send": lambda x: x + torch.tensor([1.0], device=x.device),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_method_that_reads_is_caught(
    read: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    static = METHODS["static"].load()
    learn = static.learn

    def reading(method: Any, x_BCHW: torch.Tensor, answers: torch.Tensor, keep: bool = True) -> Any:
        read(answers)
        return learn(method, x_BCHW, answers, keep)

    monkeypatch.setattr(static, "learn", reading)
    with unreadable(), pytest.raises(REFUSED):
        steps("static", {})
