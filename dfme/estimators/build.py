"""Build an estimator of d objective / d gen_op from settings: knows every kind and space, and what
is left to the pre-flight check.
"""

from dataclasses import replace

from dfme.config.sections import EstimatorConfig
from dfme.errors import OptionError, Ref, UserError, say
from dfme.estimators.base import SPACES, Estimator, Squash
from dfme.estimators.differences import FiniteDifference
from dfme.spec import ImageSpec

FINEST_LATTICE = 65_536
COARSEST_LATTICE = 9
"""Levels of a lattice that is walked on: beyond it floats will do, and below it a step crosses too
much.
"""


def needs_preflight(config: EstimatorConfig) -> bool:
    """True if the settings leave something to the pre-flight check."""
    return config.kind == "auto" or config.step == "auto"


def default_settings(config: EstimatorConfig, spec: ImageSpec) -> EstimatorConfig:
    """The settings with all chosen that needs no query: of kind auto, the space and the directions.

    8-bit images are walked on as the lattice they are; dct directions, since the parameters of a
    convolutional generator follow low frequencies best (docs/results/estimators.md has the
    figures).
    """
    if config.kind != "auto":
        return config
    lattice = spec.levels is not None and COARSEST_LATTICE <= spec.levels <= FINEST_LATTICE
    return replace(
        config,
        kind="finite_difference",
        space="lattice" if lattice else "pre_squash",
        direction="dct",
    )


def make_estimator(
    config: EstimatorConfig, spec: ImageSpec, squash: Squash, chunk: int | None, seed: int
) -> Estimator:
    """The estimator that ``config`` describes.

    Its ``estimate(objective, u, rng)`` takes an objective over images within ``spec.bounds`` and
    the generator's output u before ``squash`` (B, C, H, W), and gives d objective / d u. ``chunk``:
    most images in one call of the objective, fewer of large ones. ``seed``: of weights that an
    estimator may have of its own.

    Raises:
        UserError: an option is still auto, or does not fit the teacher's images
    """
    if config.kind == "auto":
        raise OptionError("estimator.kind", "expected another by now; the check chooses", "auto")
    if isinstance(config.step, str):
        raise OptionError(
            "estimator.step",
            f"expected a number by now, got {config.step!r}; the check resolves it",
        )
    chunk = None if chunk is None else spec.at_once(chunk)
    bounds = None if config.space == "pre_squash" else spec.bounds
    lattice = _lattice(config.step, spec) if config.space == "lattice" else None
    try:
        inner = FiniteDifference(
            directions=config.directions,
            step=config.step,
            form=config.form,
            bounds=bounds,
            lattice=lattice,
            chunk=chunk,
            direction=config.direction,
            frequencies=config.frequencies,
        )
        estimator = SPACES[config.space](inner, squash, spec)
        if config.kind != "synthetic":
            return estimator
        from dfme.estimators.synthetic import Synthetic

        # Outside of the space: it predicts d objective / d u, whatever was perturbed to learn it.
        return Synthetic(estimator, config.every, config.synthetic_lr, squash, spec, seed)
    except UserError as error:  # estimators name their arguments, people know flags
        raise UserError(error.text, about=Ref(f"estimator.{error.about}")) from None


def _lattice(step: float, spec: ImageSpec) -> float:
    """The distance between two levels. UserError where there are none, or not enough for the
    step.
    """
    if spec.levels is None:
        raise UserError(
            say(
                "{estimator.space:lattice}: expected a teacher that declares {teacher.levels} "
                "(256 for 8-bit images), got one that takes any number; use "
                "{estimator.space:pre_squash} or image"
            )
        )
    most = (spec.levels - 1) // 2
    if most < 1:
        raise UserError(
            say(
                "{estimator.space:lattice}: expected at least 3 levels to move between, got {}; "
                "use {estimator.space:image} with {estimator.step} near half of the bounds' "
                "distance",
                spec.levels,
            )
        )
    if not (1 <= step <= most and step % 1 == 0):
        raise UserError(
            say(
                "{}: expected a whole number of levels from 1 to {}, such as 1, with "
                "{estimator.space:lattice}",
                Ref("estimator.step", step),
                most,
            )
        )
    return spec.step
