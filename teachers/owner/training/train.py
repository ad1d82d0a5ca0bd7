"""Train a teacher on labelled images: what the audited service would have done, with its own
data.
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from dfme.compute.device import choose_device, derived_seed
from dfme.compute.modules import SGD, Adam, Seldom
from dfme.data import ImageSet, load_dataset
from dfme.errors import Ref, UserError, flag
from dfme.nets import auto_net, build_net, check_net
from dfme.nets.files import save_module
from dfme.spec import ImageSpec
from dfme.teachers.local.pytorch import Normalise, TorchTeacher
from dfme.teachers.local.weights import Card
from dfme.teachers.options import TrainTeacherConfig, check_training

LOGGER = logging.getLogger("dfme")

EpochCallback = Callable[[dict[str, float]], None]

# where and how loudly a teacher is trained, not which one
NOT_IN_RECIPE = ("device", "evaluate_every", "out")


@dataclass(frozen=True)
class TrainedTeacher:
    """Weights' file, its card with the test ``accuracy``, and seconds of training."""

    path: Path
    card: Card
    seconds: float


def train_teacher(
    config: TrainTeacherConfig, progress: EpochCallback | None = None
) -> TrainedTeacher:
    """Train, score on the test part, and save. The last weights are kept: the test part chooses
    nothing.

    The same configuration, machine and thread count give the same file, byte for byte, on the CPU.
    After every epoch ``progress`` receives epoch, epochs, loss, train_accuracy, lr, seconds, and
    test_accuracy where it was scored; in a long epoch epoch, epochs, step, steps and seconds now
    and then. UserError for settings, data or a device that cannot work, and for a loss that
    diverges.
    """
    check_training(config)
    device = choose_device(config.device)
    _check_writable(config.path)
    if config.arch != "auto":
        check_net(config.arch)
    started = time.perf_counter()
    task = _task(config)
    with _repeatable(config, device):
        net = build_net(task.arch, task.spec.shape, task.num_classes).to(device)
        accuracy = _Training(config, task, net, device).run(progress)
    card = _card(config, task, accuracy)
    save_module(config.path, net, card.to_metadata())
    return TrainedTeacher(config.path, card, time.perf_counter() - started)


@dataclass(frozen=True)
class _Task:
    """The data, and the settings of the network that depend on them."""

    train: ImageSet
    test: ImageSet
    arch: str
    spec: ImageSpec
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _task(config: TrainTeacherConfig) -> _Task:
    """Load the data, and settle what the configuration leaves to it."""
    data = config.data
    option = Ref("data.download", True)
    load = partial(
        load_dataset, data.name, shape=data.shape, root=data.root, download=data.download
    )
    train = load("train", download_option=option)
    test = load("test", download_option=option)
    for part, images in (("training", train), ("test", test)):
        for note in images.notes:
            LOGGER.warning("%s images: %s", part, note)
    arch = auto_net(train.shape) if config.arch == "auto" else config.arch
    mean = config.mean
    std = config.std
    if mean is None or std is None:
        mean, std = channel_statistics(train)
    return _Task(train, test, arch, ImageSpec(train.shape), train.num_classes, mean, std)


