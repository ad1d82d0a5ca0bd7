"""Recipes that come with dfme, by their names, and the batch size that fits a budget. No torch
here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfme.config.messages import unknown_choice
from dfme.config.settings import Job, StudentConfig
from dfme.config.values import from_mapping, leaves
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError, flag
from dfme.methods import METHODS, SECTIONS
from dfme.queries.names import DOMAINS
from dfme.run.job import PACKAGE

Content = dict[str, Any]  # a recipe as its file gives it, section by section
GENERAL = "dfme"  # its students and schedule suit a method that has no recipe of its own
OF_ITS_TEACHER = (
    "teacher",
    "evaluation",
)  # keys of a recipe's file that do not hold for another teacher

TRAINED_AS = {
    "static": "frugal",
    "procedural": "frugal",
    "knockoff": "frugal",
}
"""Recipes of no paper, made for small images, and the recipe whose students' training is theirs
above ``SMALL_SIDE`` pixels a side: a baseline that is trained worse than our own recipe would be a
straw man."""

GO_TOGETHER = {
    ("optimizer", "lr", "weight_decay", "decay_images"): (
        "student.optimizer",
        "student.lr",
        "student.momentum",
        "student.weight_decay",
        "student.decay_images",
    ),
    ("passes", "rounds", "shrink", "replay_batch", "replay_steps"): (
        "student.replay_steps",
        "student.final_share",
        "method.epochs",
    ),
}
"""Values of a training that suit one another alone: all stay as the recipe has them where somebody
gave one of the options beside them, which is used as it was given."""

STUDENT_BATCHES = 240
SMALLEST_BATCH = 8
"""A batch size of ``auto`` leaves a budget so many batches for the student, where it can;
heuristic. On the digits batches of 8 in place of 256 give 90 % agreement in place of 43 % at 5,000
queries, 64 give 96 % in place of 85 % at 30,000. More batches than these give a little more, and
take as much longer."""


def shipped() -> dict[str, Path]:
    """Recipes of dfme by file name; those of the digits also without ``digits_``."""
    paths = sorted(PACKAGE.glob("configs/*.yaml"), key=lambda path: ("_" in path.stem, path.stem))
    files = {path.stem: path for path in paths if not path.stem.startswith(("compare_", "audit"))}
    return {name.removeprefix("digits_"): path for name, path in files.items()} | files


def names() -> list[str]:
    """The shortest name of every recipe."""
    return [name for name in shipped() if not name.startswith("digits_")]


@functools.cache
def by_name(name: str) -> Content:
    """Recipe of this name, without teacher, evaluation and student's architecture. UserError if
    unknown.
    """
    files = shipped()
    if name not in files:
        raise UserError(f"recipe: {unknown_choice('recipe', name, names())}")
    content = whole(tidy(load_yaml(files[name])), files[name])
    return _less(content, *OF_ITS_TEACHER) | {"student": _less(content.get("student", {}), "arch")}


def below(named: str, method: str) -> tuple[str, Content]:
    """Name of the recipe below options for this method, for a run's record, and the recipe.

    It is the ``named`` one, or the method's own. One for another method gives queries and students
    over it.
    """
    own = method if method in shipped() else GENERAL
    other = by_name(named or GENERAL)
    if named and other["method"]["name"] == method:
        return named, other
    content = by_name(own)
    if content["method"]["name"] != method:
        content = _less(content, "method", *SECTIONS)
    if not named:
        return f"{own} (default)", content
    return f"{named} over {own}", merged(content, _less(other, "method", "estimator"))


def unfit(job: Job, shape: Sequence[int]) -> list[str]:
    """A warning, where the job's recipe is made for images of another shape than the teacher's."""
    name = plain_name(job.config.recipe)
    content = load_yaml(shipped()[name]) if name in shipped() else {}
    made_for = content.get("teacher", {}).get("shape", shape)
    theirs, ours = ("x".join(map(str, each)) for each in (made_for, shape))
    if theirs == ours:
        return []
    return [
        f"warning: recipe {name} is made for images of {theirs}, this teacher's are {ours}: its "
        f"budget (now {int(job.config.budget):,} images), networks and rates need not suit; try "
        f"{flag('recipe', 'frugal')}"
    ]


def with_larger(job: Job, recipe: str, gave: Callable[[str], bool]) -> Job:
    """The job, on this recipe, with its students' settings for larger images, if they are others.

    ``gave``: whether somebody gave the option of this key; those are as they were given, on any
    images.
    """
    own = job.config.student
    name = TRAINED_AS.get(recipe.removesuffix(" (default)").removeprefix("digits_"))
    off = gave("student.replay_steps") and not own.replay_steps and not gave("student.steps")
    if name is None or off or 0 < own.steps < len(by_name(name)["student"]["rounds"]):
        return job
    training = {**by_name(name)["student"], "replay_steps": 0}  # in place of which come passes
    for names, keys in GO_TOGETHER.items():
        if any(map(gave, keys)):
            training = _less(training, *names)
    training = {key: value for key, value in training.items() if not gave(f"student.{key}")}
    larger = from_mapping(StudentConfig, merged(leaves(own), training))
    return dataclasses.replace(job, larger=larger)


def plain_name(text: object) -> str:
    """The name in what a run's record says of its recipe, such as ``mine.yaml over dfme
    (default)``.
    """
    return str(text or "").rpartition(" over ")[2].removesuffix(" (default)")


def whole(content: Content, file: Path | None = None) -> Content:
    """A tidy recipe with what lies below it; nothing lies below the ``file`` of the method's
    own.
    """
    written = content.get("method")
    named = plain_name(content.get("recipe"))
    usual = by_name(named)["method"]["name"] if named else GENERAL
    method = str(written.get("name", usual)) if isinstance(written, dict) else usual
    if not named and shipped().get(method) == file:
        return content
    return merged(below(named, method)[1], _less(content, "recipe"))


def merged(below: Content, above: Content) -> Content:
    """Both, section by section; what stands above wins."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = (
            {**under, **value} if isinstance(under, dict) and isinstance(value, dict) else value
        )
    return result


