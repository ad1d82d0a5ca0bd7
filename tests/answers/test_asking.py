"""What is asked for an image, and what is made of the answers: by hand, and through every
method.
"""

from typing import Any

import pytest
import torch
from small_runs import run
from toys import LinearTeacher, make_method, make_parts

from dfme.answers.asking import SHIFTS, Reader
from dfme.config.sections import AnswersConfig
from dfme.errors import BudgetExhausted, UserError
from dfme.methods import METHODS
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode

SPEC = ImageSpec((1, 8, 8))
PROBABILITIES, LABEL = LabelMode("probabilities"), LabelMode("label")


def reader(mode: LabelMode = PROBABILITIES, classes: int = 3, **options: Any) -> Reader:
    return Reader(AnswersConfig(**options), mode, classes)


def test_an_image_comes_first_then_moved_by_a_pixel_with_its_edges_repeated() -> None:
    image = torch.arange(6.0).reshape(1, 1, 2, 3)
    queries = reader(repeat=2, vote=4).expand(torch.cat([image, 10 + image]))
    assert len(queries) == 2 * 2 * 4
    assert torch.equal(queries[:4], torch.cat([image, 10 + image] * 2))
    right, left, down = (queries[4 * number, 0].tolist() for number in (1, 2, 3))
    assert right == [[1, 2, 2], [4, 5, 5]]
    assert left == [[0, 0, 1], [3, 3, 4]]
    assert down == [[3, 4, 5], [3, 4, 5]]
    assert len(set(SHIFTS)) == 9 == len(reader(vote=9).expand(image))


def test_scores_are_averaged_and_of_labels_the_most_frequent_counts() -> None:
    answers = torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.4, 0.6], [0.2, 0.6, 0.2], [0.0, 1.0, 0.0]])
    averaged = torch.tensor([[0.5, 0.4, 0.1], [0.0, 0.7, 0.3]])
    torch.testing.assert_close(reader(repeat=2).read(answers), averaged, atol=1e-6, rtol=1e-6)
    assert reader(vote=2, learn="label").read(answers).tolist() == [0, 1]
    labels = torch.tensor([2, 1, 0, 1, 0, 0, 2, 2])  # of two images, each asked four times
    assert reader(LABEL, repeat=4).read(labels).tolist() == [2, 1], (
        "2 0 0 2 is a tie, 1 1 0 2 is none"
    )
    top = reader(LabelMode.parse("top_k:1"), learn="label")
    assert top.read(torch.tensor([[torch.nan, 0.9, torch.nan]])) == 1


def test_with_nothing_to_do_images_and_answers_are_what_they_were() -> None:
    plain, images, answers = reader(), torch.rand(2, 1, 8, 8), torch.rand(2, 3)
    assert plain.expand(images) is images
    assert plain.read(answers) is answers


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("label", {"learn": "kl"}, "--answers.learn kl: expected .* scores"),
    ("top_k:2", {"vote": 2}, "--answers.repeat and --answers.vote: expected .* answers top_k:2"),
    (
        "top_k:2",
        {"recover": "net", "knows": "mad"},
        "--answers.recover net: expected .* score of every class",
    ),
    (
        "label",
        {"recover": "table", "knows": "mad"},
        "--answers.recover table: expected .* answers label",
    ),
    (
        "logits",
        {"recover": "table", "knows": "lattice+modelguard_s"},
        "--answers.knows modelguard_s:.* from p",
    ),
    ("logits", {"recover": "table", "knows": "quota"}, "--answers.knows quota:.*leave it out"),
]


@pytest.mark.parametrize(("mode", "options", "said"), REFUSED)
def test_what_answers_do_not_allow_is_refused_by_name(
    mode: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        reader(LabelMode.parse(mode), **options)


@pytest.mark.parametrize("purpose", ["student", "generator", "seed", "check"])
def test_charged_purposes_pay_for_each_image_and_evaluation_is_asked_plainly(purpose: Any) -> None:
    teacher, images = LinearTeacher(SPEC), torch.rand(5, 1, 8, 8)
    oracle = Oracle(teacher, Ledger(63), reader=reader(repeat=2, vote=3))
    oracle(images[:0], purpose)
    mean = torch.stack([teacher(part) for part in reader(vote=3).expand(images).split(5)]).mean(0)
    teacher.images = 0
    assert torch.allclose(oracle(images, purpose), mean, atol=1e-6)
    assert teacher.images == oracle.ledger.spent_by_purpose[purpose] == 30
    assert (oracle.remaining, oracle.images_counted) == (5, 30)
    assert torch.equal(oracle(images, "evaluation"), teacher(images))
    oracle(images, purpose)
    assert (oracle.remaining, oracle.images_counted) == (0, 63)
    with pytest.raises(BudgetExhausted, match="6 images"):
        oracle(images[:1], purpose)


MODES = {"logits": "logits", "probabilities": "probabilities:3", "label": "label"}
TAKEN = {
    name: [kind for kind in METHODS[name].load().label_modes if kind in MODES] for name in METHODS
}
CASES = [
    (name, MODES[kinds[place % len(kinds)]]) for place, (name, kinds) in enumerate(TAKEN.items())
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_method_spends_its_budget_on_images_asked_twice(name: str, mode: str) -> None:
    teacher, budget = LinearTeacher(SPEC, mode=mode), 403
    learns_labels = METHODS[name].load().label_modes[-1] == "label"
    answers = AnswersConfig(repeat=2, learn="label" if learns_labels else "kl")
    parts = make_parts(
        teacher, budget, count=METHODS[name].students, replay_steps=1, answers=answers
    )
    method = make_method(name, parts)
    finished, listener = run(method, parts)
    assert finished
    assert teacher.images == parts.oracle.ledger.spent == 402, (
        "the rest is less than an image asked twice"
    )
    assert listener.evaluated[-1] == 402, "scored at the end"
    assert 2 * method.oracle.remaining == 0


@pytest.mark.parametrize(
    "steps", [{"steps": 30}, {"steps": 30, "rounds": (1,)}, {"steps": 30, "rounds": (0.5, 1)}]
)
def test_planned_steps_are_all_taken_though_a_rest_of_the_budget_is_not_spent(
    steps: dict[str, Any],
) -> None:
    parts = make_parts(LinearTeacher(SPEC), 103, answers=AnswersConfig(repeat=3, vote=3), **steps)
    assert run(make_method("static", parts), parts)[0]
    assert (parts.oracle.ledger.spent, parts.students.steps) == (99, 30)


def test_repeats_that_are_answered_alike_are_said_to_be_in_vain() -> None:
    lines: list[str] = []
    for answers in (torch.rand(2, 3).repeat(2, 1), torch.rand(4, 3)):
        asking_twice = reader(repeat=2)
        asking_twice.tell = lines.append
        for _ in range(2):
            asking_twice.read(answers)
    assert lines == [
        "warning: an image that is asked again is answered alike: --answers.repeat buys nothing"
    ]
