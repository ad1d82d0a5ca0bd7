"""Training of a network's last parts, on activations that its first parts give once."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dfme.compute.modules import Adam
from dfme.nets.public import PublicNet
from dfme.students.heads import Head
from dfme.students.losses import Distance

SHARE = 0.4
"""Share of the network's parts that are trained, the last ones (heuristic)."""

LR = 1e-3  # of AdamW
DECAY = 1e-2


class TailTraining:
    """The last parts of a network and its last layer, trained on what its first parts give.

    ``net``: with public weights, which stay as they are. ``head``: the last layer to begin with.
    ``probe``: a few images, by which it is seen whether the network takes up again from the
    activations of its middle; where it does not, a step computes it whole (``by_activations``).
    Batch statistics stay those of the public weights.
    """

    def __init__(self, net: PublicNet, head: Head, distance: Distance, probe_BCHW: Tensor) -> None:
        names = net.parts
        trained = names[len(names) - max(1, round(SHARE * len(names))) :]
        self._net = net
        self._first = trained[0]
        self._distance = distance
        tuned = copy.deepcopy(net).requires_grad_(requires_grad=False)
        for name in trained:
            tuned.backbone.get_submodule(name).requires_grad_()
        tuned.head.requires_grad_()
        with torch.no_grad():
            tuned.head.weight.copy_(head.weight_KD)
            tuned.head.bias.copy_(head.bias_K)
        self.tuned = tuned
        self._end = _without(tuned.backbone, names[: names.index(self._first)])
        self.by_activations = self._takes_up(probe_BCHW)
        self._optimizer = Adam(
            [parameter for parameter in tuned.parameters() if parameter.requires_grad],
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
        """Scores (B, K) from ``middle``, as the network is now."""
        if not self.by_activations:
            whole_BK: Tensor = self.tuned(middle)
            return whole_BK
        scores_BK: Tensor = self.tuned.head(self._end(middle.float()))
        return scores_BK

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
    def _takes_up(self, probe_BCHW: Tensor) -> bool:
        features_BD = self._net.features(probe_BCHW)
        try:
            again_BD = self._end(self._activations(probe_BCHW))
        except Exception:  # whatever a network raises that is entered in its middle
            return False
        same = again_BD.shape == features_BD.shape
        return same and torch.allclose(again_BD, features_BD, rtol=1e-3, atol=1e-4)

    def _activations(self, images_BCHW: Tensor) -> Tensor:
        """What the first of the trained parts is given."""
        given: list[Tensor] = []

        def stop(module: nn.Module, inputs: Sequence[Tensor]) -> None:
            given.append(inputs[0])
            raise _ReachedError

        module = self._net.backbone.get_submodule(self._first)
        handle = module.register_forward_pre_hook(stop)
        try:
            self._net.features(images_BCHW)
        except _ReachedError:
            pass
        finally:
            handle.remove()
        return given[0]


class _ReachedError(Exception):
    """A forward pass has come to the part that is trained."""


def _without(backbone: nn.Module, parts: Sequence[str]) -> nn.Module:
    """The same network, whose parameters it shares, with nothing in the place of these parts."""
    memo = {id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())}
    end = copy.deepcopy(backbone, memo)
    for part in parts:
        parent, _, name = part.rpartition(".")
        setattr(end.get_submodule(parent), name, nn.Identity())
    return end
