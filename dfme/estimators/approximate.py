"""The approximated generator gradient of a run: estimator, pre-flight check, metrics."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import with_answers
from dfme.compute.device import arithmetic, derived_seed, has_tf32
from dfme.compute.modules import evaluating
from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.errors import flag
from dfme.estimators.base import Estimate, Estimator, Objective
from dfme.estimators.build import default_settings, make_estimator, needs_preflight
from dfme.estimators.preflight.choose import (
    choose,
    explain,
    warning,
)
from dfme.estimators.preflight.diagnostics import (
    ObjectiveOfAnswers,
    Resolution,
    difference_snr,
    probe_alignment,
)
from dfme.estimators.preflight.measure import Channel, run_preflight
from dfme.nets.generators import GeneratorNet
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import Distance, make_distance
from dfme.students.trainer import Metrics, StudentTrainer

CHUNK = 8_192
"""Most images in one evaluation of an objective: bounds memory while probing; fewer where they are
large.
"""

Disagreement = Callable[[Distance, Tensor, Tensor], Tensor]
"""A distance, images and answers -> one number per image, which the generator minimises; it asks
nothing.
"""


class ApproximateGradients:
    """d objective / d gen_op from answers alone, by the estimator that the settings describe.

    ``students``: the generator works against the first, and drives up the distance that it learns
    by unless the settings name another objective. ``label_mode``: of the answers. ``seed``: the
    run's. Settings that are left to the pre-flight check (``needs_preflight``) are settled by
    ``prepare``.
    """

    def __init__(
        self,
        settings: EstimatorConfig,
        spec: ImageSpec,
        label_mode: LabelMode,
        generator: GeneratorNet,
        students: StudentTrainer,
        seed: int,
    ) -> None:
        self.settings = settings
        self.distance = self._own_distance = students.distance
        self._spec = spec
        self._label_mode = label_mode
        self._seed = seed
        self._generator = generator
        self._student = students.net
        self._device = next(self._student.parameters()).device
        self._in_tf32 = settings.arithmetic == "tf32" and has_tf32(self._device)
        self._features_BFHW: Tensor | None = None
        self.estimator: Estimator | None = None  # until its settings are settled
        if not needs_preflight(settings):
            self._settle(settings)

    def prepare(
        self, channel: Channel, disagreement: Disagreement, reuse: bool, rng: torch.Generator
    ) -> tuple[str, ...]:
        """Settle what is open, by a check; lines for the user. ``reuse``: as of ``choose``."""
        if self.estimator is not None:
            return self._arithmetic_lines()

        def value_of(objective: ObjectiveName) -> ObjectiveOfAnswers:
            return self._in_arithmetic(partial(disagreement, self._distance_of(objective)))

        with evaluating(self._student):
            finding = run_preflight(channel, self._generator, value_of, self.settings, rng)
        self._settle(choose(self.settings, finding, self._spec, reuse))
        warned = warning(finding, self.settings)
        return (
            *self._arithmetic_lines(),
            *explain(finding, self.settings),
            *([warned] if warned else []),
        )

    def __call__(self, objective: Objective, gen_op: Tensor, rng: torch.Generator) -> Estimate:
        """Estimate d objective / d gen_op, image by image; ``gen_op`` (B, C, H, W) has no graph."""
        value = self._in_arithmetic(objective.value)
        objective = dataclasses.replace(objective, value=value, features_BFHW=self._features_BFHW)
        assert self.estimator is not None, "prepare comes first"
        return self.estimator.estimate(objective, gen_op, rng)

    def metrics(self, objective: Objective, gen_op: Tensor, estimate: Estimate) -> Metrics:
        """Metrics of an estimate that was paid for; a function is called when it is read."""
        if estimate.queries == 0:
            return {}
        features_BFHW = self._features_BFHW
        return {
            "generator_loss": estimate.value_B.nanmean
            if objective.lacks
            else estimate.value_B.mean,
            "difference_zero_share": lambda: (estimate.differences_BM == 0).float().mean(),
            "difference_snr": lambda: self._snr(objective, estimate),
            "probe_alignment": lambda: probe_alignment(
                self.settings,
                self._spec,
                self._generator.squash,
                gen_op,
                self._scratch(gen_op),
                features_BFHW,
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        if self.estimator is None:
            return {"settings": {}, "estimator": {}}
        return {
            "settings": dataclasses.asdict(self.settings),
            "estimator": self.estimator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up only what the pre-flight check chose; the rest is the configuration's."""
        if self.estimator is None:
            names = ("objective", "form", "step") if self.settings.kind == "auto" else ("step",)
            chosen = {name: state["settings"][name] for name in names}
            self._settle(dataclasses.replace(default_settings(self.settings, self._spec), **chosen))
        assert self.estimator is not None
        self.estimator.load_state_dict(state["estimator"])

    def _settle(self, settings: EstimatorConfig) -> None:
        if settings.direction == "range" and self.estimator is None:

            def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                self._features_BFHW = inputs[0].detach()  # from which the directions are made

            self._generator.last_convolution.register_forward_hook(note)
        self.settings = settings
        self.distance = self._distance_of(settings.objective)
        seed = derived_seed(self._seed, "estimator")
        self.estimator = make_estimator(settings, self._spec, self._generator.squash, CHUNK, seed)

    def _in_arithmetic(self, value: ObjectiveOfAnswers) -> ObjectiveOfAnswers:
        """``value`` in the chosen precision; IEEE fp32 is pinned around a difference by the
        estimator.
        """
        return arithmetic("tf32", self._device)(value) if self._in_tf32 else value

    def _arithmetic_lines(self) -> tuple[str, ...]:
        if self.settings.arithmetic == "ieee":
            return ()
        if self._in_tf32:
            return ("arithmetic: TF32 in differences, whatever that leaves of them",)
        idle = (
            f"{flag('estimator.arithmetic', 'tf32')} is idle on {self._device}, which has no TF32"
        )
        return (f"arithmetic: IEEE fp32; {idle}",)

    def _distance_of(self, objective: ObjectiveName) -> Distance:
        return (
            self._own_distance
            if objective == "student"
            else make_distance(objective, self._label_mode)
        )

    def _snr(self, objective: Objective, estimate: Estimate) -> Tensor:
        """The differences over what the answers' resolution hides in one, as the student sees them
        now.
        """
        count = len(estimate.differences_BM)
        x_BCHW, answers = (rows[:count] for rows in objective.asked[0])
        if objective.lacks:
            x_BCHW, answers = with_answers(x_BCHW, answers)
        with torch.no_grad(), evaluating(self._student):
            # once, for the answers as they are and as they might have been
            scores_BK = self._student(x_BCHW).double()
        seen = x_BCHW, answers, Resolution.seen(answers), self._scratch(x_BCHW)
        return difference_snr(
            estimate.differences_BM,
            lambda _, answers_N: self.distance(scores_BK, answers_N.double()),
            *seen,
        )

    def _scratch(self, near: Tensor) -> torch.Generator:
        """A separate generator for metrics, so that logging never changes training."""
        return torch.Generator(near.device).manual_seed(self._seed)