def tidy(content: Mapping[str, Any]) -> Content:
    """Sections as mappings, names with underscores: ``student.lr: 1`` is ``student: {lr: 1}``."""
    result: Content = {}
    for key, value in content.items():
        section, dotted, name = str(key).replace("-", "_").partition(".")
        if dotted:
            value = {name: value}
        if section == "method" and isinstance(value, str):  # short for its name
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(result.get(section, {}), dict):
            inner = {str(each).replace("-", "_"): item for each, item in value.items()}
            value = result.get(section, {}) | inner
        result[section] = value
    return result


def _less(content: Content, *names: str) -> Content:
    return {name: value for name, value in content.items() if name not in names}


def fitted(job: Job, said: Callable[[str], bool] = lambda key: False) -> Job:
    """The job with its batch size of ``auto`` resolved: the default, halved until it fits.

    A domain that the attacker knows has its own programs, whatever the recipe names. Where nobody
    ``said`` so, a generator of one's own transforms no base, and a method without a generator has
    no program's share of its batches.
    """
    method = job.method_config
    entry = METHODS.get(job.method)
    programs = DOMAINS.get(job.queries.domain, job.queries.programs)
    job = dataclasses.replace(job, queries=dataclasses.replace(job.queries, programs=programs))
    if getattr(method, "generator", "auto") != "auto" and not said("queries.base"):
        job = dataclasses.replace(job, queries=dataclasses.replace(job.queries, base="none"))
    if not hasattr(method, "latent_size") and not said("queries.procedural"):
        job = dataclasses.replace(job, queries=dataclasses.replace(job.queries, procedural=0.0))
    if entry is None or getattr(method, "batch_size", None) != "auto":
        return job
    for_students = getattr(method, "student_steps", 1)
    for_generator = 0
    size = entry.config().batch_size
    if "estimator" in entry.sections:
        directions = job.estimator.directions
        asked = 2 * directions if job.estimator.form == "central" else 1 + directions
        for_generator = method.generator_steps * asked
    students = job.config.images * for_students // (for_students + for_generator)
    while size > SMALLEST_BATCH and students < STUDENT_BATCHES * size:
        size //= 2
    return dataclasses.replace(job, method_config=dataclasses.replace(method, batch_size=size))
