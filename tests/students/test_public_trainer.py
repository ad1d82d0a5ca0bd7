"""Students with public weights against owners that are made here: exact copies, stages, kills."""

import copy
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dfme.answers.reading import cut_to
from dfme.config.settings import ExtractConfig, StudentConfig
from dfme.errors import UserError
from dfme.nets.public import InputForm, Origin, PublicNet
from dfme.spec import ImageSpec, LabelMode
from dfme.students.features import FeatureCache
from dfme.students.heads import Head
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule
from dfme.students.public import AT_ONCE, TAIL_STEPS, PublicTrainer, feature_key
from dfme.students.replay import Replay
from dfme.students.tail import TailTraining

SPEC = ImageSpec((3, 8, 8))
FORM = InputForm((8, 8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
ORIGIN = Origin("small", "small.pt", "0" * 64)
WIDTH = 24
CLASSES = 4


@dataclass
class Spent:
    share: float = 0.0


def network(seed: int) -> PublicNet:
    """A small net of four parts, whose convolutions stand for weights that anybody has."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(32, WIDTH, 3, 2, 1), nn.ReLU()),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        torch.manual_seed(seed)
        net = PublicNet(backbone, WIDTH, CLASSES, SPEC, FORM, ORIGIN)
        nn.init.normal_(net.head.weight, std=8.0)
    return net.eval()


def tuned(owner: PublicNet) -> PublicNet:
    """An owner whose last convolution is no longer the public one."""
    other = copy.deepcopy(owner)
    with torch.no_grad():
        weight = other.backbone.get_submodule("2.0").weight
        weight += 0.4 * weight.std() * torch.randn(weight.shape, generator=torch.Generator())
    return other


def answers_of(owner: PublicNet, mode: LabelMode, images: Tensor) -> Tensor:
    with torch.no_grad():
        scores = owner(images)
    if mode.kind == "label":
        return scores.argmax(1)
    return scores if mode.kind == "logits" else cut_to(scores.softmax(1), mode)


def trainer_of(
    budget: int,
    mode: str,
    train: str = "auto",
    file: Path | None = None,
    logit_adjustment: float = 0.0,
) -> tuple[PublicTrainer, Spent]:
    student = StudentConfig(
        weights="here",
        train=train,  # type: ignore[arg-type]
        rounds=(0.5, 1.0),
        logit_adjustment=logit_adjustment,
    )
    config = ExtractConfig(budget=budget, student=student)
    net = network(seed=2)
    replay = Replay(budget, SPEC, torch.Generator().manual_seed(0))
    spent = Spent()
    cache = FeatureCache(file, feature_key(net), WIDTH)
    schedule = Schedule(config.schedule, spent)
    rng = torch.Generator().manual_seed(0)
    form = LabelMode.parse(mode)
    return PublicTrainer(config, [net], replay, schedule, rng, form, cache), spent


def images_of(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, *SPEC.shape, generator=torch.Generator().manual_seed(seed))


def spend(
    trainer: PublicTrainer, spent: Spent, budget: int, answer: Callable[[Tensor], Tensor]
) -> None:
    """Pay for the whole budget in batches of 10, and take the steps that are due in between."""
    for number, images in enumerate(images_of(budget).split(10), 1):
        trainer.learn(images, answer(images))
        spent.share = 10 * number / budget
        while trainer.steps_due:
            trainer.train_pending(3)


def copied(budget: int, mode: str, owner: PublicNet, train: str = "auto") -> PublicTrainer:
    trainer, spent = trainer_of(budget, mode, train)
    form = LabelMode.parse(mode)
    spend(trainer, spent, budget, lambda images: answers_of(owner, form, images))
    return trainer


def agreement(trainer: PublicTrainer, owner: PublicNet) -> float:
    images = images_of(400, seed=9)
    with torch.no_grad():
        same = trainer.delivered(images).argmax(1) == owner(images).argmax(1)
    return float(same.float().mean())


def test_a_head_on_public_weights_is_copied_exactly_by_slightly_more_answers_than_features() -> (
    None
):
    owner = network(seed=5)
    trainer = copied(40, "probabilities", owner)
    head = trainer.delivered.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        live = owner.features(images_of(40)).std(0) > 1e-6  # what is constant decides nothing
    (expected, received) = (
        (weight - weight.mean(0)).detach()[:, live] for weight in (owner.head.weight, head.weight)
    )
    torch.testing.assert_close(received, expected, rtol=0, atol=0.02 * float(expected.std()))
    assert agreement(trainer, owner) == 1
    assert [stage.name for stage in trainer.stages] == ["solve"]
    assert "last layer of its own" in trainer.outcome


def test_fewer_answers_than_features_copy_nothing_exactly() -> None:
    owner = network(seed=5)
    trainer = copied(20, "probabilities", owner, train="solve")
    assert agreement(trainer, owner) < 0.98
    assert trainer.stages[0].residual is None  # four answers held back tell nothing


def test_steps_of_the_last_blocks_are_planned_where_enough_answers_can_be_held_back() -> None:
    few, _ = trainer_of(79, "label")
    enough, _ = trainer_of(80, "label")
    assert few.plan.edges[-1] == 3 + 2  # batches of features, and a last layer in each round
    assert enough.plan.edges[-1] == few.plan.edges[-1] + 3 + TAIL_STEPS // AT_ONCE


def test_a_first_round_of_a_single_answer_leaves_the_student_as_it_is() -> None:
    trainer, spent = trainer_of(2, "label")
    before = copy.deepcopy(trainer.delivered.state_dict())
    for number, image in enumerate(images_of(2).split(1), 1):
        trainer.learn(image, torch.tensor([1]))
        spent.share = number / 2
        while trainer.steps_due:
            trainer.train_pending(1)
        is_fitted = not torch.equal(before["head.weight"], trainer.delivered.head.weight)
        assert is_fitted is (number == 2)
        assert len(trainer.stages) == number - 1


@pytest.mark.parametrize("mode", ["label", "probabilities:2", "top_k:2"])
def test_other_answers_are_fitted(mode: str) -> None:
    owner = network(seed=5)
    trainer = copied(300, mode, owner, train="head")
    constant = float(owner(images_of(400, seed=9)).argmax(1).bincount().max()) / 400
    assert agreement(trainer, owner) > max(0.8, constant + 0.1)
    assert [stage.name for stage in trainer.stages] == ["head"]


def test_last_blocks_are_trained_where_the_owners_are_others_and_taken_only_if_they_help() -> None:
    owner = tuned(network(seed=5))
    by_head = copied(400, "probabilities", owner, train="head")
    by_tail = copied(400, "probabilities", owner, train="tail")
    *_, tail = by_tail.stages
    assert tail.name == "tail"
    assert agreement(by_tail, owner) >= agreement(by_head, owner) - 0.02
    public = network(seed=2).backbone.state_dict()
    same = all(
        torch.equal(public[name], value)
        for name, value in by_tail.delivered.backbone.state_dict().items()
    )
    assert same != tail.taken


def test_labels_cannot_be_solved_for() -> None:
    with pytest.raises(UserError, match="answers scores"):
        trainer_of(40, "label", "solve")


def test_a_round_that_was_cut_short_comes_to_the_same_student() -> None:
    owner = tuned(network(seed=5))
    mode = LabelMode.parse("probabilities:3")
    whole = copied(200, str(mode), owner, train="tail")

    cut, spent = trainer_of(200, str(mode), "tail")
    for images in images_of(200).split(10):
        cut.learn(images, answers_of(owner, mode, images))
        spent.share += 0.05
        if spent.share < 0.99:
            while cut.steps_due:
                cut.train_pending(3)
    spent.share = 1.0
    cut.train_pending(40)  # into the training of the last blocks
    state = copy.deepcopy(cut.state_dict())

    again, spent = trainer_of(200, str(mode), "tail")
    again.load_state_dict(state)
    spent.share = 1.0
    while again.steps_due:
        again.train_pending(50)
    assert again.steps == whole.steps
    for name, value in whole.delivered.state_dict().items():
        assert torch.equal(again.delivered.state_dict()[name], value), name
    assert again.facts == whole.facts


def test_a_finished_student_with_tuned_blocks_is_taken_up_and_goes_on_from_public_weights() -> None:
    owner = tuned(network(seed=5))
    trainer = copied(200, "probabilities", owner, train="tail")
    again, spent = trainer_of(200, "probabilities", "tail")
    again.load_state_dict(copy.deepcopy(trainer.state_dict()))
    spent.share = 1.0
    x = images_of(8, seed=3)
    torch.testing.assert_close(again.delivered(x), trainer.delivered(x))
    public = network(seed=2)
    torch.testing.assert_close(again._features_of(x), public.features(x))


def test_features_are_computed_once_and_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "features.sqlite"
    computed = 0

    def compute(images: Tensor) -> Tensor:
        nonlocal computed
        computed += len(images)
        return images.flatten(1)[:, :WIDTH]

    images = images_of(6)
    expected = images.flatten(1)[:, :WIDTH]
    for key, total in (("a", 6), ("a", 6), ("b", 12)):
        features = FeatureCache(file, key, WIDTH)(images, compute)
        assert torch.equal(features, expected)
        assert computed == total
    with sqlite3.connect(file) as connection:  # a row of somebody else is computed again
        connection.execute("UPDATE features SET row = zeroblob(96) WHERE rowid <= 6")
    assert torch.equal(FeatureCache(file, "a", WIDTH)(images, compute), expected)
    assert computed == 18


@pytest.mark.parametrize("content", [b"no database at all" * 100, None])
def test_a_file_that_is_none_of_features_is_left_alone(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "features.sqlite"
    if content is None:
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE features (image, row, digest)")
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    images = images_of(2)
    features = FeatureCache(file, "a", 3)(images, lambda x: x.flatten(1)[:, :3])
    assert torch.equal(features, images.flatten(1)[:, :3])
    assert file.read_bytes() == before
    assert "features are not kept" in caplog.text


def test_the_last_parts_compute_from_activations_what_the_whole_network_does() -> None:
    net = network(seed=5)
    mode = LabelMode.parse("probabilities")
    head = Head(net.head.weight.detach(), net.head.bias.detach())
    images = images_of(5)
    tail = TailTraining(net, head, make_distance("kl", mode), images[:2], torch.zeros(1))
    assert tail.by_activations
    torch.testing.assert_close(tail.scores(tail.middle(images)), net(images), rtol=0.01, atol=0.05)
    before = copy.deepcopy(net.state_dict())
    tail.step(tail.middle(images), net(images).detach().softmax(1).flip(1), 1.0)
    torch.testing.assert_close(
        tail.scores(tail.middle(images)), tail.tuned(images), rtol=0.01, atol=0.05
    )
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    changed = [
        name
        for name, value in tail.tuned.state_dict().items()
        if not torch.equal(before[name], value)
    ]
    assert changed == ["backbone.2.0.weight", "backbone.2.0.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize("is_tuned", [False, True])
def test_scores_of_images_that_are_not_paid_for_are_the_students_and_features_are_kept(
    is_tuned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = network(seed=5)
    trainer, spent = trainer_of(100, "label", "tail" if is_tuned else "head", tmp_path / "f.db")
    spend(trainer, spent, 100, lambda x: answers_of(tuned(owner), LabelMode("label"), x))
    student = trainer.delivered
    images = images_of(70, seed=9)
    with torch.no_grad():
        expected = student(images)
    assert not is_tuned or any(stage.name == "tail" and stage.taken for stage in trainer.stages)
    torch.testing.assert_close(trainer.scores(images), expected[None])
    computed = []
    proper = PublicNet.features
    monkeypatch.setattr(
        PublicNet, "features", lambda net, x: computed.append(len(x)) or proper(net, x)
    )
    torch.testing.assert_close(trainer.scores(images), expected[None])
    assert bool(computed) == is_tuned


@pytest.mark.parametrize("mode", ["label", "probabilities"])
def test_logit_adjustment_lowers_the_fitted_layer_by_the_log_of_the_shares(mode: str) -> None:
    owner = network(seed=3)
    form = LabelMode.parse(mode)
    heads: list[Tensor] = []
    for strength in (0.0, 0.5):
        trainer, spent = trainer_of(200, mode, "head", logit_adjustment=strength)
        spend(trainer, spent, 200, lambda images: answers_of(owner, form, images))
        student = trainer.nets[0]
        assert isinstance(student, PublicNet)
        heads.append(student.head.bias.detach())
    answers = answers_of(owner, form, images_of(200))
    if mode == "label":
        share = answers.bincount(minlength=CLASSES) / len(answers)
    else:
        share = answers.mean(0)
    log_share = share.clamp_min(1e-3).log()
    torch.testing.assert_close(heads[0] - heads[1], 0.5 * (log_share - log_share.mean()))


def test_the_loss_of_the_last_blocks_has_the_adjustment() -> None:
    owner = tuned(network(seed=3))
    form = LabelMode.parse("probabilities")
    trainer, spent = trainer_of(400, "probabilities", "tail", logit_adjustment=1.0)
    spend(trainer, spent, 400, lambda images: answers_of(owner, form, images))
    plain, other = trainer_of(400, "probabilities", "tail")
    spend(plain, other, 400, lambda images: answers_of(owner, form, images))
    images = images_of(400, seed=9)
    with torch.no_grad():
        answered = answers_of(owner, form, images_of(400)).mean(0).log()
        moved = trainer.delivered.eval()(images).mean(0) - plain.delivered.eval()(images).mean(0)
    centred = (moved - moved.mean()) + (answered - answered.mean())
    assert centred.abs().max() < 0.5 * (answered - answered.mean()).abs().max()
