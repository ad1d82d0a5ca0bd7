"""With learn_from all, every paid answer is learnt from once."""

from typing import Any

import pytest
import torch
from toys import LinearTeacher, make_method, make_parts

from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


def begun(name: str = "dfme", **options: Any) -> Any:
    teacher = LinearTeacher(SPEC, mode="probabilities")
    parts = make_parts(teacher, 10_000, replay_steps=1, replay_capacity=10_000)
    return teacher, parts, make_method(name, parts, **options)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("form", ["forward", "central"])
@pytest.mark.parametrize(("name", "store"), [("dfme", {}), ("maze", {"store": "all"})])
def test_every_answer_that_is_paid_for_is_learnt_from_once(
    name: str, store: dict[str, str], form: str, reuse: bool
) -> None:
    options = {"directions": 3, "generator_steps": 2, "student_steps": 3, **store}
    reuse = reuse and form != "central"
    teacher, parts, method = begun(name, learn_from="all", form=form, reuse=reuse, **options)
    for step in (1, 2):
        method.step()
        assert (
            len(parts.students.replay)
            == teacher.images
            == parts.oracle.ledger.spent
            == step * method.cost
        )
    assert parts.students.steps == 2 * method.cost // 8 * 2, (
        "a step on each batch, and a replay step"
    )
    images, answers = zip(*parts.students.replay.batches(8), strict=True)
    assert torch.allclose(torch.cat(answers), teacher(torch.cat(images)), atol=1e-6)


def test_mazes_neighbours_are_held_beside_the_last_student_batch() -> None:
    _, parts, method = begun("maze", learn_from="all", directions=2, student_steps=3, store="last")
    method.step()
    assert len(parts.students.replay) == 8 * 3 + 8, (
        "the generator's images, two neighbours each, and a batch"
    )
