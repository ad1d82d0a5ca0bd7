"""What the oracle owes a teacher with defences: every answer on record shown once, in order."""

from pathlib import Path
from typing import Any

import pytest
import torch
from known_teachers import Counting
from torch import Tensor, nn

from dfme.errors import BudgetExhausted, Refused, Unanswered
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.run.evaluation import OwnersRecord
from dfme.spec import Teacher
from dfme.teachers.custom import wrap_callable

SHAPE = (1, 8, 8)


def taken(teacher: Any, **more: Any) -> Teacher:
    return wrap_callable(teacher, shape=SHAPE, num_classes=10, **more)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def failing(reason: type[Exception]) -> Any:
    def fail() -> None:
        raise reason("no answer", "time-out")

    return fail


def session(folder: Path, teacher: Counting, larger: int = 0) -> list[Tensor]:
    """One process: evaluation, a batch, one that is given up where the teacher fails, and what is
    left.
    """
    oracle = Oracle(
        taken(teacher, max_batch=4), Ledger(30 + larger, folder / "l"), Journal(folder / "j")
    )
    answers = [oracle(images(6), "evaluation"), oracle(images(8, 1), "generator")]
    try:
        answers.append(oracle(images(10, 2)))
    except BudgetExhausted:
        answers.append(oracle(images(oracle.ledger.remaining, 3)))
    oracle.close()
    return answers


@pytest.mark.parametrize("larger", [0, 40])
def test_a_batch_given_up_half_answered_moves_the_state_as_far_as_it_did(
    larger: int, tmp_path: Path
) -> None:
    """Of 30 images 8 are answered, 4 of the next 10, 4 four times in vain, and the last 2."""
    first = Counting(dict.fromkeys((4, 5, 6, 7), failing(Unanswered)))
    before = session(tmp_path, first)
    assert (first.answered, len(before[2])) == (8 + 4 + 2, 2)
    second = Counting()
    after = session(tmp_path, second, larger)
    assert (second.truths, second.honest) == (0, 0)
    if not larger:
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert (second.answered, second.witnessed) == (0, 14)
        assert str(second.state_dict()) == str(first.state_dict())


def test_what_is_refused_moves_nothing() -> None:
    teacher, plain = Counting({1: failing(Refused)}), Counting()
    answers = [Oracle(taken(counted), Ledger(20))(images(5)) for counted in (teacher, plain)]
    assert torch.equal(*answers)
    assert teacher.answered == 5


def test_scoring_asks_the_truth_and_is_counted() -> None:
    teacher = Counting()
    oracle = Oracle(taken(teacher), Ledger(20))
    before = str(teacher.state_dict())
    assert torch.equal(oracle(images(9), "evaluation"), teacher._scores(images(9)))
    assert (oracle.ledger.evaluation_queries, oracle.ledger.spent, teacher.answered) == (9, 0, 0)
    assert (
        OwnersRecord(taken(teacher)).preview(images(9)).argmax(1).tolist()
        == teacher._answers(images(9), 0).argmax(1).tolist()
    )  # type: ignore[union-attr]
    assert str(teacher.state_dict()) == before
    oracle(images(9))
    assert str(teacher.state_dict()) != before


def test_names_that_mean_something_else_to_a_teacher_without_info_are_left_alone() -> None:
    class Own(nn.Module):
        served, truth, defences, report = 3, torch.zeros(5), "none", "ok"

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10].softmax(dim=1)

    teacher = taken(Own().eval())
    oracle = Oracle(teacher, Ledger(20))
    assert len(oracle(images(3), "evaluation")) == 3
    assert ("teacher" in oracle.state_dict(), OwnersRecord(teacher).facts()) == (False, {})
