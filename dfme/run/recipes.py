"""Recipes that come with dfme, by their names, and the batch size that fits a budget. No torch
here.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfme.config.layers import Author, Layer
from dfme.config.messages import unknown_choice
from dfme.config.sections import QueriesConfig, Variant
from dfme.config.settings import Job, ScheduleConfig, StudentConfig
from dfme.config.values import flatten, from_mapping, leaves
from dfme.config.yaml_files import load_yaml
from dfme.errors import Ref, UserError, flag
from dfme.methods import METHODS, SECTIONS, entry_of
from dfme.nets import NETS
from dfme.queries.programs import DOMAINS
from dfme.run.checks import method_problems
from dfme.run.job import PACKAGE, idle_problems, plain
from dfme.spec import LabelMode, Shape

Content = dict[str, Any]  # a recipe as its file gives it, section by section
GENERAL = "dfme"  # its students and schedule suit a method that has no recipe of its own
OF_ITS_TEACHER = (
    "teacher",
    "evaluation",
)  # keys of a recipe's file that do not hold for another teacher

VARIED: dict[str, type[Any]] = {
    "student": StudentConfig,
    "schedule": ScheduleConfig,
    "queries": QueriesConfig,
}
"""Sections that a recipe's variants may set."""

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
        raise UserError(unknown_choice("recipe", name, names()), about=Ref("recipe"))
    content = whole(tidy(load_yaml(files[name])), files[name])
    return _less(content, *OF_ITS_TEACHER) | {"student": _less(content.get("student", {}), "arch")}


def below(named: str, method: str) -> tuple[str, Content]:
    """Name of the recipe below options for this method, for a run's record, and the recipe.

    It is the ``named`` one, or the method's own. One for another method gives queries and students
    over it.
    """
    usual = method if method in shipped() else GENERAL
    other = by_name(named or GENERAL)
    if named and other["method"]["name"] == method:
        return named, other
    content = by_name(usual)
    if content["method"]["name"] != method:
        content = _less(content, "method", *SECTIONS)
    if not named:
        return f"{usual} (default)", content
    return f"{named} over {usual}", merged(content, _less(other, "method", "estimator"))


def unfit(job: Job, shape: Sequence[int]) -> list[str]:
    """A warning, where the job's recipe is made for images of another shape than the teacher's."""
    name = plain_name(job.config.recipe)
    content = load_yaml(shipped()[name]) if name in shipped() else {}
    made_for = content.get("teacher", {}).get("shape", shape)
    expected, actual = ("x".join(map(str, sizes)) for sizes in (made_for, shape))
    if expected == actual:
        return []
    return [
        f"warning: recipe {name} is made for images of {expected}, this teacher's are {actual}: "
        f"its budget (now {int(job.config.budget):,} images), networks and rates need not suit; "
        f"try {flag('recipe', 'frugal')}"
    ]


def variants_of(*layers: Layer) -> tuple[Variant, ...]:
    """The blocks ``when`` of a recipe and of layers above it, in their order.

    What a layer gives, by section or by dotted key, beats the blocks of those below. UserError for
    what is wrong in a block.
    """
    variants: list[Variant] = []
    for layer in layers:
        place = f"{layer.file}: when" if layer.file else "when"
        blocks = layer.content.get("when") or ()
        if not isinstance(blocks, list | tuple) or not all(
            isinstance(block, Mapping) for block in blocks
        ):
            raise UserError(f"{place}: expected blocks such as {EXAMPLE}, got {blocks!r:.80}")
        above = [
            _variant(block, f"{place}, block {number}: ") for number, block in enumerate(blocks, 1)
        ]
        variants = [*beaten(variants, {key for key, _ in flatten(layer.content, ())}), *above]
    return tuple(variants)


EXAMPLE = "{side_above: 16, set: {student: {lr: 0.002}}}"


