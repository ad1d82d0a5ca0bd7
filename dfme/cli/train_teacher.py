"""``run.py train-teacher``: what is checked before torch loads, and what is shown while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dfme.config.ranges import Problem
from dfme.run.checks import dataset_problems, device_problems, net_problems


class TrainingData(Protocol):
    """The part of a training's configuration that names its data."""

    @property
    def name(self) -> str: ...
    @property
    def root(self) -> str: ...
    @property
    def download(self) -> bool: ...


class Training(Protocol):
    """The part of a training's configuration that is checked here."""

    @property
    def data(self) -> TrainingData: ...
    @property
    def arch(self) -> str: ...
    @property
    def device(self) -> str: ...


def find_problems(config: Training) -> Iterator[Problem]:
    """Unknown data, architecture or device."""
    yield from dataset_problems("data.name", config.data.name, config.data.root, config.data.download)
    yield from net_problems("arch", config.arch)
    yield from device_problems(config.device)


def show_epoch(metrics: dict[str, float]) -> None:
    """One line per epoch on stderr; on a terminal it is written over the last one."""
    named = {"loss": "loss {:.4f}", "train_accuracy": "train {:.1%}", "test_accuracy": "test {:.1%}"}
    parts = [text.format(metrics[name]) for name, text in named.items() if name in metrics]
    epoch, epochs = metrics["epoch"], metrics["epochs"]
    line = f"epoch {epoch:.0f}/{epochs:.0f}  {'  '.join(parts)}  {metrics['seconds']:.0f} s"
    terminal = sys.stderr.isatty()
    sys.stderr.write(f"\r{line:<78}" + ("\n" if epoch >= epochs else "") if terminal else line + "\n")
    sys.stderr.flush()


def result(path: Path, accuracy: float | None, seconds: float) -> str:
    """The last line: where the weights are, and how good they are."""
    scored = "" if accuracy is None else f"accuracy {accuracy:.2%} on the test part, "
    return f"{path}: {scored}{seconds:.0f} s"
