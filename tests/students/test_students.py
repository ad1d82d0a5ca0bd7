"""The student's training: learning, modes, averages, precision, lone images; several nets as one; scheduled
optimisers.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toys import LinearTeacher, small_net

from dfme.config.settings import ExtractConfig, ScheduleConfig, StudentConfig
from dfme.nets import build_net
from dfme.spec import ImageSpec
from dfme.students.ensemble import Ensemble, Vote
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule, ScheduledOptimizer, make_optimizer
from dfme.students.replay import Replay
from dfme.students.trainer import StudentTrainer

SPEC = ImageSpec((1, 4, 4))
TEACHER = LinearTeacher(SPEC)


def trainer(config: StudentConfig, share: float = 0.0, precision: str = "fp32") -> StudentTrainer:
    """A trainer at a share of the budget, of a schedule that halves the rate at half of it."""
    rng = torch.Generator().manual_seed(0)
    replay = Replay(1_000, SPEC, rng) if config.replay_steps else None
    nets = [small_net(SPEC, seed=number) for number in range(config.count or 1)]
    distance, schedule = (
        make_distance("l1", TEACHER.label_mode),
        ScheduleConfig("steps", (0.5,), 0.5),
    )
    settings = ExtractConfig(student=config, schedule=schedule, precision=precision)
    return StudentTrainer(
        settings, nets, distance, replay, Schedule(schedule, SimpleNamespace(share=share)), rng
    )


def batch(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return images, TEACHER(images)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_falls(optimizer, precision):
    student = trainer(StudentConfig(optimizer=optimizer, lr=0.02), precision=precision)
    losses = [float(student.learn(*batch(64, seed % 4))["student_loss"]) for seed in range(80)]
    assert sum(losses[-8:]) < 0.5 * sum(losses[:8])
    assert student.net[1].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_the_forward_pass_alone_is_in_the_precision(precision, dtype):
    student = trainer(StudentConfig(), precision=precision)
    seen = []
    student.net.register_forward_hook(lambda net, inputs, scores: seen.append(scores.dtype))
    images, answers = batch(16)
    assert student.learn(images, answers)["student_loss"].dtype == torch.float32
    student.net(images)
    assert seen == [dtype, torch.float32]


def test_one_sgd_step_is_the_formula():
    student = trainer(StudentConfig(lr=0.1, momentum=0.0, weight_decay=0.0), share=0.5)
    images, answers = batch(16)
    reference = small_net(SPEC).train()
    make_distance("l1", TEACHER.label_mode)(reference(images), answers).mean().backward()
    assert student.learn(images, answers)["student_lr"] == 0.05
    for mine, theirs in zip(student.net.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs - 0.05 * theirs.grad)


@pytest.mark.parametrize("every", [1, 2])
def test_the_average_is_torchs_and_is_what_is_delivered(every):
    student = trainer(StudentConfig(average=0.9, average_every=every))
    average = get_ema_multi_avg_fn(0.9)
    theirs = AveragedModel(copy.deepcopy(student.net), multi_avg_fn=average, use_buffers=True)
    for seed in range(4):
        student.learn(*batch(16, seed))
        if seed % every == every - 1:
            theirs.update_parameters(student.net)
    assert student.delivered is not student.net
    for name, value in theirs.module.state_dict().items():
        assert torch.equal(student.delivered.state_dict()[name], value), name


def test_each_of_several_students_learns_as_it_would_alone():
    """One optimiser over the sum of losses: the same weights, to rounding, as each student on its
    own.
    """
    together = trainer(StudentConfig(count=2))
    alone = [trainer(StudentConfig()), trainer(StudentConfig())]
    alone[1].net.load_state_dict(small_net(SPEC, seed=1).state_dict())
    for seed in range(5):
        metrics = together.learn(*batch(16, seed))
        losses = [float(student.learn(*batch(16, seed))["student_loss"]) for student in alone]
        assert float(metrics["student_loss"]) == pytest.approx(sum(losses) / 2, rel=1e-5)
    for net, student in zip(together.nets, alone, strict=True):
        for mine, theirs in zip(
            net.state_dict().values(), student.net.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def test_the_vote_is_of_the_averages_where_there_are_any():
    student = trainer(StudentConfig(count=2, average=0.5))
    for seed in range(3):
        student.learn(*batch(16, seed))
    images = batch(8)[0]
    with torch.no_grad():
        vote = student.vote.eval()(images).exp()
        members = [net.eval()(images).softmax(dim=1) for net in student._averaged()]
    assert student.delivered is student._averaged()[0]
    torch.testing.assert_close(vote, (members[0] + members[1]) / 2)


def test_a_batch_that_is_not_kept_is_learnt_once_and_never_again():
    student = trainer(StudentConfig(replay_steps=3))
    student.learn(*batch(1), keep=False)
    assert (student.steps, len(student.replay)) == (1, 0)
    metrics = student.learn(*batch(8), keep=True)
    assert (student.steps, len(student.replay)) == (5, 8)
    assert metrics["student_loss"].isfinite()
    assert metrics["replay_loss"].isfinite()


@pytest.mark.parametrize(
    ("asked", "fast", "shape", "arch", "taken"),
    [
        ("auto", True, (1, 8, 17), "auto", "bf16"),
        ("auto", True, (3, 16, 16), "auto", "fp32"),
        ("auto", False, (1, 28, 28), "auto", "fp32"),
        ("auto", True, (1, 28, 28), "mine:Net", "fp32"),
        ("bf16", False, (1, 8, 8), "mine:Net", "bf16"),
        ("fp32", True, (1, 28, 28), "auto", "fp32"),
    ],
)
def test_bf16_is_taken_where_a_cpu_is_fast_in_it_and_images_are_large(
    asked, fast, shape, arch, taken
):
    config = ExtractConfig(student=StudentConfig(arch=arch), precision=asked)
    assert config.with_precision(shape, fast_bf16=fast).precision == taken


def test_a_resumed_student_keeps_the_precision_of_its_run():
    began = trainer(StudentConfig(), precision="bf16")
    resumed = trainer(StudentConfig())
    resumed.load_state_dict(began.state_dict())
    for student in (began, resumed):
        student.learn(*batch(16))
    assert resumed.precision == "bf16"
    assert all(map(torch.equal, began.net.parameters(), resumed.net.parameters()))


# Several nets as one: each member as if it were alone, and the vote by hand


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("cnn_small", (1, 8, 8)),
        ("cnn_medium", (3, 9, 13)),
        ("wrn16_1", (3, 8, 8)),
        ("lenet5", (1, 28, 28)),
    ],
)
def test_every_member_is_trained_as_if_it_were_alone(arch, shape):
    torch.manual_seed(1)
    alone = [
        build_net(arch, shape, 4).to(memory_format=torch.channels_last).double() for _ in range(2)
    ]
    ensemble = Ensemble(copy.deepcopy(alone))
    x_BCHW, labels_B = torch.rand(6, *shape).double(), torch.tensor([0, 1, 2, 3, 0, 1])
    scores_EBK = ensemble(x_BCHW)
    assert scores_EBK.shape == (2, 6, 4)
    sum(F.cross_entropy(scores_BK, labels_B) for scores_BK in scores_EBK).backward()
    for member, net in zip(ensemble.members, alone, strict=True):
        F.cross_entropy(net(x_BCHW), labels_B).backward()
        torch.testing.assert_close(
            [p.grad for p in member.parameters()], [p.grad for p in net.parameters()]
        )
        torch.testing.assert_close(member.state_dict(), net.state_dict())


class Fixed(nn.Module):
    """Answers every image with the logarithms of the same probabilities, shifted."""

    def __init__(self, probabilities: list[float], shift: float) -> None:
        super().__init__()
        self.scores_K = nn.Parameter(torch.tensor(probabilities).log() + shift)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.scores_K.expand(len(x_BCHW), -1)


def test_a_vote_is_the_mean_of_the_probabilities_as_logarithms():
    scores_BK = Vote([Fixed([0.5, 0.25, 0.25], 3.0), Fixed([0.1, 0.8, 0.1], -40.0)])(
        torch.rand(2, 1, 8, 8)
    )
    torch.testing.assert_close(scores_BK, torch.tensor([[0.3, 0.525, 0.175]]).log().expand(2, -1))
    torch.testing.assert_close(scores_BK.exp().sum(1), torch.ones(2))


# A scheduled optimiser: its rate is asked at every step; it takes up its state; it starts anew


def scheduled(net: nn.Module, factors: list[float], momentum: float = 0.0) -> ScheduledOptimizer:
    return ScheduledOptimizer(
        torch.optim.SGD(net.parameters(), 0.5, momentum=momentum), lambda: factors[0]
    )


def moved(net: nn.Linear, optimizer: ScheduledOptimizer) -> float:
    """How far the only weight moves by one step whose gradient is 1."""
    optimizer.zero_grad()
    assert net.weight.grad is None
    net.weight.sum().backward()
    before = net.weight.item()
    optimizer.step()
    return before - net.weight.item()


def test_each_step_is_taken_at_the_learning_rate_of_now() -> None:
    net, factors = nn.Linear(1, 1, bias=False), [1.0]
    nn.init.zeros_(net.weight)
    optimizer = scheduled(net, factors)
    assert moved(net, optimizer) == optimizer.lr == 0.5
    factors[0] = 0.25
    assert moved(net, optimizer) == optimizer.lr == 0.125
    optimizer.set_weight_decay(2.0)  # the weight is -0.625, so the gradient is 1 - 1.25
    assert moved(net, optimizer) == 0.125 * (1 - 1.25)


def test_momentum_is_in_the_state_and_can_be_forgotten() -> None:
    factors = [1.0]
    net, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer, resumed = scheduled(net, factors, 0.5), scheduled(other, factors, 0.5)
    moved(net, optimizer)
    other.load_state_dict(net.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert moved(other, resumed) == moved(net, optimizer) == 0.5 * 1.5
    optimizer.forget_moments()
    assert moved(net, optimizer) == 0.5


@pytest.mark.parametrize(
    ("name", "torchs", "momentum"),
    [
        ("adamw", torch.optim.AdamW, {}),
        ("adam", torch.optim.Adam, {}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_steps_are_those_of_torchs_optimisers(
    name: str, torchs: Any, momentum: dict[str, float]
) -> None:
    ours, theirs = nn.Linear(2, 1), nn.Linear(2, 1)
    theirs.load_state_dict(ours.state_dict())
    settings = {"lr": 0.5, "weight_decay": 0.1, **momentum}
    for net, optimizer in (
        (ours, make_optimizer(ours, StudentConfig(optimizer=name, **settings))),
        (theirs, torchs(theirs.parameters(), fused=True, **settings)),
    ):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(1, 2)).square().sum().backward()
            optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
