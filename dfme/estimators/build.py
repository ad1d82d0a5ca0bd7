"""From settings to an estimator of d objective / d gen_op: the one place that knows every kind and every space."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dfme.config.settings import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators.base import Estimator
from dfme.estimators.finite_difference import FiniteDifference
from dfme.estimators.spaces import SPACES, Squash
from dfme.spec import ImageSpec


@dataclass(frozen=True)
class _EstimatorSettings:
    """What an estimator is made from, with every ``auto`` resolved; ``step`` is a number."""

    config: EstimatorConfig
    spec: ImageSpec
    squash: Squash
    chunk: int | None
    seed: int
    step: float

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.config.space == "pre_squash" else self.spec.bounds

    @property
    def lattice(self) -> float | None:
        if self.config.space != "lattice" or self.spec.levels is None:
            return None
        low, high = self.spec.bounds
        return (high - low) / (self.spec.levels - 1)

    def in_space(self, inner: Estimator) -> Estimator:
        return SPACES[self.config.space](inner, self.squash, self.spec)


def make_estimator(config: EstimatorConfig, spec: ImageSpec, squash: Squash, chunk: int | None, seed: int) -> Estimator:
    """The estimator that ``config`` describes.

    Its ``estimate(objective, u, rng)`` takes an objective over images within ``spec.bounds`` and the generator's
    output u before ``squash`` (B, C, H, W), and gives d objective / d u. ``chunk``: most images in one call of
    the objective. ``seed``: of weights that an estimator may have of its own.

    Raises:
        UserError: an option is still auto, out of range, or does not fit the teacher's images
    """
    if config.kind not in MAKERS:
        raise UserError(f"--estimator.kind: expected {', '.join(MAKERS)}, got {config.kind!r}")
    if config.space not in SPACES:
        raise UserError(f"--estimator.space: expected {', '.join(SPACES)}, got {config.space!r}")
    if isinstance(config.step, str):
        raise UserError(f"--estimator.step: expected a number by now, got {config.step!r}; the check resolves it")
    _check_lattice(config, config.step, spec)
    with _named_as_flags():
        return MAKERS[config.kind](_EstimatorSettings(config, spec, squash, chunk, seed, config.step))


def _finite_difference(order: _EstimatorSettings) -> Estimator:
    return order.in_space(_differences(order))


def _prior_guided(order: _EstimatorSettings) -> Estimator:
    from dfme.estimators.prior_guided import PriorGuided

    config = order.config
    if config.prior == "neighbours" and config.space == "pre_squash":
        raise UserError(
            "--estimator.prior neighbours: expected --estimator.space image or lattice, got pre_squash; "
            "answers paid for before belong to images"
        )
    inner = PriorGuided(
        config.prior, config.directions, order.step, config.form, order.bounds, order.lattice, order.chunk
    )
    return order.in_space(inner)


def _synthetic(order: _EstimatorSettings) -> Estimator:
    from dfme.estimators.synthetic import Synthetic

    # Outside of the space: it predicts what the seam takes, whatever was perturbed for its lessons.
    config = order.config
    return Synthetic(_finite_difference(order), config.every, config.synthetic_lr, order.squash, order.spec, order.seed)


MAKERS: dict[str, Callable[[_EstimatorSettings], Estimator]] = {
    "finite_difference": _finite_difference,
    "prior_guided": _prior_guided,
    "synthetic": _synthetic,
}


def _differences(order: _EstimatorSettings) -> FiniteDifference:
    config = order.config
    return FiniteDifference(
        config.directions,
        order.step,
        config.form,
        config.direction,
        order.bounds,
        order.chunk,
        order.lattice,
        config.frequencies,
    )


def _check_lattice(config: EstimatorConfig, step: float, spec: ImageSpec) -> None:
    """Raise UserError where whole levels are asked for and there are none, or not enough."""
    if config.space != "lattice":
        return
    if spec.levels is None:
        raise UserError(
            "--estimator.space lattice: expected a teacher that declares --teacher.levels (256 for 8-bit images), "
            "got one that takes any number; use --estimator.space pre_squash or image"
        )
    most = (spec.levels - 1) // 2
    if most < 1:
        raise UserError(
            f"--estimator.space lattice: expected at least 3 levels to move between, got {spec.levels}; "
            "use --estimator.space image with --estimator.step near half of the bounds' distance"
        )
    if not (1 <= step <= most and step % 1 == 0):
        raise UserError(
            f"--estimator.step {step:g}: expected a whole number of levels from 1 to {most}, such as 1, "
            "with --estimator.space lattice"
        )


@contextmanager
def _named_as_flags() -> Iterator[None]:
    """Estimators name their arguments, people know flags: add what is between the two."""
    try:
        yield
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith("--") else f"--estimator.{text}") from None
