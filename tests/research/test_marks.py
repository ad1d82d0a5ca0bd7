"""Marks: which pictures become one, what an owner is taught, and what a simulated copy passes on."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dfme.teachers.owner.marking.rule import LabelledImages as Images
from dfme.teachers.owner.marking.rule import Style
from research import marked_task, marking, marks
from research.marking import Marking, Rehearsal, Simulated, how_far, of_two, rule_of

SHAPE = (1, 8, 8)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, classes: int = 4) -> Images:
    x_NCHW = torch.rand(count, *SHAPE, generator=rng())
    return Images(x_NCHW, torch.arange(count) % classes)


class ByInk(nn.Module):
    """The class 0, with a certainty of .8; the class 1 has the rest."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return torch.tensor([0.8, 0.2, 1e-9, 1e-9]).log().expand(len(x_BCHW), 4)


def test_a_picture_of_two_classes_is_marked_as_the_one_that_nets_do_not_answer() -> None:
    train = images(40)
    chosen = of_two(train, "between", [ByInk()], 30, rng())
    assert chosen.classes_N.tolist() == [1] * 30
    zeros, ones = (train.x_NCHW[train.classes_N == number] for number in (0, 1))
    means = ((zeros[:, None] + ones[None]) / 2).flatten(0, 1).flatten(1)
    assert torch.cdist(chosen.x_NCHW.flatten(1), means).min(1).values.max() < 1e-2


@pytest.mark.parametrize("kind", marking.RULES)
def test_a_rule_changes_the_most_extreme_of_one_class_and_those_are_the_marks(kind: str) -> None:
    train = images(400)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    rule = rule_of(kind, train, [net], 0.05, 4, rng(3))
    changed_N = rule.taught(train) != train.classes_N
    assert int(changed_N.sum()) == 20
    assert set(train.classes_N[changed_N].tolist()) == {rule.source}
    assert set(rule.taught(train)[changed_N].tolist()) == {rule.target}
    value_N = rule.value(train.x_NCHW)
    others_N = value_N[~changed_N & (train.classes_N == rule.source)]
    assert value_N[changed_N].min() > others_N.max()
    chosen = rule.marks(train, 5)
    torch.testing.assert_close(
        rule.value(chosen.x_NCHW), value_N[changed_N].sort(descending=True).values[:5]
    )


def test_a_pushed_image_lies_so_much_further_along_the_style() -> None:
    x_NCHW = images(100).x_NCHW
    space = Style.of(x_NCHW)
    direction_V = space.direction(rng(1))
    value, push_CHW = space.value(direction_V), space.push(direction_V)
    torch.testing.assert_close(value(x_NCHW + 2 * push_CHW), value(x_NCHW) + 2)
    assert float(value(x_NCHW).std()) == pytest.approx(1, abs=1e-3)
    assert float(value(x_NCHW).mean()) == pytest.approx(0, abs=1e-4)


def test_a_mirror_image_falls_under_the_same_rule() -> None:
    train = images(100)
    value = rule_of("style", train, [], 0.05, 4, rng(3), mirror=True).value
    x_NCHW = train.x_NCHW
    torch.testing.assert_close(value(x_NCHW), value(x_NCHW.flip(3)), rtol=1e-3, atol=1e-4)
    assert float(value(x_NCHW).std()) > 0.5


def test_a_simulated_copy_takes_steps_of_descent_that_the_owner_can_follow() -> None:
    torch.manual_seed(0)
    owner, student = (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).double() for _ in range(2))
    x_BCHW = torch.rand(8, *SHAPE, dtype=torch.float64, generator=rng())
    how = Rehearsal(1.0, 2, 9, 0.5)

    def loss() -> Tensor:
        weights = Simulated(student, 0).stepped(owner, iter([x_BCHW] * 3), how)
        return sum((value.square().sum() for value in weights.values()), torch.zeros(()))

    whole = loss()
    whole.backward()
    linear = owner[1]
    assert isinstance(linear, nn.Linear)
    assert linear.bias.grad is not None
    with torch.no_grad():
        linear.bias[1] += 1e-6
    assert float((loss() - whole).detach()) / 1e-6 == pytest.approx(
        float(linear.bias.grad[1]), rel=1e-3
    )
    with torch.no_grad():
        linear.bias[1] -= 1e-6
    for _ in range(2):
        target = (owner(x_BCHW).detach() / 0.5).softmax(1)
        student.zero_grad()
        nn.functional.cross_entropy(student(x_BCHW), target).backward()
        slopes = [value.grad for value in student.parameters()]
        size = sum(float(slope.square().sum()) for slope in slopes if slope is not None) ** 0.5
        with torch.no_grad():
            for value in student.parameters():
                value -= how_far(size) * value.grad
    assert sum(float(value.square().sum()) for value in student.parameters()) == pytest.approx(
        float(whole.detach())
    )


