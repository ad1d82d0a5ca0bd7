"""Synthetic gradients: between the estimates that are paid for, a network that has learnt from them
predicts.

After Decoupled Neural Interfaces (Jaderberg et al., ICML 2017, arXiv 1608.05343), where nobody
waits for a gradient; here nobody pays for it.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, relu

from dfme.compute.modules import Adam, validate_like
from dfme.estimators.base import Estimate, Estimator, Objective, Squash
from dfme.spec import ImageSpec
from dfme.students.optimizers import ScheduledOptimizer

PAID_FIRST = 8
"""Estimates at the start that are all paid for: there must be something to predict from."""
KEPT = 4_096
"""Images whose paid estimates are kept to learn from, the latest; fewer of large ones."""
STEPS = 4
"""Steps of Adam after each paid estimate."""
AVERAGE = 0.97
"""Decay, per step, of the moving average of the weights, which predicts."""
RECENT = 0.9
"""Decay, per paid estimate, of the running mean square of the paid estimates."""


class Synthetic(Estimator):
    """Pays ``inner`` for every n-th estimate, learns from it, and predicts the others, which ask
    for nothing.

    A predicted estimate has ``queries`` 0, no columns of differences, and a ``value_B`` of zeros
    that means nothing: what the objective is cannot be known without asking. Its network's initial
    weights come from ``seed``, all other chance from ``rng``. Everything it holds follows the point
    to its device.

    It learns by squared error on the estimates as they are: each has the gradient for its mean, so
    that E|p - estimate|^2 = |p - gradient|^2 + a variance that p has no part in, and the minimiser
    is the gradient's mean given the inputs. Estimates are divided by their running root mean
    square, so that one learning rate serves objectives of any size. Steps draw from the latest
    ``KEPT`` images; a moving average of the weights predicts, which takes out part of the noise
    that single steps put in.

    Args:
        inner: what is paid; over images, it gives the gradient at the generator's output u every:
        one estimate in so many is paid for, besides the first ``PAID_FIRST``; 1 is ``inner`` itself
        lr: learning rate of the network's Adam squash: from u to the image spec: the images seed:
        of the network's initial weights
    """

    def __init__(
        self, inner: Estimator, every: int, lr: float, squash: Squash, spec: ImageSpec, seed: int
    ) -> None:
        self.inner = inner
        self._every = every
        self._lr = lr
        self._squash = squash
        self._spec = spec
        self._seed = seed
        self._kept = spec.at_once(KEPT)
        self._made = 0
        self._net: _TrainedNet | None = None
        self._inputs: Inputs | None = None
        self._estimates_NCHW = torch.empty(0)
        self._mean_square = torch.zeros(())

    def calls(self, batch: int, ahead: int = 0) -> list[int]:
        """The calls of ``inner`` where the estimate is paid for, none where it is predicted."""
        return self.inner.calls(batch) if self._pays(self._made + ahead) else []

    def estimate(self, objective: Objective, point_BCHW: Tensor, rng: torch.Generator) -> Estimate:
        """A paid estimate, which is learnt from, or a predicted one; ``cost`` says beforehand
        which.
        """
        paid = self._pays(self._made)
        self._made += 1
        if not paid:
            nothing_B = point_BCHW.new_zeros(len(point_BCHW))
            return Estimate(
                self.predict(objective, point_BCHW),
                nothing_B,
                nothing_B.new_empty(len(nothing_B), 0),
                0,
            )
        estimate = self.inner.estimate(objective, point_BCHW, rng)
        if self._every > 1:  # else nothing is ever predicted
            self._learn(self._read(objective, point_BCHW), estimate.grad_BCHW, rng)
        return estimate

    @torch.no_grad()
    def predict(self, objective: Objective, point_BCHW: Tensor) -> Tensor:
        """The network's gradient (B, C, H, W), of the objective that looks at ``scores`` alone.

        It is handed over as it is: a conditional mean, far shorter than an estimate with its noise,
        so that a generator's Adam makes small steps of it. Made as long as a paid estimate is, its
        errors, which do not average out from step to step as noise does, cost the student 2 points
        of agreement on digits (3 seeds).
        """
        inputs = self._read(objective, point_BCHW)
        prediction_BCHW: Tensor = self._net_for(inputs).average(*inputs)
        return (prediction_BCHW * self._length()).to(point_BCHW.dtype)

    def state_dict(self) -> dict[str, Any]:
        lessons: dict[str, Any] = {}
        if self._net is not None and self._inputs is not None:
            lessons = {
                "pupil": self._net.state_dict(),
                "inputs": list(self._inputs),
                "estimates": self._estimates_NCHW,
                "mean_square": self._mean_square,
            }
        return {"made": self._made, "lessons": lessons}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        """Load what ``state_dict`` gave, to ``device`` (None: as stored). ValueError for anything
        else.
        """
        self._made = state["made"]
        lessons = state["lessons"]
        if lessons == {}:
            return
        kept = max(1, len(lessons["estimates"]))
        classes = lessons["inputs"][-1].shape[1]
        like_NCHW = torch.empty(kept, *self._spec.shape, device="meta")
        like_NK = torch.empty(kept, classes, device="meta")
        likes = {"inputs": [like_NCHW, like_NCHW, like_NK], "estimates": like_NCHW}
        validate_like({**likes, "mean_square": torch.zeros(())}, lessons, "estimates")
        self._inputs = Inputs(*(tensor.to(device) for tensor in lessons["inputs"]))
        self._estimates_NCHW = lessons["estimates"].to(device)
        self._mean_square = lessons["mean_square"].to(device)
        self._net = _TrainedNet(self._inputs, self._lr, self._seed)
        self._net.load_state_dict(lessons["pupil"])

    def _pays(self, number: int) -> bool:
        return number < PAID_FIRST or number % self._every == 0

    @torch.no_grad()
    def _read(self, objective: Objective, point_BCHW: Tensor) -> Inputs:
        low, high = self._spec.bounds
        x_BCHW = self._squash(point_BCHW)
        chances_BK = point_BCHW.new_empty(len(point_BCHW), 0)
        if objective.scores is not None:
            chances_BK = objective.scores(x_BCHW).softmax(dim=1)
        scaled_BCHW = (2 * x_BCHW - (low + high)) / (high - low)
        return Inputs(point_BCHW.float(), scaled_BCHW.float(), chances_BK.float())

    def _net_for(self, inputs: Inputs) -> _TrainedNet:
        """The network, built when the first batch shows the number of classes and the device."""
        if self._net is None:
            self._net = _TrainedNet(inputs, self._lr, self._seed)
        elif self._estimates_NCHW.device != inputs.point_NCHW.device:
            self.load_state_dict(self.state_dict(), inputs.point_NCHW.device)
        return self._net

    def _learn(self, inputs: Inputs, estimate_BCHW: Tensor, rng: torch.Generator) -> None:
        """Store a batch of paid estimates, and take ``STEPS`` steps on such batches of all
        stored.
        """
        net = self._net_for(inputs)
        estimate_BCHW = estimate_BCHW.detach().float()
        mean_square = estimate_BCHW.square().mean()
        if self._inputs is not None:
            pairs = zip(self._inputs, inputs, strict=True)
            inputs = Inputs(*(torch.cat(pair)[-self._kept :] for pair in pairs))
            mean_square = self._mean_square.lerp(mean_square, 1 - RECENT)
            kept_NCHW = torch.cat([self._estimates_NCHW, estimate_BCHW])[-self._kept :]
        else:
            kept_NCHW = estimate_BCHW
        self._inputs = inputs
        self._estimates_NCHW = kept_NCHW
        self._mean_square = mean_square
        for _ in range(STEPS):
            index_B = torch.randint(
                len(kept_NCHW), (len(estimate_BCHW),), generator=rng, device=rng.device
            )
            net.step(
                Inputs(*(tensor[index_B] for tensor in inputs)), kept_NCHW[index_B] / self._length()
            )

    def _length(self) -> Tensor:
        """Root mean square of a number in the paid estimates lately; never zero."""
        return self._mean_square.sqrt().clamp_min(torch.finfo(torch.float32).tiny)


WIDTH = 16


class Inputs(NamedTuple):
    """Free inputs at a point u: u itself, its image scaled to -1 to 1, student probabilities."""

    point_NCHW: Tensor
    image_NCHW: Tensor
    chances_NK: Tensor


class GradientNet(nn.Module):
    """Predicts a gradient (N, C, H, W) from ``Inputs``.

    Four 3x3 convolutions, with the probabilities, through a linear layer, added to every pixel of
    the first one's output. The last layer starts at zero: a network that has learnt nothing
    predicts nothing.
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


class _TrainedNet:
    """The network with its optimiser and the moving average of its weights."""

    def __init__(self, inputs: Inputs, lr: float, seed: int) -> None:
        channels = inputs.point_NCHW.shape[1]
        device = inputs.point_NCHW.device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.net = GradientNet(channels, inputs.chances_NK.shape[1]).to(device)
        self.average = copy.deepcopy(self.net)
        self._optimizer = ScheduledOptimizer(Adam(self.net.parameters(), lr), lambda: 1.0)
        self._parts: dict[str, Any] = {
            "net": self.net,
            "average": self.average,
            "optimizer": self._optimizer,
        }

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
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
