"""The network behind synthetic gradients: from what is free to see at an image to what an estimate would say there."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

WIDTH = 16


class GradientNet(nn.Module):
    """Predicts a gradient (N, C, H, W) from the point, its image, and the student's probabilities there.

    Four 3x3 convolutions, with the probabilities, through a linear layer, added to every pixel of the first one's
    output. Small, since its lessons are few and nearly all noise. The last layer starts at zero: a network that
    knows nothing predicts nothing.
    """

    def __init__(self, channels: int, classes: int) -> None:
        """``classes``: probabilities per image; 0 where there is no student to ask."""
        super().__init__()
        self.read = nn.Conv2d(2 * channels, WIDTH, 3, padding=1)
        self.classes = nn.Linear(classes, WIDTH) if classes else None
        self.mix = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.write = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(self.write.weight)
        assert self.write.bias is not None
        nn.init.zeros_(self.write.bias)

    def forward(self, point_NCHW: Tensor, image_NCHW: Tensor, chances_NK: Tensor) -> Tensor:
        features = self.read(torch.cat([point_NCHW, image_NCHW], dim=1))
        if self.classes is not None:
            features = features + self.classes(chances_NK)[:, :, None, None]
        features = relu(features)
        for mix in self.mix:
            features = features + relu(mix(features))
        gradient_NCHW: Tensor = self.write(features)
        return gradient_NCHW


KEPT = 4_096
"""Images whose paid estimates are kept to learn from, the latest."""
STEPS = 4
"""Steps of Adam after each paid estimate."""
AVERAGE = 0.97
"""Decay, per step, of the moving average of the weights, which predicts."""
RECENT = 0.9
"""Decay, per paid estimate, of the running mean square of the paid estimates."""


class Inputs(NamedTuple):
    """What is free to see at a point u: u itself, its image scaled to -1 to 1, the student's probabilities there."""

    point_NCHW: Tensor
    image_NCHW: Tensor
    chances_NK: Tensor


class Lessons:
    """A network and what it learns from.

    It learns by squared error on the estimates as they are: each has the gradient for its mean, so that
    E|p - estimate|^2 = |p - gradient|^2 + a variance that p has no part in, and the minimiser is the gradient's
    mean given the inputs. Estimates are divided by their running root mean square, so that one learning rate
    serves objectives of any size. Steps draw from the latest ``KEPT`` images; a moving average of the weights
    predicts, which takes out part of the noise that single steps put in.
    """

    def __init__(self, channels: int, lr: float, seed: int) -> None:
        self._channels = channels
        self._lr = lr
        self._seed = seed
        self._pupil: _Pupil | None = None
        self._inputs: Inputs | None = None
        self._estimates_NCHW = torch.empty(0)
        self._mean_square = torch.zeros(())

    def learn(self, inputs: Inputs, estimate_BCHW: Tensor, rng: torch.Generator) -> None:
        """Keep a batch of paid estimates, and take ``STEPS`` steps on batches of that size drawn from all kept."""
        pupil, batch = self._pupil_for(inputs), len(estimate_BCHW)
        kept = self._keep(inputs, estimate_BCHW.detach().float())
        for _ in range(STEPS):
            index_B = torch.randint(len(self._estimates_NCHW), (batch,), generator=rng, device=rng.device)
            targets_BCHW = self._estimates_NCHW[index_B] / self._length()
            pupil.step(Inputs(*(each[index_B] for each in kept)), targets_BCHW)

    @torch.no_grad()
    def recite(self, inputs: Inputs) -> Tensor:
        """A prediction (N, C, H, W) for every image, zeros where nothing was learnt.

        It is handed over as it is: a conditional mean, far shorter than an estimate with its noise, so that a
        generator's Adam makes small steps of it. Made as long as a paid estimate is, its errors, which do not
        average out from step to step as noise does, cost the student 2 points of agreement on digits (3 seeds).
        """
        prediction_NCHW: Tensor = self._pupil_for(inputs).average(*inputs)
        return prediction_NCHW * self._length()

    def state_dict(self) -> dict[str, Any]:
        if self._pupil is None or self._inputs is None:
            return {}
        return {
            "pupil": self._pupil.state_dict(),
            "inputs": list(self._inputs),
            "estimates": self._estimates_NCHW,
            "mean_square": self._mean_square,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Take over what ``state_dict`` gave, on ``device`` (None: where it lies)."""
        if not state:
            self._pupil, self._inputs = None, None
            return
        self._inputs = Inputs(*(each.to(device) for each in state["inputs"]))
        self._estimates_NCHW = state["estimates"].to(device)
        self._mean_square = state["mean_square"].to(device)
        self._pupil = _Pupil(self._channels, self._inputs, self._lr, self._seed)
        self._pupil.load_state_dict(state["pupil"])

    def _pupil_for(self, inputs: Inputs) -> _Pupil:
        """The network, made when the first batch shows how many classes there are, and where the inputs are."""
        if self._pupil is None:
            self._pupil = _Pupil(self._channels, inputs, self._lr, self._seed)
        elif self._estimates_NCHW.device != inputs.point_NCHW.device:
            self.load_state_dict(self.state_dict(), inputs.point_NCHW.device)
        return self._pupil

    def _keep(self, inputs: Inputs, estimate_BCHW: Tensor) -> Inputs:
        """Add a batch to what is kept, and to the running mean square, which starts at the first batch's."""
        mean_square = estimate_BCHW.square().mean()
        if self._inputs is None:
            kept, self._estimates_NCHW, self._mean_square = inputs, estimate_BCHW, mean_square
        else:
            kept = Inputs(*(torch.cat(pair)[-KEPT:] for pair in zip(self._inputs, inputs, strict=True)))
            self._estimates_NCHW = torch.cat([self._estimates_NCHW, estimate_BCHW])[-KEPT:]
            self._mean_square = self._mean_square.lerp(mean_square, 1 - RECENT)
        self._inputs = kept
        return kept

    def _length(self) -> Tensor:
        """Root mean square of a number in the paid estimates lately; never zero."""
        return self._mean_square.sqrt().clamp_min(torch.finfo(torch.float32).tiny)


class _Pupil:
    """The network with its optimiser and the moving average of its weights."""

    def __init__(self, channels: int, inputs: Inputs, lr: float, seed: int) -> None:
        device = inputs.point_NCHW.device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.net = GradientNet(channels, inputs.chances_NK.shape[1]).to(device)
        self.average = copy.deepcopy(self.net)
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr)

    def step(self, inputs: Inputs, targets_BCHW: Tensor) -> None:
        """One step of Adam on the squared error, which the average follows."""
        with torch.enable_grad():
            loss = mse_loss(self.net(*inputs), targets_BCHW)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, 1 - AVERAGE)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])
