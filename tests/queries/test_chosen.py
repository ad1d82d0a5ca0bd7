"""Choice among all of a pool that was not asked, once a round: what is chosen, by whom, and when."""

import time
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from command_line import parse_extract
from torch import Tensor

from dfme.compute.device import Streams
from dfme.config.sections import QueriesConfig
from dfme.errors import UserError
from dfme.queries.chosen import ChosenPool, k_centre
from dfme.queries.pool import Pool
from dfme.queries.programs import ProceduralImages, sketching
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 2, 2), levels=256)
IMAGES, BATCH = 40, 5
ROUNDS = (0.25, 0.5, 1.0)


def numbered(count: int = 100) -> Pool:
    """Images that are their own number, in 255ths."""
    number_N = torch.arange(count, dtype=torch.uint8)
    return Pool("numbered", number_N.view(-1, 1, 1, 1).repeat(1, 1, 2, 2), SPEC)


def numbers(images: Tensor) -> list[int]:
    return images[:, 0, 0, 0].mul(255).round().long().tolist()


class Students:
    """Two classes; the less sure of an image, the nearer its number is to ``boundary``."""

    keeps_features = False

    def __init__(self, boundary: float = 50.5) -> None:
        self.boundary = boundary
        self.steps = 0
        self.scored = 0
        self.plan = SimpleNamespace(rounds=ROUNDS)
        self.config = SimpleNamespace(rounds=ROUNDS)
        self.schedule = SimpleNamespace(share=0.0)

    def scores(self, x_NCHW: Tensor) -> Tensor:
        self.scored += len(x_NCHW)
        side_N = (x_NCHW[:, 0, 0, 0] * 255 - self.boundary) / 10
        return torch.stack([-side_N, side_N], dim=1)[None]


def choosing(students: Students, source: Any = None, **queries: Any) -> ChosenPool:
    config = QueriesConfig(**{"pool": "all", "choose": "margin", "balance": False, **queries})
    streams = Streams(0, torch.device("cpu"))
    students_ = cast(Any, students)
    return ChosenPool(source or numbered(), SPEC, config, students_, streams, IMAGES, BATCH)


