"""Adaptive misinformation: a gate, and what is answered to images that it takes for strange."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dfme.data import load_dataset
from dfme.errors import UserError
from dfme.spec import Teacher
from dfme.teachers.defences.defence import Defence, UntrainedNet, generator

RIDGE = 1e-3  # of the identity, added to the covariance of features


class MisinformDefence(Defence):
    """y = (1 - a) p + a wrong, a = sigmoid(nu (tau - s)), s within 0 and 1: how much the image is at home.

    Source: "Defending Against Model Stealing Attacks with Adaptive Misinformation", as ModelGuard's repository has it;
    permutations by key and image, which no renaming undoes, are ours.
    """

    def __init__(self, options: Any, teacher: Teacher) -> None:
        super().__init__(options, teacher)
        seed = int.from_bytes(self.draw(b"net")[:7], "big")
        self._net = UntrainedNet(teacher.spec, self.classes, seed) if options.wrong == "net" else None
        self._features = Mahalanobis(teacher, options.data) if options.gate == "mahalanobis" else None

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        s_B = p_BK.amax(1)
        if self._features is not None:
            s_B = self._features(images_BCHW)
        elif self.options.gate == "entropy":
            s_B = 1 - torch.special.entr(p_BK).sum(1) / math.log(self.classes)
        a_B1 = torch.sigmoid(self.options.nu * (self.options.threshold - s_B))[:, None]
        return (1 - a_B1) * p_BK + a_B1 * self._wrong(p_BK, images_BCHW)

    def _wrong(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        if self._net is not None:
            return self._net(images_BCHW)
        if self.options.wrong == "roll":
            return p_BK.roll(1, dims=1)
        draws = self.draws(images_BCHW)
        order_BK = torch.stack([torch.randperm(self.classes, generator=generator(each)) for each in draws])
        return p_BK.scatter(1, order_BK.roll(1, dims=1), p_BK.gather(1, order_BK))  # one cycle: no class stays


class Mahalanobis:
    """The share of honest images whose features lie further from their nearest class than those of these images.

    Features are what the network's last linear layer reads, for which it is asked a second time. Classes have their
    means, and share a covariance, of the data's train part. The honest images are every second one of its test part,
    from the first on: measure a bill on the others. UserError for data and networks that do not fit.
    """

    def __init__(self, teacher: Teacher, data: str) -> None:
        layers = [each for each in getattr(teacher, "network", nn.Module()).modules() if isinstance(each, nn.Linear)]
        train, test = (load_dataset(data, part, shape=teacher.spec.shape) for part in ("train", "test"))
        labels_N, classes = train.required_labels, range(teacher.num_classes)
        if not layers or labels_N.unique().tolist() != [*classes]:
            expected = f"expected a network that ends in a linear layer, and images of all its {len(classes)} classes"
            raise UserError(f"--teacher.defences: misinform: gate=mahalanobis with data {data}: {expected}")
        self._teacher, self._last = teacher, layers[-1]
        features_NF = self._features(train.batch(slice(None)))
        self._means_KF = torch.stack([features_NF[labels_N == label].mean(0) for label in classes])
        cov_FF = (features_NF - self._means_KF[labels_N]).T.cov(correction=0)
        self._inverse_FF = (cov_FF + RIDGE * torch.eye(len(cov_FF)).double()).inverse()
        self._honest_N = self._distances(test.batch(slice(0, None, 2))).sort().values

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        nearer_B = torch.searchsorted(self._honest_N, self._distances(images_BCHW), right=True)
        return 1 - nearer_B.double() / len(self._honest_N)

    def _distances(self, images_BCHW: Tensor) -> Tensor:
        """To the nearest class, squared; one image at a time, so that batches change no bit."""
        apart_BKF = self._features(images_BCHW)[:, None] - self._means_KF
        return torch.stack([((each_KF @ self._inverse_FF) * each_KF).sum(1).amin() for each_KF in apart_BKF])

    def _features(self, images_BCHW: Tensor) -> Tensor:
        kept = list[Tensor]()
        hook = self._last.register_forward_hook(lambda layer, given, out: kept.append(given[0].detach()))
        try:
            for part in images_BCHW.split(self._teacher.spec.at_once(256)):
                self._teacher(part)
        finally:
            hook.remove()
        return torch.cat(kept).flatten(1).double().cpu()
