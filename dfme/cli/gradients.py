"""``run.py gradients``: which estimators are compared, on whose teacher, with which recipe's students."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from dfme.benchmarks.options import GradientsConfig, require_local
from dfme.cli.arguments import RECIPE_ONLY, Arguments, CommandInputs
from dfme.cli.files import default_recipe
from dfme.config.messages import Problem
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import build, leaves
from dfme.methods import SECTIONS, find_method
from dfme.run.checks import find_problems, fresh_directory_problems
from dfme.run.recipes import fitted
from dfme.spec import LabelMode

SUMMARY = "measure estimated gradients against the true ones of a teacher of your own"
HEEDED = {"budget", "seed", "device", "channels_last", "schedule", "student", "evaluation", "method", *SECTIONS}
INPUTS = CommandInputs(GradientsConfig, teacher=True, method=True, recipe=default_recipe, ignored=RECIPE_ONLY - HEEDED)


def run(words: Sequence[str]) -> int:
    """Measure, and print as it goes."""
    config, job = plan_of(words)
    from dfme.benchmarks.gradients.session import compare_gradients
    from dfme.run.build import white_box

    compare_gradients(white_box(job), job, config, tell=partial(print, flush=True))
    return 0


def plan_of(words: Sequence[str]) -> tuple[GradientsConfig, Job]:
    """The comparison's own settings, and the job whose teacher and students it is about.

    Raises:
        UserError: one line that names everything wrong.
    """
    asked = Arguments(words, INPUTS)
    require_local(asked.kind)
    config = asked.settings(GradientsConfig)
    job = asked.job(build(ExtractConfig, {k: v for k, v in leaves(config).items() if k != "out"}))
    asked.finish([*_problems(config, job), *find_problems(job, asked.says)])
    return config, fitted(job)


def _problems(config: GradientsConfig, job: Job) -> Iterator[Problem]:
    """A directory that holds something already, and what no difference can be measured of."""
    yield from fresh_directory_problems(config.out)
    if job.teacher.defences:
        yield Problem("teacher.defences", "expected none: the network's own gradients are measured against")
    mode = job.teacher.label_mode
    if mode is not None and LabelMode.parse(mode).kind == "label":
        yield Problem("teacher.label_mode", "expected scores, whose differences are measured here, got label")
    if not hasattr(job.method_config, "latent_size"):
        text = f"expected a method with a generator, whose gradients are measured here, got {job.method}"
        yield Problem("method.name", text)
    if config.free and "estimator" not in find_method(job.method).sections:
        yield Problem("free", f"expected a method that estimates gradients, got {job.method}")