def drawn(chosen: ChosenPool, students: Students, count: int) -> list[int]:
    """Batches of so many images in all, as a run pays for them."""
    asked = []
    for _ in range(count // BATCH):
        asked += numbers(chosen.draw(BATCH, torch.Generator()))
        students.schedule.share += BATCH / IMAGES
    return asked


@pytest.mark.parametrize("choice", ["margin", "entropy"])
def test_a_round_asks_what_the_students_are_least_sure_of(choice: str) -> None:
    students = Students()
    chosen = choosing(students, choose=choice)
    first = drawn(chosen, students, 10)
    assert students.scored == 0, "the first round is random"
    students.steps = 7
    second = drawn(chosen, students, 10)
    assert students.scored == 90, "all that was not asked, once"
    left = sorted({*range(100)} - {*first}, key=lambda number: abs(number - students.boundary))
    assert sorted(second) == sorted(left[:10])
    students.steps = 14
    students.boundary = 20.5
    third = drawn(chosen, students, 20)
    assert students.scored == 90 + 80
    left = sorted({*left} - {*second}, key=lambda number: abs(number - students.boundary))
    assert sorted(third) == sorted(left[:20])


def test_classes_take_turns_where_the_choice_is_balanced() -> None:
    students = Students(boundary=79.5)
    chosen = choosing(students, choose="random", balance=True)
    drawn(chosen, students, 10)
    students.steps = 1
    second = drawn(chosen, students, 10)
    assert sum(number > 79 for number in second) == 5, "of a fifth of the pool"


def test_centres_are_far_from_what_was_asked_and_from_each_other() -> None:
    students = Students()
    chosen = choosing(students, choose="kcenter")
    asked = drawn(chosen, students, 10)
    students.steps = 1
    points_N = students.scores(torch.arange(100).view(-1, 1, 1, 1) / 255)[0].softmax(1).double()
    students.scored = 0
    for number in drawn(chosen, students, 10):
        distance_N = torch.cdist(points_N, points_N[asked]).amin(dim=1)
        assert distance_N[number] == pytest.approx(float(distance_N.max()), abs=1e-6)
        asked.append(number)
    assert students.scored == 100, "what was asked is looked at, too"


def test_the_greedy_radius_is_at_most_twice_the_best() -> None:
    points_N2 = torch.rand(12, 2, generator=torch.Generator().manual_seed(0))
    chosen = k_centre(points_N2, torch.tensor([3]), 2)

    def radius(centres: list[int]) -> float:
        return float(torch.cdist(points_N2, points_N2[centres]).amin(dim=1).max())

    best = min(radius([3, *pair]) for pair in combinations(range(12), 2))
    assert best <= radius([3, *chosen.tolist()]) <= 2 * best


def test_no_point_is_chosen_twice_where_all_are_alike() -> None:
    assert sorted(k_centre(torch.zeros(5, 2), torch.tensor([2]), 4).tolist()) == [0, 1, 3, 4]


def test_without_candidates_the_pool_is_asked_at_random() -> None:
    students, plain = Students(), numbered()
    students.steps = 1
    asked = drawn(choosing(students, pool=1), students, IMAGES)
    assert students.scored == 0
    assert asked == numbers(plain.draw(IMAGES, Streams(0, torch.device("cpu"))["pool"]))


def test_a_pool_without_an_end_is_drawn_from_as_it_is() -> None:
    students = Students()
    students.steps = 1
    endless = ProceduralImages(SPEC, ("noise",))
    assert len(choosing(students, endless).draw(BATCH, torch.Generator())) == BATCH
    assert students.scored == 0


def test_a_choice_is_resumed_and_not_made_again() -> None:
    one, other = Students(), Students()
    chosen, again = choosing(one), choosing(other)
    drawn(chosen, one, 10)
    one.steps = other.steps = 3
    drawn(chosen, one, 5)
    state = chosen.state_dict()
    rest = drawn(chosen, one, 5)
    other.schedule.share = 15 / IMAGES
    other.boundary = 0.0  # who chose again would ask others
    again.load_state_dict(state)
    assert drawn(again, other, 5) == rest
    assert other.scored == 0


@pytest.mark.parametrize(("kept", "passes", "choice"), [(False, 2, "margin"), (True, 1, "kcenter")])
def test_a_rehearsal_owes_the_time_of_choosing(kept: bool, passes: int, choice: str) -> None:
    """3,000 images of 1 ms before two rounds, or once where features are kept: over 40 images."""
    students = Students()
    students.keeps_features = kept
    proper = students.scores

    def slow(x_NCHW: Tensor) -> Tensor:
        time.sleep(1e-3 * len(x_NCHW))
        return proper(x_NCHW)

    students.scores = slow  # type: ignore[method-assign]
    large = Pool("large", torch.zeros(3000, 1, 2, 2), SPEC)
    chosen = choosing(students, large, choose=choice)
    with sketching() as sketch:
        chosen.draw(20, torch.Generator())
        assert students.scored < 500
        assert 1.3 * passes < sketch.owed < 3 * passes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--queries.pool 4 --queries.choose kcenter",
            "--queries.choose: expected --queries.pool all",
        ),
        ("--queries.pool all", "--queries.pool: expected --method.pool as well"),
        ("--queries.pool all --method.pool digits", "--queries.pool: expected --student.rounds"),
        (
            "--queries.pool 4 --method.pool digits",
            "--queries.pool: expected all, or 1, with --method",
        ),
        (
            "--recipe frugal --queries.choose random --method.pool digits",
            "only with --queries.pool all",
        ),
        (
            "--method.pool digits --queries.programs pen",
            "--queries.programs: takes effect only with",
        ),
        *(
            (
                "--recipe frugal --queries.pool all --method.pool digits --queries.choose kcenter "
                f"--queries.balance {balance}",
                "--queries.balance: takes effect only with --queries.choose entropy,margin,random",
            )
            for balance in ("true", "false")
        ),
    ],
)
def test_what_rules_each_other_out_is_said_before_the_first_query(flags: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_extract(f"--method.name procedural {flags}".split())
    assert message in str(refused.value)


def test_a_pool_that_is_too_small_is_refused(tmp_path: Path) -> None:
    from dfme.methods.configs import ProceduralConfig
    from dfme.methods.procedural import Procedural

    config = ProceduralConfig(pool="digits")
    spec = ImageSpec((1, 8, 8))
    with pytest.raises(UserError, match=r"the budget asks for 100,000, each once"):
        Procedural.open_pool(config, spec, 100_000)
    assert Procedural.open_pool(config, spec, 100) is not None
    assert Procedural.open_pool(ProceduralConfig(), spec, 100_000) is None
