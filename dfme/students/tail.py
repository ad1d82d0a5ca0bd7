"""Training of a network's last parts, on activations that its first parts give once."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from dfme.compute.modules import Adam
from dfme.nets.public import PublicNet
from dfme.students.heads import Head
from dfme.students.losses import Distance

SHARE = 0.4
"""Share of the network's parts that are trained, the last ones (heuristic)."""

LR = 1e-4
"""Of AdamW. Measured on an owner with tuned blocks, by 1,300 pictures: 1e-3 loses what the public
weights knew and does not come back in 200 steps, 3e-4 does, 1e-4 loses nothing
(docs/public_weights.md)."""

DECAY = 1e-2


class TailTraining:
    """The last parts of a network and its last layer, trained on what its first parts give.

    ``net``: with public weights, which stay as they are. ``head``: the last layer to begin with.
    ``probe``: a few images, by which it is seen whether the network can be entered in its middle;
    where it cannot, a step computes it whole (``by_activations``). Batch statistics stay those of
    the public weights. ``added_K``: what the loss adds to the network's scores
    (``class_prior.adjustment``).
    """

    def __init__(
        self,
        net: PublicNet,
        head: Head,
        distance: Distance,
        probe_BCHW: Tensor,
        added_K: Tensor,
    ) -> None:
        names = net.parts
        first = _first_trained(net)
        self._net = net
        self._before = names[first - 1] if first else None
        self._distance = distance
        self._added_K = added_K
        self._one_image = net.inputs(probe_BCHW[:1])
        self.tuned = copy.deepcopy(net).requires_grad_(requires_grad=False)
        for name in names[first:]:
            self.tuned.backbone.get_submodule(name).requires_grad_()
        self.tuned.head.requires_grad_()
        with torch.no_grad():
            self.tuned.head.weight.copy_(head.weight_KD)
            self.tuned.head.bias.copy_(head.bias_K)
        self.by_activations = self._can_enter(probe_BCHW)
        self.bytes_of_image = self.middle(probe_BCHW[:1]).nbytes
        self._optimizer = Adam(
            [parameter for parameter in self.tuned.parameters() if parameter.requires_grad],
            LR,
            weight_decay=DECAY,
            decoupled_weight_decay=True,
            fused=True,
        )

    @torch.no_grad()
    def middle(self, images_BCHW: Tensor) -> Tensor:
        """What scores are computed from: activations in float16, exact to 1 in 2,000, or images."""
        return self._activations(images_BCHW).half() if self.by_activations else images_BCHW

    def scores(self, middle: Tensor) -> Tensor:
        """Scores (B, K) from ``middle`` as the loss takes them, as the network is now."""
        whole = not self.by_activations
        features_BD = self.tuned.features(middle) if whole else self._end(middle.float())
        scores_BK: Tensor = self.tuned.head(features_BD)
        return scores_BK + self._added_K

    def step(self, middle: Tensor, answers: Tensor, rate: float) -> Tensor:
        """One step of AdamW; the loss of each image (B,). ``rate``: factor of the learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = LR * rate
        self._optimizer.zero_grad()
        losses_B = self._distance(self.scores(middle), answers)
        losses_B.mean().backward()
        self._optimizer.step()
        return losses_B.detach()

    @torch.no_grad()
    def _can_enter(self, probe_BCHW: Tensor) -> bool:
        """True if the last parts give the features of images from their activations alone."""
        if self._before is None:
            return False
        features_BD = self._net.features(probe_BCHW)
        try:
            again_BD = self._end(self._activations(probe_BCHW))
        except Exception:  # whatever a network raises that is entered in its middle
            return False
        same = again_BD.shape == features_BD.shape
        return same and torch.allclose(again_BD, features_BD, rtol=1e-3, atol=1e-4)

    def _end(self, activations: Tensor) -> Tensor:
        """Features (B, d) from what the first parts gave.

        The first parts see a single image, and what they give of it is replaced: so they cost
        little, and a network need not be taken to pieces.
        """

        def replaced(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            return activations

        with self._hooked(self.tuned, replaced):
            features_BD: Tensor = self.tuned.backbone(self._one_image)
        return features_BD

    def _activations(self, images_BCHW: Tensor) -> Tensor:
        """What the last of the first parts gives; nothing after it is computed."""
        given: list[Tensor] = []

        def stop(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            given.append(output)
            raise _ReachedError

        with self._hooked(self._net, stop), suppress(_ReachedError):
            self._net.features(images_BCHW)
        return given[0]

    @contextmanager
    def _hooked(self, net: PublicNet, hook: Callable[..., Tensor]) -> Iterator[None]:
        assert self._before is not None
        handle = net.backbone.get_submodule(self._before).register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()


def _first_trained(net: PublicNet) -> int:
    """The number of the first part that is trained: of those that have weights a share is."""
    with_weights = [
        number
        for number, name in enumerate(net.parts)
        if next(net.backbone.get_submodule(name).parameters(), None) is not None
    ]
    return with_weights[-max(1, round(SHARE * len(with_weights)))]


class _ReachedError(Exception):
    """A forward pass has come to the part that is trained."""
