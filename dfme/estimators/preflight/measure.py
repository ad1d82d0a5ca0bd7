"""The pre-flight check: a few hundred images that tell what an API's answers are good for."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.compute.device import ieee_fp32
from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.errors import OptionError, Unserved, say
from dfme.estimators.build import default_settings
from dfme.estimators.preflight.choose import Finding, StepCandidate
from dfme.estimators.preflight.diagnostics import (
    ObjectiveOfAnswers,
    Resolution,
    alignment,
    hidden_rms,
    pair_of_images,
    revealed_share,
)
from dfme.estimators.preflight.steps import candidate_steps, predicted
from dfme.nets.generators import GeneratorNet
from dfme.spec import ImageSpec, LabelMode

POINTS = 16
"""Images that every candidate step is tried at."""

MIN_POINTS = 4
"""Fewer of them, with an answer to everything, tell nothing of a step."""


class Channel(NamedTuple):
    """The check's access to a teacher. ``ask``: charged as ``check``; ``left``: images the budget
    allows.
    """

    ask: Callable[[Tensor], Tensor]
    spec: ImageSpec
    label_mode: LabelMode
    left: int


ValueOf = Callable[[ObjectiveName], ObjectiveOfAnswers]
"""Our own side of the objective of each name that a configuration can have; it asks for nothing."""


def preflight_images(config: EstimatorConfig, spec: ImageSpec, scores: bool = True) -> int:
    """Images that ``run_preflight`` asks for, whatever it finds; ``scores``: of a teacher that
    gives them.
    """
    return sum(preflight_calls(config, spec, scores))


def preflight_calls(config: EstimatorConfig, spec: ImageSpec, scores: bool = True) -> list[int]:
    """Images of each batch of ``run_preflight``: at the points, again, among others, at the
    steps.
    """
    steps = candidate_steps(default_settings(config, spec), spec) if scores else ()
    return [POINTS, POINTS, 2 * POINTS] + [2 * POINTS] * len(steps)


def require_budget(remaining: int, images: int) -> None:
    """UserError where a check of so many images does not fit into what is left of the budget."""
    if remaining < images:
        raise OptionError(
            "budget",
            say(
                "expected at least {} images for the check that {estimator.kind:auto} and "
                "{estimator.step:auto} begin with, {} are left; choose both by hand, or give more",
                images,
                remaining,
            ),
        )


def run_preflight(
    channel: Channel,
    generator: GeneratorNet,
    value_of: ValueOf,
    config: EstimatorConfig,
    rng: torch.Generator,
) -> Finding:
    """Ask for ``preflight_images`` images and say how well differences of their answers follow true
    slopes.

    The student behind ``value_of`` is in eval mode. Points are the generator's, whose state does
    not change.

    Raises:
        UserError: the budget does not reach; nothing was asked.
        TeacherError: the answers are not what the teacher's own description says.
    """
    images = preflight_images(config, channel.spec, channel.label_mode.kind != "label")
    require_budget(channel.left, images)
    with torch.no_grad(), ieee_fp32():
        settings = default_settings(config, channel.spec)
        return _Check(channel, value_of, settings, rng, config.kind == "auto").finding(
            generator, images
        )


@dataclass(frozen=True, eq=False)
class _Check:
    """One check under way; ``free``: to choose the objective."""

    channel: Channel
    value_of: ValueOf
    config: EstimatorConfig
    rng: torch.Generator
    free: bool

    def finding(self, generator: GeneratorNet, images: int) -> Finding:
        spec = self.channel.spec
        squash = generator.squash
        # a copy makes the points, for the sake of the generator's running statistics
        twin = copy.deepcopy(generator).train()
        with twin.watched() as read:
            drawn_NCHW = twin(twin.draw(2 * POINTS, self.rng))
        u_NCHW = drawn_NCHW[:POINTS]
        features_NFHW = read[0][:POINTS]
        base_NCHW = squash(u_NCHW)
        others_NCHW = squash(drawn_NCHW[POINTS:])
        # Ask for the same images twice over, then in another order among others.
        base = self._ask(base_NCHW)
        again = self._ask(base_NCHW)
        mixed_NCHW = torch.stack([base_NCHW.flip(0), others_NCHW], dim=1).flatten(0, 1)
        among = self._ask(mixed_NCHW)[::2].flip(0)
        # Ask for both ends of central differences; every step goes along the same directions.
        steps = candidate_steps(self.config, spec) if base.ndim == 2 else ()
        pairs = []
        for step in steps:
            central = replace(self.config, step=step, form="central")
            pairs.append(
                pair_of_images(central, spec, squash, u_NCHW, self._same_chance(), features_NFHW)
            )
        asked = [self._ask(torch.cat(pair)) for pair in pairs]
        known_N = _answered(base, again, among)
        if not known_N.all():
            base_NCHW = base_NCHW[known_N]
            base, again, among = base[known_N], again[known_N], among[known_N]
            pairs = [(plus_NCHW[known_N], minus_NCHW[known_N]) for plus_NCHW, minus_NCHW in pairs]
            asked = [answers[known_N.repeat(2)] for answers in asked]
        objective = self._objective(torch.cat([base, again, among]))
        answers = torch.cat([base, again, among, *asked])
        answers = answers[~unanswered(answers)]
        resolution = Resolution.seen(answers) if base.ndim == 2 else Resolution()
        candidates: tuple[StepCandidate, ...] = ()
        if steps:
            value = self.value_of(objective)
            candidates = self._candidates(
                value, steps, pairs, asked, base_NCHW, (base, again), resolution
            )
        return Finding(
            declared=str(self.channel.label_mode),
            answers=form_of(answers),
            decimals=resolution.decimals,
            relative=resolution.relative,
            levels=spec.levels,
            repeat=largest_change(base, again),
            batch=largest_change(base, among),
            hidden=_hidden(answers).float().mean().item() if base.ndim == 2 else 1.0,
            objective=objective,
            space=self.config.space,
            direction=self.config.direction,
            candidates=candidates,
            images=images,
        )

    def _objective(self, answers: Tensor) -> ObjectiveName:
        """Objective to differentiate: if free, kl where probabilities are rounded or partly
        hidden.
        """
        if not self.free or answers.ndim != 2 or self.channel.label_mode.kind == "logits":
            return self.config.objective
        exact = Resolution.seen(answers).decimals is None and not _hidden(answers).any()
        return self.config.objective if exact else "kl"

    def _ask(self, x_NCHW: Tensor) -> Tensor:
        return self.channel.ask(self.channel.spec.quantise(x_NCHW))

    def _same_chance(self) -> torch.Generator:
        """The same draws every time, so that steps differ in nothing else."""
        same = torch.Generator(self.rng.device)
        same.set_state(self.rng.get_state())
        return same

    def _candidates(
        self,
        value: ObjectiveOfAnswers,
        steps: Sequence[float],
        pairs: Sequence[tuple[Tensor, Tensor]],
        asked: Sequence[Tensor],
        base_NCHW: Tensor,
        at_base: tuple[Tensor, Tensor],
        resolution: Resolution,
    ) -> tuple[StepCandidate, ...]:
        spec = self.channel.spec
        base, again = at_base
        images_NCHW = spec.quantise(base_NCHW)
        base_N = value(images_NCHW, base).double()
        repeated = (value(images_NCHW, again) - base_N).square().mean().item() / 2
        unresolved = (
            hidden_rms(value, images_NCHW, base, resolution, self._same_chance()).item() ** 2
        )
        revealed = []
        ends = []
        for (plus_NCHW, minus_NCHW), answers in zip(pairs, asked, strict=True):
            both = value(spec.quantise(torch.cat([plus_NCHW, minus_NCHW])), answers).double()
            # As in an estimate, a difference with an end that got no answer counts as none.
            known_N = ~torch.stack(unanswered(answers).chunk(2)).any(dim=0)
            ends.append([torch.where(known_N, end_N, base_N) for end_N in both.chunk(2)])
            plus, minus = (end[known_N] for end in answers.chunk(2))
            hidden = _hidden(plus) & _hidden(minus)
            given = spec.quantise(plus_NCHW[known_N]), plus, hidden, resolution, self._same_chance()
            revealed.append(revealed_share(value, *given) if len(plus) else 0.0)
        return predicted(
            steps_J=base_N.new_tensor(steps),
            plus_JN=torch.stack([plus_N for plus_N, _ in ends]),
            minus_JN=torch.stack([minus_N for _, minus_N in ends]),
            base_N=base_N,
            known_noise=unresolved + repeated,
            carried_J=torch.stack([alignment(*pair, spec).mean() for pair in pairs]).double(),
            carried_forward_J=torch.stack(
                [alignment(plus, base_NCHW, spec).mean() for plus, _ in pairs]
            ).double(),
            revealed_J=base_N.new_tensor(revealed),
        )


def _answered(*answers: Tensor) -> Tensor:
    """Which points (N,) got an answer each time that they were asked. Unserved for too few."""
    known_N = ~torch.stack([unanswered(part) for part in answers]).any(dim=0)
    if known_N.sum() < MIN_POINTS:
        raise Unserved(
            say(
                "the check: the service named a class for {} of {} images each time, too few to "
                "choose by; start a new run with {estimator.kind} and {estimator.step} chosen by "
                "hand, or with a method that estimates nothing, such as {recipe:frugal}",
                int(known_N.sum()),
                POINTS,
            )
        )
    return known_N


def _hidden(answers_NK: Tensor) -> Tensor:
    """The scores of which nothing is known: answered as exactly zero, or not at all."""
    return (answers_NK == 0) | answers_NK.isnan()


def largest_change(first: Tensor, second: Tensor) -> float:
    """The most by which any answer differs from the other to the same image; 1 for another
    label.
    """
    if first.ndim == 1:
        return float((first != second).any())
    return (first.double().nan_to_num() - second.double().nan_to_num()).abs().max().item()


def form_of(answers: Tensor) -> str:
    """Form of answers, whatever was declared: labels, one-hot, probabilities, top_k or logits."""
    if answers.ndim == 1:
        return "labels"
    known_NK = answers.nan_to_num(nan=0.0)
    if ((known_NK == 0) | (known_NK == 1)).all() and (known_NK.sum(1) == 1).all():
        return "one-hot"
    if answers.isnan().any():
        return "top_k"
    sums_N = known_NK.sum(1)
    if known_NK.min() >= 0 and (sums_N - 1).abs().max() <= 1e-2 * known_NK.shape[1]:
        return "probabilities"
    return "logits"