class _Training:
    """One network, its data and its optimiser, for ``config.epochs`` epochs."""

    def __init__(
        self, config: TrainTeacherConfig, task: _Task, net: nn.Module, device: torch.device
    ) -> None:
        self.config = config
        self.train = task.train
        self.test = task.test
        self.train_labels = task.train.required_labels
        self.test_labels = task.test.required_labels
        self.net = net
        self.device = device
        self.teacher = TorchTeacher(net, task.spec, task.num_classes, task.mean, task.std, device)
        self.normalise = Normalise(task.mean, task.std, task.spec.shape[0], device)
        self.order, self.augmentation = (
            torch.Generator().manual_seed(derived_seed(config.seed, purpose))
            for purpose in ("order", "augmentation")
        )
        self.optimizer = _optimizer(config, net)
        self.steps = max(1, len(self.train) // config.batch_size)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=config.epochs * self.steps
        )

    def run(self, progress: EpochCallback | None) -> float:
        """All epochs; returns the accuracy on the test part."""
        started = time.perf_counter()
        every = self.config.evaluate_every
        accuracy = 0.0
        tell = progress or bool
        seldom = Seldom(tell)

        def say(to: Callable[[dict[str, float]], object], **more: float) -> None:
            to(
                {
                    "epoch": epoch,
                    "epochs": self.config.epochs,
                    **more,
                    "seconds": time.perf_counter() - started,
                }
            )

        for epoch in range(1, self.config.epochs + 1):
            metrics = self._epoch(partial(say, seldom))
            if not math.isfinite(metrics["loss"]):
                raise UserError(
                    f"the loss became {metrics['loss']} in epoch {epoch}; lower {flag('lr')}"
                )
            if epoch == self.config.epochs or (every and epoch % every == 0):
                accuracy = self._score()
                metrics["test_accuracy"] = accuracy
            say(tell, **metrics)
        return accuracy

    def _epoch(self, say: Callable[..., None]) -> dict[str, float]:
        """One pass over the training images in a new order; those that fill no batch wait for the
        next.
        """
        self.net.train()
        order = torch.randperm(len(self.train), generator=self.order)
        loss_sum = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device)
        images = 0
        for step, index in enumerate(torch.split(order, self.config.batch_size)[: self.steps]):
            say(step=step, steps=self.steps)
            labels_B = self.train_labels[index].to(self.device)
            loss, logits_BK = self._step(self.train.batch(index).to(self.device), labels_B)
            loss_sum += loss * len(index)
            right += (logits_BK.argmax(1) == labels_B).sum()
            images += len(index)
        return {
            "loss": float(loss_sum) / images,
            "train_accuracy": float(right) / images,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }

    def _step(self, x_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the logits without their graph."""
        if self.config.augmentation != "none":
            x_BCHW = shift(
                x_BCHW,
                self.config.padding,
                self.config.augmentation == "crop_flip",
                self.augmentation,
            )
        self.net.zero_grad()  # the optimiser's own imports torch's compiler, which takes seconds
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
        ):
            logits_BK = self.net(self.normalise(x_BCHW))
        loss = nn.functional.cross_entropy(
            logits_BK.float(), labels_B, label_smoothing=self.config.label_smoothing
        )
        loss.backward()
        self.optimizer.step()
        if self.config.schedule == "cosine":
            self.schedule.step()
        return loss.detach(), logits_BK.detach()

    def _score(self) -> float:
        """The share of the test part that the teacher gets right, asked as a teacher is."""
        right = 0
        for start in range(0, len(self.test), 500):
            part = slice(start, start + 500)
            labels_B = self.teacher(self.test.batch(part)).argmax(1).cpu()
            right += int((labels_B == self.test_labels[part]).sum())
        return right / len(self.test)


def shift(x_BCHW: Tensor, padding: int, flip: bool, rng: torch.Generator) -> Tensor:
    """Each image moved by up to ``padding`` pixels either way, on black, and mirrored by chance if
    ``flip``.

    ``rng`` lives on the CPU, so that the draws are the same on every device.
    """
    batch, _, height, width = x_BCHW.shape
    top_B, left_B = torch.randint(0, 2 * padding + 1, (2, batch), generator=rng)
    rows_BH = top_B[:, None] + torch.arange(height)
    columns_BW = left_B[:, None] + torch.arange(width)
    if flip:
        mirrored_B = torch.rand(batch, generator=rng) < 0.5
        columns_BW = torch.where(mirrored_B[:, None], columns_BW.flip(1), columns_BW)
    padded_BCHW = nn.functional.pad(x_BCHW, (padding,) * 4)
    images_B11 = torch.arange(batch, device=x_BCHW.device)[:, None, None]
    rows_BH1 = rows_BH[:, :, None].to(x_BCHW.device)
    columns_B1W = columns_BW[:, None, :].to(x_BCHW.device)
    return padded_BCHW[images_B11, :, rows_BH1, columns_B1W].permute(0, 3, 1, 2).contiguous()


def channel_statistics(data: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel over a data set, to four decimals; a deviation is at least
    0.01.
    """
    total_C, squares_C = torch.zeros(2, data.images.shape[1], dtype=torch.float64)
    for start in range(0, len(data), 2000):
        x_BCHW = data.batch(slice(start, start + 2000)).double()
        total_C += x_BCHW.sum((0, 2, 3))
        squares_C += x_BCHW.square().sum((0, 2, 3))
    count = data.images.numel() // data.images.shape[1]
    mean_C = total_C / count
    std_C = (squares_C / count - mean_C.square()).clamp(min=0).sqrt().clamp(min=0.01)
    return tuple(round(v, 4) for v in mean_C.tolist()), tuple(round(v, 4) for v in std_C.tolist())


def _card(config: TrainTeacherConfig, task: _Task, accuracy: float) -> Card:
    """Facts that the file states of itself."""
    recipe = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in NOT_IN_RECIPE
    }
    dataset = Path(config.data.name).name
    recipe["data"] = {"name": dataset, "shape": config.data.shape}
    return Card(
        arch=task.arch,
        shape=task.spec.shape,
        num_classes=task.num_classes,
        mean=task.mean,
        std=task.std,
        bounds=task.spec.bounds,
        class_names=task.train.class_names or None,
        dataset=dataset,
        accuracy=round(accuracy, 6),
        test_images=len(task.test),
        recipe=json.loads(json.dumps(recipe)),  # as it will be read back
    )


def _optimizer(config: TrainTeacherConfig, net: nn.Module) -> torch.optim.Optimizer:
    weights = net.parameters()
    decay = config.weight_decay
    if config.optimizer == "adam":
        return Adam(weights, config.lr, weight_decay=decay)
    return SGD(
        weights, config.lr, config.momentum, weight_decay=decay, nesterov=config.momentum > 0
    )


@contextlib.contextmanager
def _repeatable(config: TrainTeacherConfig, device: torch.device) -> Iterator[None]:
    """Seeded random states, deterministic convolutions and the threads asked for; all put back
    after.
    """
    threads = torch.get_num_threads()
    cudnn = torch.backends.cudnn
    previous = (cudnn.deterministic, cudnn.benchmark)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.manual_seed(derived_seed(config.seed, "weights"))
            torch.set_num_threads(config.threads or threads)
            cudnn.deterministic = True
            cudnn.benchmark = False
            yield
        finally:
            torch.set_num_threads(threads)
            cudnn.deterministic, cudnn.benchmark = previous


def _check_writable(path: Path) -> None:
    """Find out before the training, not after it, that the weights could not be written."""
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"its folder cannot be made: {error.strerror or error}", about=Ref("out", path)
        ) from error
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise UserError("cannot be written there", about=Ref("out", path))
