"""Forward and central finite differences along random directions, one gradient per image.

    forward   g = (s/m) sum_j (f(u + h v_j) - f(u)) / h * v_j                   m + 1 images per
    point central   g = (s/m) sum_j (f(u + h v_j) - f(u - h v_j)) / 2h * v_j          2 m images per
    point

with s from ``dfme.estimators.directions`` (D on the unit sphere), so that the mean over the
directions is the gradient itself, up to O(h) for forward and O(h^2) for central differences.
Forward differences on the sphere are DFME's estimator (Truong et al., CVPR 2021, arXiv 2011.14779);
central ones are the antithetic pairs of evolution strategies (Salimans et al. 2017, arXiv
1703.03864). On a lattice, with delta_j the way really made,

    g = (D/m) sum_j (f(u + delta_j) - f(u)) / |delta_j|^2 * delta_j

which is unbiased to the same order where the signs of the directions are independent and even, as
of sphere, gaussian, rademacher and orthogonal ones; with dct and range D is a heuristic. M
directions, N images in one call.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dfme.config.estimator_settings import DirectionName
from dfme.estimators.base import Estimate, ImageFunction, Objective
from dfme.estimators.differences import Probing, check_point
from dfme.estimators.directions import DIRECTIONS, PerturbedPoint
from dfme.precision import ieee_fp32


@dataclass(frozen=True)
class FiniteDifference(Probing):
    """Estimates a gradient from the objective's values at nearby points.

    The step divided by is the one really made along v after rounding, <u + h v - u, v> / <v, v>:
    near 1, fp32 moves in units of 1.2e-7. On the sphere a coordinate of h v is only about h /
    sqrt(D), and what rounding does to the *direction* stays: 0.1 % of the derivative at h 1e-3, 15
    % at 1e-5 (D 3072).

    Args besides those of ``Probing``, which has the errors, too:
        direction: a name in DIRECTIONS
        frequencies: share of the frequencies that dct directions are made of
    """

    direction: DirectionName = "sphere"
    frequencies: float = 0.125

    @property
    def reach(self) -> float:
        return DIRECTIONS[self.direction].reach

    def estimate(
        self, objective: ImageFunction, point_BCHW: Tensor, rng: torch.Generator
    ) -> Estimate:
        """Estimate d objective / d point for every image by itself.

        ``objective`` is called under ``no_grad`` and IEEE fp32. Directions are drawn on the point's
        device, where ``rng`` must live too, one after the other for all images. Nothing here waits
        for an accelerator. A step too small to move any coordinate gives NaN, which
        ``check_upstream`` refuses.

        Raises:
            UserError: the point or the objective's answer has another form than stated in
                ``estimators.base``, or the directions need features and the objective has none that
                fit
        """
        check_point(point_BCHW)
        family = DIRECTIONS[self.direction]
        with torch.no_grad(), ieee_fp32():
            centre_BCHW = self.centre(point_BCHW)
            features_BFHW = objective.features_BFHW if isinstance(objective, Objective) else None
            place = PerturbedPoint(centre_BCHW, features_BFHW, self.frequencies)
            grad_BCHW = torch.zeros_like(centre_BCHW)
            values = []
            differences = []
            for probe in self.along(objective, centre_BCHW, family.stream(place, rng)):
                slope_B = probe.slope_B.to(grad_BCHW.dtype)
                grad_BCHW.addcmul_(probe.v_BCHW, slope_B.view(-1, 1, 1, 1))
                differences.append(probe.difference_B)
                values.append(
                    (probe.plus_B + probe.minus_B) / 2 if self.form == "central" else probe.minus_B
                )
            scale = family.scale(place) if self.lattice is None else place.size
            grad_BCHW.mul_(scale / self.directions)
            value_B = torch.stack(values).mean(0) if self.form == "central" else values[0]
        return Estimate(
            grad_BCHW, value_B, torch.stack(differences, dim=1), self.cost(len(point_BCHW))
        )