def _variant(block: Mapping[str, Any], place: str) -> Variant:
    variant = from_mapping(Variant, block, place)
    values: dict[str, Any] = {}
    for name, section in tidy(variant.set).items():
        if name not in VARIED or not isinstance(section, Mapping):
            choices = f"expected options of {', '.join(VARIED)}"
            raise UserError(f"{place}set: {choices}, got {name}: {section!r:.60}")
        checked = leaves(from_mapping(VARIED[name], section, f"{place}set: {name}."))
        values |= {f"{name}.{key}": checked[key] for key in section}
    if not values:
        raise UserError(f"{place}expected values to set, such as {EXAMPLE}")
    return dataclasses.replace(variant, set=values)


def beaten(variants: Iterable[Variant], keys: Collection[str]) -> list[Variant]:
    """The variants without the options of these keys, which a layer above them gives."""
    remaining = []
    for variant in variants:
        values = {key: value for key, value in variant.set.items() if key not in keys}
        if values and not any(key in keys for key in variant.unless_given):
            remaining.append(dataclasses.replace(variant, set=values))
    return remaining


def with_variants(job: Job, mode: LabelMode, shape: Shape) -> tuple[Job, str]:
    """The job with the variants that hold for a teacher's answers and images, and a line about it.

    The line is empty where the recipe has none. UserError where an option that the user gave has no
    effect, or cannot be, beside what holds.
    """
    heeded = [name for name in VARIED if name not in SECTIONS or name in entry_of(job).sections]
    keys = [key for variant in job.when for key in variant.set if key.startswith((*heeded,))]
    varied = job.varied(mode, shape) if job.when else job
    if not keys:
        return varied, ""
    problems = [*method_problems(varied), *idle_problems(varied, job.given.__contains__)]
    if problems:
        raise UserError(*problems)
    answers = job.config.answers.mode(mode)
    held = [str(variant) for variant in job.when if variant.holds(answers, shape)]
    queries = {f"queries.{key}": value for key, value in leaves(varied.queries).items()}
    values = leaves(varied.config) | queries
    taken = ", ".join(f"{key} {values[key]}" for key in dict.fromkeys(keys))
    return varied, f"{'; '.join(held) or f'none of {len(job.when)}'}: {taken}"


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


def merged(below: Content, above: Content, file: str = "") -> Content:
    """Both, section by section. What stands above wins, over the variants below too.

    ``file``: the one that says what stands above.
    """
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        if isinstance(under, dict) and isinstance(value, dict):
            value = {**under, **value}
        result[name] = value
    result.pop("when", None)
    if variants := variants_of(Layer(Author.RECIPE, below), Layer(Author.FILE, above, file)):
        result["when"] = plain(variants, "when")
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
            inner = {str(option).replace("-", "_"): item for option, item in value.items()}
            value = result.get(section, {}) | inner
        result[section] = value
    return result


def _less(content: Content, *names: str) -> Content:
    return {name: value for name, value in content.items() if name not in names}


def fitted(job: Job, said: Callable[[str], bool] = lambda key: False) -> Job:
    """The job with its batch size of ``auto`` resolved: the default, halved until it fits.

    A domain that the attacker knows has its own programs, whatever the recipe names. Where nobody
    ``said`` so, a generator of one's own transforms no base, and a method without a generator has
    no program's share of its batches, and public weights tell the student's architecture: a net of
    ours that a recipe names has none.
    """
    method = job.method_config
    student = job.config.student
    if student.weights is not None and student.arch in NETS and not said("student.arch"):
        config = dataclasses.replace(job.config, student=dataclasses.replace(student, arch="auto"))
        job = dataclasses.replace(job, config=config)
    entry = METHODS.get(job.method)
    queries = job.queries
    changes: dict[str, Any] = {"programs": DOMAINS.get(queries.domain, queries.programs)}
    if getattr(method, "generator", "auto") != "auto" and not said("queries.base"):
        changes["base"] = "none"
    if not hasattr(method, "latent_size") and not said("queries.procedural"):
        changes["procedural"] = 0.0
    job = dataclasses.replace(job, queries=dataclasses.replace(queries, **changes))
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
