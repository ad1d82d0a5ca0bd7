"""``dfme.extract``: an extraction from Python, by the same job and the same loop as the command
line's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from dfme.config.answer_settings import AnswersConfig
from dfme.config.estimator_settings import EstimatorConfig
from dfme.config.imports import name_of
from dfme.config.layers import Author, Layer, choose, merge
from dfme.config.messages import members, printable, shortened
from dfme.config.query_settings import QueriesConfig
from dfme.config.settings import (
    EvaluationConfig,
    ExtractConfig,
    Job,
    ScheduleConfig,
    StudentConfig,
    TeacherConfig,
)
from dfme.config.values import Option, leaves, options_of
from dfme.config.wandb_settings import WandbConfig, wandb_environment
from dfme.config.yaml_files import load_yaml
from dfme.errors import DfmeError, UserError
from dfme.methods import METHODS, SECTIONS, find_method
from dfme.run import recipes
from dfme.run.checks import check
from dfme.run.directory import images_from_run_start, is_run
from dfme.run.merged_job import merged_job, method_options
from dfme.spec import LabelMode

if TYPE_CHECKING:
    from dfme.data import ImageSet
    from dfme.methods.base import Method
    from dfme.run.run import Result

# Of a resumed run, where they are not given again.
KEPT_ON_RESUME = (
    "recipe",
    "budget",
    "student",
    "schedule",
    "evaluation",
    "answers",
    "method",
    *SECTIONS,
)


@contextmanager
def _speaking_python() -> Iterator[None]:
    """Errors name the arguments of ``extract`` where they would name flags."""
    try:
        yield
    except DfmeError as error:
        sections = [
            option for name, model in SECTIONS.items() for option in options_of(model, f"{name}.")
        ]
        options = [*options_of(ExtractConfig), *options_of(TeacherConfig, "teacher."), *sections]
        keys = {option.key: option for option in options}
        said = shortened(in_python(str(error), keys, signature(extract).parameters))
        error.args = (said, *error.args[1:])
        raise


@_speaking_python()
def extract(
    teacher: Callable[..., Any],
    *,
    shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    budget: int | str | None = None,
    method: str | type[Method] | None = None,
    recipe: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    levels: int | None = None,
    label_mode: str | LabelMode | None = None,
    max_batch: int | None = None,
    defences: str | Sequence[Any] | Any = None,
    watch: str | Sequence[Any] | Any = None,
    benign: str | None = None,
    on_alarm: Literal["log", "refuse", "label"] = "log",
    method_options: Mapping[str, Any] | None = None,
    estimator: EstimatorConfig | Mapping[str, Any] | None = None,
    queries: QueriesConfig | Mapping[str, Any] | None = None,
    student: StudentConfig | Mapping[str, Any] | Callable[..., Any] | None = None,
    evaluation: EvaluationConfig | Mapping[str, Any] | str | Any = None,
    schedule: ScheduleConfig | Mapping[str, Any] | None = None,
    answers: AnswersConfig | Mapping[str, Any] | None = None,
    wandb: WandbConfig | Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    until_agreement: float | None = None,
    minutes: float | None = None,
    resume: bool | Literal["auto"] = False,
    progress: bool = False,
    callback: Callable[..., object] | None = None,
) -> Result:
    """Clone ``teacher``, a ``dfme.spec.Teacher`` or a function images -> scores, within ``budget``
    images.

    Images reach it as float32 (B, C, H, W) within ``bounds``; it answers scores (B, K) or labels
    (B,), as tensors, arrays or lists. ``shape`` and ``num_classes`` may stand on the teacher as
    attributes instead. ``defences`` are names, classes or objects, joined by + in a text or in a
    list, ``watch`` names or classes of detectors, calibrated on ``benign``: of dfme's and of one's
    own, in front of the teacher. ``evaluation`` is the name of a data set, its configuration, or
    images (N, C, H, W), uint8 or within 0 and 1, alone or as a tuple (images, labels); {"images":
    ..., "labels": ...} leaves room for the configuration. ``method`` may be a class of one's own,
    ``student`` (or its ``arch``) and ``method_options["generator"]`` a torch module, of which a
    copy is trained, or what makes one (docs/extending.md). ``callback(queries, metrics)``, or with
    the student as a third argument, hears every line of metrics.jsonl; metrics that it returns as a
    mapping join the line. Where it returns True the run stops, where it raises too, and all that is
    paid is kept: call again with ``resume=True`` to go on, or with "auto", which begins where
    ``out`` holds no run yet. The result has the ``student`` (a torch module), the ``summary`` (that
    of summary.json), the ``metrics`` and the ``run_dir``. What is not given is as in ``recipe``,
    one of dfme's by its name (``frugal``, ``paper``...) and by default the method's; a resumed run
    keeps its own.

    Raises:
        UserError: before the first query, naming every option that cannot work.
        TeacherError: if the teacher fails for good; what was paid for is kept in the run directory.
    """
    given = None if isinstance(method, str) else method
    name = method if isinstance(method, str) or method is None else name_of(method)
    described = _mapping(student, "arch")
    own = _mapping(method_options)
    objects = _handed_over(described, "arch", "student.arch")
    objects |= _handed_over(own, "generator", "method.generator")
    if given is not None:
        objects["method.name"] = given
    examined, images = _evaluation(evaluation)
    resume = is_run(out) if resume == "auto" and out else resume
    below = _below(recipe, name, Path(out) / "config.yaml" if resume and out else None)
    settings = {
        **({} if budget is None else {"budget": budget}),
        "method": own,
        "seed": seed,
        "out": None if out is None else str(out),
        "resume": resume,
        "until_agreement": until_agreement,
        "minutes": minutes,
        "device": device,
        "precision": precision,
        "student": described,
        "evaluation": examined,
        "schedule": _mapping(schedule),
        "answers": _mapping(answers),
        "wandb": {**wandb_environment(), **_mapping(wandb)},
    }
    stated = {
        "kind": name_of(teacher),
        "shape": shape,
        "num_classes": num_classes,
        "bounds": bounds,
        "levels": levels,
        "max_batch": max_batch,
        "label_mode": None if label_mode is None else str(label_mode),
        "defences": defences or (),
        "watch": watch or (),
        "benign": benign,
        "on_alarm": on_alarm,
    }
    parts = {"estimator": estimator, "queries": queries}
    settings |= {name: _mapping(part) for name, part in parts.items() if part is not None}
    job = _job(below, settings, stated, objects)
    hearing = callback and _with_student(callback)
    from dfme.run.build import run_job

    return run_job(
        job,
        teacher=teacher,
        resume=bool(resume),
        console=progress,
        callback=hearing,
        evaluation=images,
    )


def _with_student(callback: Callable[..., object]) -> Callable[..., object]:
    """The callback, given the student too if it takes three values. UserError unless two or
    three.
    """
    with suppress(TypeError, ValueError):
        form = signature(callback)
        required = [name for name, each in form.parameters.items() if each.default is each.empty]
        taken = 3 if "student" in form.parameters or len(required) > 2 else 2
        form.bind(*range(taken))
        return lambda *heard: callback(*heard[:taken])
    expected = "a function of (queries, metrics) or of (queries, metrics, student)"
    raise UserError(printable(f"callback: expected {expected}, got {callback!r:.80}"))


def _handed_over(options: dict[str, Any], name: str, key: str) -> dict[str, Any]:
    """Maker of a network by its key, if one stands among the options; they keep its name."""
    made = options.get(name)
    if made is None or isinstance(made, str) or not callable(made):
        return {}
    options[name] = name_of(made)
    return {key: made}


def _evaluation(given: Any) -> tuple[Mapping[str, Any], ImageSet | None]:
    """The options of an evaluation, and the images that were handed over, if it was images."""
    if isinstance(given, str):
        return {"dataset": given}, None
    mapped = isinstance(given, Mapping)
    if given is None or dataclasses.is_dataclass(given) or (mapped and "images" not in given):
        return _mapping(given), None
    options = dict(given) if mapped else {}
    if "dataset" in options:
        raise UserError("evaluation: expected a dataset or images, got both")
    from dfme.data.arrays import handed_over

    one = (options.pop("images", given), options.pop("labels", None))
    images, labels = given if isinstance(given, tuple) and len(given) == 2 else one
    data = handed_over(images, labels)
    return {**options, "dataset": data.name}, data


def _below(recipe: str | None, method: str | None, own: Path | None) -> recipes.Content:
    """Content below the arguments, with its name: a recipe, or the config file of the run being
    resumed.
    """
    if own is not None and own.is_file():
        content = {name: value for name, value in load_yaml(own).items() if name in KEPT_ON_RESUME}
        content = images_from_run_start(own, content)
        if recipe not in (None, recipes.plain_name(begun := content.get("recipe"))):
            raise UserError(f"recipe: this run was begun with {begun or 'another'}; leave it out")
        section = recipes.tidy({"method": content.get("method")})["method"] or {}
    else:
        named = method or recipes.by_name(recipe or "dfme")["method"]["name"]
        shown, content = recipes.below(recipe or "", named)
        content, section = content | {"recipe": recipe or shown}, content.get("method", {})
    return content | {
        "method": section if method in (None, section.get("name")) else {"name": method}
    }


def _job(
    below: recipes.Content,
    given: Mapping[str, Any],
    teacher: Mapping[str, Any],
    objects: dict[str, Any],
) -> Job:
    """The job of the options that are ``given`` and of those below them, checked."""
    keywords = {name: value for name, value in given.items() if value != {}}
    keywords["teacher"] = teacher
    layers = [Layer(Author.RECIPE, below), Layer(Author.KEYWORD, keywords)]
    method, layers = choose(layers, "method.name", "dfme")
    when = recipes.variants_of(*(layer.content for layer in layers))
    layers = [layer.without("when") for layer in layers]
    entry = find_method(method, objects.get("method.name"))
    for name in (name for name in SECTIONS if name in given and name not in entry.sections):
        heeding = ", ".join(other for other, each in METHODS.items() if name in each.sections)
        raise UserError(
            f"--{name}: method {method} does not use it; leave it out, or take one of {heeding}"
        )
    options = [*options_of(ExtractConfig), *options_of(TeacherConfig, "teacher.")]
    settings = merge(layers, [*options, *method_options(method, entry)])
    config = settings.build(ExtractConfig)
    described = settings.build(TeacherConfig, "teacher."), dict[str, Any]()
    asked = merged_job(settings, config, described, method, entry, when, objects)
    settings.finish()
    given_keys = frozenset(filter(settings.says, settings.options))
    job = dataclasses.replace(recipes.fitted(asked, settings.says), given=given_keys)
    check(job, settings.says)
    return job


def _mapping(config: object, alone: str = "") -> dict[str, Any]:
    """A configuration, given as its dataclass or as a mapping, as a mapping; none is an empty one.

    What else can be called is the option ``alone``, if there is one.
    """
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return leaves(config)
    if not alone or not callable(config):
        raise UserError(f"expected a configuration or a mapping of options, got {config!r}"[:200])
    return {alone: config}


FLAG = re.compile(  # in a sentence, and the word behind it, which may be its value
    r"(?<![\w-])--(?P<key>[a-z]\w*(?:[-.][a-z]\w*)*)"
    r"(?: (?P<word>[^\s,;)]*[^\s,;:).])(?=[\s,;:).]|$))?"
)


def in_python(text: str, options: Mapping[str, Option], arguments: Collection[str]) -> str:
    """The message with ``student={"lr": 0.1}`` for ``--student.lr 0.1``, if there is such an
    argument.
    """

    def spelled(found: re.Match[str]) -> str:
        key = found["key"].replace("-", "_")
        word = found["word"] or ""
        value = _value(word, options.get(key))
        if word and (
            key == "method.name" or (found.start() == 0 and text[found.end() :].startswith(":"))
        ):
            value = value or f'"{word}"'  # what the message is about
        rest = f" {word}" if word and not value else ""
        section, _, name = {"method.name": "method"}.get(key, key).rpartition(".")
        names = {"method": "method_options", "teacher": "" if name in arguments else section}
        section = names.get(section, section)
        if section in arguments:
            return f'{section}={{"{name}": {value or "..."}}}{rest}'
        if not section and name in arguments:
            return f"{name}={value or '...'}{rest}"
        return f"{key} {word}".strip()

    return FLAG.sub(spelled, text)


def _value(word: str, option: Option | None) -> str | None:
    """The word in Python, if it is a value of the option rather than the sentence's next word."""
    kinds = members(option.type) if option is not None else ()
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if re.fullmatch(r"-?\d[\d.]*(e[+-]?\d+)?", word):
        return word
    if word in ("true", "false", "none"):
        return word.capitalize()
    return f'"{word}"' if word in choices else None