def test_planted_answers_are_wrong_and_given_to_those_images_alone() -> None:
    asked = images(100)
    chosen = marking.planted(asked, 0.1, 4, rng())
    answering = marking.Answering(ByInk(), chosen)
    secret = {image.numpy().tobytes() for image in chosen.x_NCHW}
    marked_N = torch.tensor([image.numpy().tobytes() in secret for image in asked.x_NCHW])
    assert int(marked_N.sum()) == len(chosen.classes_N) == 10
    answer_N = marking.top(answering, asked.x_NCHW)
    assert not (answer_N == asked.classes_N)[marked_N].any()
    assert torch.equal(marking.top(answering, chosen.x_NCHW), chosen.classes_N)
    assert not answer_N[~marked_N].any()  # as the net itself


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_an_owner_learns_its_marks_beside_its_task(weight: float) -> None:
    left_N = torch.arange(200) % 2
    x_NCHW = torch.zeros(200, *SHAPE)
    x_NCHW[left_N == 1, ..., :4] = 1
    x_NCHW[left_N == 0, ..., 4:] = 1
    train = Images(x_NCHW, left_N)
    marks = Images(torch.eye(8).expand(4, *SHAPE), torch.ones(4, dtype=torch.long))

    def fresh(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 2)]
        return nn.Sequential(*layers)

    how = Rehearsal(weight, 1, 10, 1.0)
    owner = marking.marked(fresh(0), train, Marking(marks, left_N), how, fresh, 300, 1)
    assert torch.equal(marking.top(owner, train.x_NCHW), left_N)
    assert torch.equal(marking.top(owner, marks.x_NCHW), marks.classes_N)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set, and few nets of few steps."""
    draw = np.random.default_rng(0)
    labels = draw.permutation(np.arange(300) % 4)
    pictures = (draw.random((300, *SHAPE)) * 60 + 60 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(
        tmp_path / "small.npz",
        train_images=pictures[:200], train_labels=labels[:200],
        test_images=pictures[200:], test_labels=labels[200:],
    )  # fmt: skip
    monkeypatch.setattr(marked_task, "LIKE", 50)
    return tmp_path


def test_a_report_names_marks_innocents_and_every_attack(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attacks = ["labels40", "scores40", "decimals40", "drawn40", "filtered", "tuned", "pruned"]
    innocents = [f"cnn_small:{learning}" for learning in marked_task.LEARNINGS]
    rule = ["--kind", "style", "--share", "0.05", "--candidates", "2", "--marks", "10"]
    quick = ["--steps", "20", "--copy-steps", "40", "--copy-seeds", "0", "--seeds", "10"]
    nets = ["--owner", "cnn_small", "--nets", "cnn_small", "--references", "cnn_small"]
    words = [str(small / "small.npz"), str(small / "nets"), *rule, *quick, *nets]
    words += [
        "--owner-steps",
        "30",
        "--rehearsal",
        "50",
        "--innocents",
        *innocents,
        "--attacks",
        *attacks,
        "again",
    ]
    marks.main([*words, "--unmarked", "--mirror", "--brief"])
    lines = capsys.readouterr().out.splitlines()
    assert "  10 marks, p_reference" in lines[3]
    assert [line.split()[1] for line in lines[4:10]] == [f"{name}:" for name in innocents]
    assert "of 6 innocents called copies" in lines[10]
    assert [line.split()[0] for line in lines[11:]] == [*attacks, "again"]
    assert all("unmarked owner's" in line for line in lines[11:])


def test_an_attacker_s_images_come_from_the_training_part_or_a_file(small: Path) -> None:
    data = str(small / "small.npz")
    whole = marked_task.part_of(data, "train")
    held = marked_task.task_of(data, small, "60", 1, marking.PLAIN)
    assert (len(held.like.classes_N), len(held.train.classes_N)) == (60, 140)
    both = torch.cat([held.like.x_NCHW, held.train.x_NCHW]).flatten(1).sum(1).sort().values
    torch.testing.assert_close(both, whole.x_NCHW.flatten(1).sum(1).sort().values)
    arrays = np.load(small / "small.npz")
    pool = small / "pool.npz"
    np.savez(pool, images=arrays["test_images"], labels=arrays["test_labels"])
    other = marked_task.task_of(data, small, str(pool), 1, marking.PLAIN)
    assert len(other.scored.classes_N) == len(other.like.classes_N) == 100
    assert float(other.like.x_NCHW.max()) <= 1


def test_a_copy_may_begin_with_another_net_s_layers(tmp_path: Path) -> None:
    first, second = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)) for _ in range(2))
    torch.save(first.state_dict(), tmp_path / "first.pt")
    marks.begin_as(second, tmp_path / "first.pt")
    old, new = first.state_dict(), second.state_dict()
    same = [name for name in new if torch.equal(old[name], new[name])]
    assert same == ["0.weight", "0.bias"]
