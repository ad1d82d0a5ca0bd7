"""A small teacher behind a white box, a stage of a student and a generator, and rows measured with them."""

from __future__ import annotations

import torch
from torch import nn

from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, StudentConfig, TeacherConfig
from dfme.methods.configs import DfmeConfig
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance
from dfme.teachers.local.pytorch import TorchTeacher
from dfme.teachers.local.white_box import TorchWhiteBox
from research.candidates import CANDIDATES
from research.measure import GradientRow, Sizes, measure
from research.truth import Stage

SPEC = ImageSpec((1, 8, 8), (-1.0, 1.0))

CPU = torch.device("cpu")

TEACHER = 12.0  # sharpness that makes its answers confident, as trained ones are

L1 = make_distance("l1", LabelMode("logits"))


def net(seed: int, sharpness: float = 3.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))
    made[-1].weight.data.mul_(sharpness)
    return made.eval()


def figures(box: TorchWhiteBox, stage: Stage, condition: str, *names: str, batches: int = 3) -> dict[str, GradientRow]:
    candidates = {name: CANDIDATES[name] for name in names}
    rows = measure(box, stage, condition, candidates, Sizes(batches, 64, 0))
    return {row.estimator: row for row in rows}


def job(**changes: object) -> Job:
    config = ExtractConfig(
        budget=200,
        student=StudentConfig(arch="cnn_small", lr=0.05, replay_steps=1, replay_batch=8),
        evaluation=EvaluationConfig(dataset="none"),
    )
    method = DfmeConfig(batch_size=8, student_steps=2, latent_size=16)
    return Job(config, TeacherConfig(), {}, "dfme", method, EstimatorConfig(**changes))


def white_box() -> TorchWhiteBox:
    return TorchWhiteBox(TorchTeacher(net(1, TEACHER), SPEC, 5))


def untrained() -> Stage:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        generator = Generator(16, SPEC)
    return Stage(0.0, 0, 0.2, net(2), generator)
