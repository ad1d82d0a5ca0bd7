"""``dfme.extract``: an extraction from Python, by the same job and the same loop as the command
line's. Errors name an option by the keyword, or the key of a mapping, that sets it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from dfme.config.imports import name_of
from dfme.config.layers import Author, Layer, Settings, choose
from dfme.config.messages import printable, shortened
from dfme.config.sections import (
    AnswersConfig,
    EstimatorConfig,
    QueriesConfig,
    WandbConfig,
    wandb_environment,
)
from dfme.config.settings import (
    EvaluationConfig,
    ExtractConfig,
    Job,
    ScheduleConfig,
    StudentConfig,
    TeacherConfig,
)
from dfme.config.values import leaves, options_of
from dfme.config.yaml_files import load_yaml
from dfme.errors import DfmeError, OptionError, Problem, Ref, UserError, as_yaml_key
from dfme.methods import METHODS, SECTIONS, find_method
from dfme.run import recipes
from dfme.run.checks import check
from dfme.run.directory import images_from_run_start, is_run
from dfme.run.job import merged_job, method_options
from dfme.spec import LabelMode

if TYPE_CHECKING:
    from dfme.data import ImageSet
    from dfme.methods.base import Method
    from dfme.run.run import Result


P = ParamSpec("P")
T = TypeVar("T")

SPOKEN_AS = {"method.name": "method", "teacher.kind": "teacher"}
"""Options that one keyword sets, which is not called as their key ends."""


def speaking_python(function: Callable[P, T]) -> Callable[P, T]:
    """The function; its errors name options by its keywords."""
    keywords = signature(function).parameters

    @wraps(function)
    def speaking(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except DfmeError as error:
            text = error.message.spelled(partial(as_keyword, keywords=keywords))
            error.args = (shortened(text), *error.args[1:])
            raise

    return speaking


def as_keyword(option: Ref, keywords: Collection[str]) -> str:
    """``student={"lr": 0.1}``; the key itself where no keyword sets the option."""
    value = _python_value(option)
    section, _, name = SPOKEN_AS.get(option.key, option.key).rpartition(".")
    if section == "teacher" and name in keywords:
        section = ""
    section = {"method": "method_options"}.get(section, section)
    if section in keywords:
        return f'{section}={{"{name}": {value}}}'
    if not section and name in keywords:
        return f"{name}={value}"
    return as_yaml_key(option)


def _python_value(option: Ref) -> str:
    """The value in Python, or dots where the message names none."""
    if option.value is None:
        return "..."
    if isinstance(option.value, bool):
        return str(option.value)
    text = option.value_text
    if text in ("none", "true", "false"):
        return text.capitalize()
    with suppress(ValueError):
        float(text)
        return text
    return json.dumps(text, ensure_ascii=False)


def require_callable(teacher: object) -> None:
    """Raise OptionError unless it can be a teacher."""
    if not callable(teacher):
        text = "expected a callable images -> scores"
        raise OptionError("teacher.kind", text, got=f"{teacher!r:.100}")


def as_mapping(keyword: str, config: object, alone: str = "") -> dict[str, Any]:
    """The configuration of a keyword, its dataclass or a mapping, as a mapping; none is empty.

    What else can be called is the option ``alone``, if there is one.
    """
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return leaves(config)
    if alone and isinstance(config, str):
        return {alone: config}
    if not alone or not callable(config):
        text = "expected a configuration or a mapping of options"
        raise OptionError(keyword, text, got=f"{config!r:.100}")
    return {alone: config}


def take_network(options: dict[str, Any], name: str, key: str) -> dict[str, Any]:
    """The maker of a network by its key, if the options hold one; its name stays in its place."""
    maker = options.get(name)
    if maker is None or isinstance(maker, str) or not callable(maker):
        return {}
    options[name] = name_of(maker)
    return {key: maker}


def evaluation_of(evaluation: Any) -> tuple[Mapping[str, Any], ImageSet | None]:
    """The options of an evaluation, and its images, where images were handed over."""
    if isinstance(evaluation, str):
        return {"dataset": evaluation}, None
    is_mapping = isinstance(evaluation, Mapping)
    if evaluation is None or dataclasses.is_dataclass(evaluation):
        return as_mapping("evaluation", evaluation), None
    if is_mapping and "images" not in evaluation:
        return dict(evaluation), None
    options = dict(evaluation) if is_mapping else {}
    if "dataset" in options:
        raise OptionError("evaluation", "expected a dataset or images", got="both")
    from dfme.data.arrays import handed_over

    images = options.pop("images", evaluation)
    labels = options.pop("labels", None)
    if isinstance(evaluation, tuple) and len(evaluation) == 2:
        images, labels = evaluation
    data = handed_over(images, labels)
    return options | {"dataset": data.name}, data


def with_student(callback: Callable[..., object]) -> Callable[..., object]:
    """The callback, given the student too if it takes three values. UserError unless two or
    three.
    """
    with suppress(TypeError, ValueError):
        form = signature(callback)
        required = [name for name, value in form.parameters.items() if value.default is value.empty]
        count = 3 if "student" in form.parameters or len(required) > 2 else 2
        form.bind(*range(count))
        return lambda *values: callback(*values[:count])
    expected = "a function of (queries, metrics) or of (queries, metrics, student)"
    raise UserError(printable(f"callback: expected {expected}, got {callback!r:.80}"))


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


@speaking_python
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
    student: StudentConfig | Mapping[str, Any] | Callable[..., Any] | str | None = None,
    evaluation: EvaluationConfig | Mapping[str, Any] | str | Any = None,
    schedule: ScheduleConfig | Mapping[str, Any] | None = None,
    answers: AnswersConfig | Mapping[str, Any] | None = None,
    wandb: WandbConfig | Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    until_agreement: float | None = None,
    minutes: float | None = None,
    resume: bool | Literal["auto"] = False,
    record_queries: bool = False,
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
    copy is trained, or what makes one (docs/extending.md); ``student`` may also be the name of a
    net. From weights that anybody can download it starts by {"weights": FILE, "arch": NAME}.
    ``callback(queries, metrics)``, or with the student as a third argument, hears every line of
    metrics.jsonl; metrics that it returns as a mapping join the line. Where it returns True the run
    stops, where it raises too, and all that is paid is kept: call again with ``resume=True`` to go
    on, or with "auto", which begins where ``out`` holds no run yet. The result has the ``student``
    (a torch module), the ``summary`` (that of summary.json), the ``metrics`` and the ``run_dir``;
    ``record_queries`` keeps every query there, with the model's probabilities.
    What is not given is as in ``recipe``, one of dfme's by its name (``frugal``, ``paper``...) and
    by default the method's; a resumed run keeps its own.

    Raises:
        UserError: before the first query, naming every option that cannot work.
        TeacherError: if the teacher fails for good; what was paid for is kept in the run directory.
    """
    require_callable(teacher)
    students = as_mapping("student", student, "arch")
    method_settings = as_mapping("method_options", method_options)
    objects = take_network(students, "arch", "student.arch")
    objects |= take_network(method_settings, "generator", "method.generator")
    method_name = None
    if isinstance(method, str):
        method_name = method
    elif method is not None:
        objects["method.name"] = method
        method_name = name_of(method)
    evaluation_settings, images = evaluation_of(evaluation)
    if resume == "auto" and out:
        resume = is_run(out)
    config_file = Path(out) / "config.yaml" if resume and out else None
    below = _settings_below(recipe and str(recipe), method_name, config_file)
    settings = {
        "method": method_settings,
        "seed": seed,
        "out": None if out is None else str(out),
        "resume": resume,
        "until_agreement": until_agreement,
        "minutes": minutes,
        "device": device,
        "precision": precision,
        "record_queries": record_queries,
        "student": students,
        "evaluation": evaluation_settings,
        "schedule": as_mapping("schedule", schedule),
        "answers": as_mapping("answers", answers),
        "wandb": wandb_environment() | as_mapping("wandb", wandb),
    }
    optional = {"budget": budget, "estimator": estimator, "queries": queries}
    for name, value in optional.items():
        if value is not None:
            settings[name] = value if name == "budget" else as_mapping(name, value)
    teacher_settings = {
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
    job = _job(below, settings, teacher_settings, objects)
    hearing = callback and with_student(callback)
    from dfme.run.build import run_job

    return run_job(
        job,
        teacher=teacher,
        resume=bool(resume),
        console=progress,
        callback=hearing,
        evaluation=images,
    )


def _settings_below(
    recipe: str | None, method: str | None, config_file: Path | None
) -> recipes.Content:
    """The settings below the arguments: a recipe's, with its name, or those in the config file of
    the run that is resumed.
    """
    if config_file is not None and config_file.is_file():
        recorded = load_yaml(config_file)
        kept = {name: value for name, value in recorded.items() if name in KEPT_ON_RESUME}
        content = images_from_run_start(config_file, kept)
        begun = content.get("recipe")
        if recipe not in (None, recipes.plain_name(begun)):
            text = f"this run was begun with {begun or 'another'}; leave it out"
            raise OptionError("recipe", text)
        section = recipes.tidy({"method": content.get("method")})["method"] or {}
    else:
        named = method or recipes.by_name(recipe or "dfme")["method"]["name"]
        on_record, contents = recipes.below(recipe or "", named)
        content = dict(contents)
        content["recipe"] = recipe or on_record
        section = content.get("method", {})
    if method not in (None, section.get("name")):
        section = {"name": method}
    content["method"] = section
    return content


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
    when = recipes.variants_of(*layers)
    layers = [layer.without("when") for layer in layers]
    entry = find_method(method, objects.get("method.name"))
    unheeded = [name for name in SECTIONS if name in given and name not in entry.sections]
    if unheeded:
        raise UserError(*(_unheeded(name, method) for name in unheeded))
    options = [*options_of(ExtractConfig), *options_of(TeacherConfig, "teacher.")]
    settings = Settings(layers, [*options, *method_options(method, entry)])
    config = settings.build(ExtractConfig)
    described = settings.build(TeacherConfig, "teacher."), dict[str, Any]()
    asked = merged_job(settings, config, described, method, entry, when, objects)
    settings.finish()
    given_keys = frozenset(filter(settings.says, settings.options))
    job = replace(recipes.fitted(asked, settings.says), given=given_keys)
    check(job, settings.says)
    return job


def _unheeded(section: str, method: str) -> Problem:
    """A section of settings that the method does not use."""
    heeding = ", ".join(name for name, entry in METHODS.items() if section in entry.sections)
    text = f"method {method} does not use it; leave it out, or take one of {heeding}"
    return Problem(section, text)
