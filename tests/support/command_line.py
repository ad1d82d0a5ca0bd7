"""Command lines in this process, the modules of teachers that they name, and what a run leaves
behind.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dfme.cli.arguments import arguments_of
from dfme.cli.extract import INPUTS, checked, settled
from dfme.cli.main import main
from dfme.config.settings import Job, TeacherConfig
from dfme.config.values import Option, options_of
from dfme.methods import METHODS, SECTIONS
from dfme.teachers import KINDS

PARSED = '''
from __future__ import annotations

from enum import Enum
from pathlib import Path


class Colour(Enum):
    red = 1
    blue = 2


class Base:
    def __init__(self, url: str = "nowhere", retries: int = 3) -> None:
        self.url = url


class Classifier(Base):
    """A classifier.

    Args:
        weights: where its weights lie
        colour: the colour it likes
    """

    def __init__(self, weights: Path, shape=(1, 8, 8), colour: Colour = Colour.red,
                 names: list[str] | None = None, session=object(), **kwargs) -> None:
        super().__init__(**kwargs)


def make(scale: float, num_classes: int = 7, label_mode: str = "logits"):
    """Make one.

    Args:
        scale: factor of the scores
    """
    raise AssertionError("the command line only reads the signature")


def positional(images, /):
    return images


number = 3
'''
"""A module whose signatures the command line reads."""

RECIPE = """\
budget: 5k
teacher: {kind: torch, checkpoint: weights.pt, mean: ".5,.5,.5", shape: [3, 32, 32]}
method: {name: dfme, student_steps: 2}
student:
  weight-decay: 1e-4
wandb:
  mode: off
"""

SERVING = '''
from __future__ import annotations

import os
from pathlib import Path

import torch


class Linear:
    """A linear classifier that counts what it serves, and fails as a file tells it to.

    Args:
        scale: factor of the scores
    """

    num_classes = 4

    def __init__(self, scale: float = 1.0, shape: tuple[int, int, int] = (1, 6, 9), token: str = None):
        self.scale, self.shape, self.served = scale, shape, 0
        pixels = shape[0] * shape[1] * shape[2]
        self.weight = torch.randn(pixels, 4, generator=torch.Generator().manual_seed(0))

    def __call__(self, images):
        self.served += len(images)
        p_BK = (self.scale * (images - 0.5).flatten(1) @ self.weight).softmax(1)
        fault = Path("fault.txt").read_text() if Path("fault.txt").exists() and self.served > 40 else ""
        if fault == "raises":
            raise ConnectionError("the server\\nwent away")
        if fault == "ends the process":
            raise SystemExit(7)
        return {
            "one score": p_BK[:, 0], "eight classes": torch.cat([p_BK, p_BK], 1), "twice": 2 * p_BK,
            "nothing": None, "one image less": p_BK[1:], "logits": p_BK.log(), "infinity": p_BK / 0,
        }.get(fault, p_BK)


class Labels(Linear):
    label_mode = "label"

    def __call__(self, images):
        return super().__call__(images).argmax(1)


class Arrays(Linear):
    def __call__(self, images):
        return super().__call__(images).double().numpy()


class Lost(Linear):
    def __call__(self, images):
        return super().__call__(images) * float("nan")


def make(scale: float, num_classes: int = 4):
    """Make one.

    Args:
        scale: factor of the scores
    """
    teacher = Linear(scale, (3, 8, 8))
    return lambda images: teacher(images)


def answer(images):
    return images


def unreachable():
    raise OSError("no route to host")
'''
"""A module whose teachers answer, or fail as a file tells them to."""

SMALL = (
    "--method.batch-size 8 --method.student-steps 2 --method.latent-size 8 --student.arch cnn_small"
    " --student.replay-steps 0"
)


def parse_extract(words: Sequence[str]) -> Job:
    """The job that the words after ``extract`` describe."""
    asked = arguments_of(words, INPUTS)
    return checked(asked, settled(asked), lambda job: ())


def options_of_sections() -> list[Option]:
    """The options of every kind of teacher, of every method, and of the sections beside them."""
    sections: list[tuple[Any, str]] = [
        (TeacherConfig, "teacher."),
        *[(kind.options, "teacher.") for kind in KINDS.values()],
        *[(entry.config, "method.") for entry in METHODS.values()],
        *[(section, f"{name}.") for name, section in SECTIONS.items()],
    ]
    return [option for section in sections for option in options_of(*section)]


def parse(line: str) -> Job:
    return parse_extract(line.split())


def run(line: str) -> int:
    return main(shlex.split(line))


def summary(out: str = "run") -> dict[str, Any]:
    return json.loads(Path(out, "summary.json").read_text())  # type: ignore[no-any-return]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on stderr, after the log's: what went wrong."""
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("dfme: ")
    return last
