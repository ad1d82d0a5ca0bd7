"""Adaptive misinformation: images that a gate takes for strange are answered wrongly."""

import math
from typing import Any

import torch
from torch import Tensor

from dfme.data import load_dataset
from dfme.errors import flag
from dfme.spec import Teacher
from dfme.teachers.owner.defences.defence import Defence
from dfme.teachers.owner.features import Mahalanobis, as_asked

TIED = 1 + 1e-4  # ratio of distances taken for equal


class MisinformDefence(Defence):
    """y = (1 - a) p + a wrong, a = sigmoid(nu (tau - s)), s within 0 and 1: how much the image is
    at home.
    """

    def __init__(self, options: Any, teacher: Teacher) -> None:
        super().__init__(options, teacher)
        if options.gate == "mahalanobis":
            what = f"{flag('teacher.defences')}: misinform: gate=mahalanobis with data"
            self._distances = Mahalanobis(teacher, options.data, what)
            honest = load_dataset(options.data, "test", shape=teacher.spec.shape)
            x_NCHW = as_asked(honest.batch(slice(0, None, 2)), teacher)
            self._honest_N = self._distances(x_NCHW).sort().values * TIED

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        s_B = p_BK.amax(1)
        if self.options.gate == "mahalanobis":
            s_B = self._at_home(images_BCHW)
        elif self.options.gate == "entropy":
            s_B = 1 - torch.special.entr(p_BK).sum(1) / math.log(self.classes)
        wrong_BK = p_BK.roll(1, dims=1) if self.net is None else self.net(images_BCHW)
        if self.options.wrong == "permute":  # in one cycle: no class stays
            orders = [
                torch.randperm(self.classes, generator=draw) for draw in self.draws(images_BCHW)
            ]
            order_BK = torch.stack(orders)
            wrong_BK = p_BK.scatter(1, order_BK.roll(1, dims=1), p_BK.gather(1, order_BK))
        # no batch counts
        a_B1: Tensor = 1 / (1 + (self.options.nu * (s_B - self.options.threshold)).exp()[:, None])
        return (1 - a_B1) * p_BK + a_B1 * wrong_BK

    def _at_home(self, images_BCHW: Tensor) -> Tensor:
        """Share of honest images (every second one of the test part) further from their class."""
        nearer_B = torch.searchsorted(self._honest_N, self._distances(images_BCHW), right=True)
        return 1 - nearer_B.double() / len(self._honest_N)
