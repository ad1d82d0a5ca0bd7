"""What a generator trained by estimates descends on, in the two parts that estimators know: the API's and ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfme.config.settings import ObjectiveName
from dfme.estimators.base import Composed
from dfme.oracle.oracle import Oracle
from dfme.students.losses import Distance, make_distance


class Disagreement:
    """f(x) = - distance(student(x), teacher(x)) per image, float64. The minus lives here and nowhere else.

    ``distance``: between the student's scores and answers; it can be another one than the student learns by.
    Images are rounded to what the wire carries before either side sees them. ``asked`` keeps the images of the
    last objective with their answers, in the order asked: whoever paid may learn from them.
    """

    def __init__(self, oracle: Oracle, net: nn.Module, distance: Distance) -> None:
        self._oracle = oracle
        self._net = net
        self.distance = distance
        self.asked: list[tuple[Tensor, Tensor]] = []

    def by(self, objective: ObjectiveName) -> Disagreement:
        """The same between the same two by another distance: student (as it is), l1 or kl."""
        if objective == "student":
            return self
        return Disagreement(self._oracle, self._net, make_distance(objective, self._oracle.label_mode))

    def objective(
        self, features_BFHW: Tensor | None = None, remembered: tuple[Tensor, Tensor] | None = None
    ) -> Composed:
        """The objective over images for one estimate; what was asked for the one before is forgotten."""
        self.asked = []
        return Composed(self._observe, self.value, features_BFHW, remembered, self._net)

    def base(self, batch: int) -> tuple[Tensor, Tensor]:
        """The first ``batch`` images asked about and their answers: of forward differences, the points themselves."""
        images, answers = zip(*self.asked, strict=True)
        return torch.cat(images)[:batch], torch.cat(answers)[:batch]

    def value(self, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        """The objective where the answers are known. Rounding of the image lets gradients pass as they are."""
        carried_NCHW = self._oracle.spec.quantise(x_NCHW.detach())
        if x_NCHW.requires_grad:
            carried_NCHW = x_NCHW + (carried_NCHW - x_NCHW).detach()
        return -self.distance(self._net(carried_NCHW).double(), answers.double())

    def _observe(self, x_NCHW: Tensor) -> Tensor:
        carried_NCHW = self._oracle.spec.quantise(x_NCHW)
        answers = self._oracle(carried_NCHW, "generator")
        self.asked.append((carried_NCHW, answers))
        return answers
