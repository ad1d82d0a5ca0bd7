"""The student's training: learning, modes, averages, precision, lone images."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toys import LinearTeacher, small_net

from dfme.config.settings import ExtractConfig, ScheduleConfig, StudentConfig
from dfme.spec import ImageSpec
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule
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
    spent = Schedule(schedule, SimpleNamespace(share=share))
    return StudentTrainer(settings, nets, distance, replay, spent, rng)


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
    metrics = student.learn(images, answers)
    assert metrics["student_lr"] == 0.05
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
    for own, other in zip(began.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(own, other)
