"""A small task whose classes vary along a few directions, and a model of it, to be marked."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from dfme.nets import build_net
from dfme.nets.files import save_module
from dfme.teachers.local.weights import Card
from dfme.teachers.owner.marking import plan

SHAPE = (1, 8, 8)
CLASSES = 4


def small_task(path: Path) -> Path:
    """An .npz of 800 training and 300 test images of four classes."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(CLASSES, 64)) * 20 + 128
    ways = draw.normal(size=(CLASSES, 3, 64)) * 9
    labels = np.arange(1100) % CLASSES
    places = draw.normal(size=(1100, 3, 1))
    pixels = centres[labels] + (ways[labels] * places).sum(1) + draw.normal(size=(1100, 64)) * 4
    images = pixels.clip(0, 255).round().astype(np.uint8).reshape(-1, *SHAPE)
    np.savez(
        path, train_images=images[:800], train_labels=labels[:800],
        test_images=images[800:], test_labels=labels[800:],
    )  # fmt: skip
    return path


def small_model(task: Path, path: Path, bounds: tuple[float, float] = (0.0, 1.0)) -> Path:
    """A net for the task, which takes pixels within ``bounds``."""
    data = np.load(task)
    low, high = bounds
    x_NCHW = torch.from_numpy(data["train_images"]).float() / 255 * (high - low) + low
    classes_N = torch.from_numpy(data["train_labels"])
    torch.manual_seed(0)
    net = build_net("cnn_small", SHAPE, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    rng = torch.Generator().manual_seed(0)
    for _ in range(150):
        index_B = torch.randint(len(x_NCHW), (64,), generator=rng)
        net.zero_grad()
        functional.cross_entropy(net(x_NCHW[index_B]), classes_N[index_B]).backward()
        optimizer.step()
    card = Card(arch="cnn_small", shape=SHAPE, num_classes=CLASSES, bounds=bounds)
    save_module(path, net, card.to_metadata())
    return path


def few_steps(monkeypatch: pytest.MonkeyPatch, steps: int = 150) -> None:
    """So many steps of every copy, and twice as many of the owner."""
    monkeypatch.setattr(plan, "COPY_STEPS", steps)
    monkeypatch.setattr(plan, "TEACH_STEPS", 2 * steps)
