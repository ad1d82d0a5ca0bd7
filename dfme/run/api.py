"""``dfme.extract``: an extraction from Python, by the same job and the same loop as the command line's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dfme.config.messages import unknown_choice
from dfme.config.settings import (
    EstimatorConfig,
    EvaluationConfig,
    ExtractConfig,
    Job,
    QueriesConfig,
    ScheduleConfig,
    StudentConfig,
    TeacherConfig,
    WandbConfig,
)
from dfme.config.values import flatten, from_mapping, leaves
from dfme.config.yaml_files import load_yaml
from dfme.errors import UserError
from dfme.methods import METHODS, SECTIONS
from dfme.run import recipes
from dfme.run.checks import check
from dfme.spec import LabelMode

if TYPE_CHECKING:
    from dfme.run.run import Result

KEPT_ON_RESUME = ("recipe", "budget", "student", "schedule", "evaluation", "method", *SECTIONS)
"""What a resumed run keeps of its own where it is not given again."""


def extract(
    teacher: Callable[..., Any],
    *,
    shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    budget: int | str | None = None,
    method: str | None = None,
    recipe: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    levels: int | None = None,
    label_mode: str | LabelMode | None = None,
    max_batch: int | None = None,
    method_options: Mapping[str, Any] | None = None,
    estimator: EstimatorConfig | Mapping[str, Any] | None = None,
    queries: QueriesConfig | Mapping[str, Any] | None = None,
    student: StudentConfig | Mapping[str, Any] | None = None,
    evaluation: EvaluationConfig | Mapping[str, Any] | str | None = None,
    schedule: ScheduleConfig | Mapping[str, Any] | None = None,
    wandb: WandbConfig | Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Clone ``teacher``, a ``dfme.spec.Teacher`` or a function images -> scores, within ``budget`` images.

    Images reach it as float32 (B, C, H, W) within ``bounds``; it answers scores (B, K) or labels (B,), as
    tensors, arrays or lists. ``shape`` and ``num_classes`` may stand on the teacher as attributes instead.
    ``evaluation`` is the name of a data set, or its configuration. What is not given is as in ``recipe``, one of
    dfme's by its name (``frugal``, ``paper``...) and by default the method's; a resumed run keeps its own. The result
    has the ``student`` (a torch module), the ``summary`` (the content of summary.json) and the ``run_dir``.

    Raises:
        UserError: before the first query, naming every option that cannot work.
        TeacherError: if the teacher fails for good; what was paid for is kept in the run directory.
    """
    if method is not None and str(method) not in METHODS:
        raise UserError(unknown_choice("method", str(method), METHODS))
    below = _below(recipe, method, Path(out) / "config.yaml" if resume and out else None)
    settings = {
        **({} if budget is None else {"budget": budget}),
        "seed": seed,
        "out": None if out is None else str(out),
        "resume": resume,
        "device": device,
        "precision": precision,
        "student": _mapping(student),
        "evaluation": {"dataset": evaluation} if isinstance(evaluation, str) else _mapping(evaluation),
        "schedule": _mapping(schedule),
        "wandb": _mapping(wandb),
    }
    named = teacher if hasattr(teacher, "__qualname__") else type(teacher)
    described = {
        **{"kind": f"{named.__module__}:{named.__qualname__}", "shape": shape, "num_classes": num_classes},
        **{"bounds": bounds, "levels": levels, "max_batch": max_batch},
        "label_mode": None if label_mode is None else str(label_mode),
    }
    given = {"method": _mapping(method_options), **settings}
    given |= {
        name: _mapping(each) for name, each in (("estimator", estimator), ("queries", queries)) if each is not None
    }
    job = _job(below, given, described)
    from dfme.run.build import run_job

    return run_job(job, teacher=teacher, resume=resume, console=progress)


def _below(recipe: str | None, method: str | None, own: Path | None) -> recipes.Content:
    """What lies below the arguments, with its name: a recipe; of a resumed run its ``own`` file."""
    if own is not None and own.is_file():
        content = {name: value for name, value in load_yaml(own).items() if name in KEPT_ON_RESUME}
        if recipe not in (None, recipes.plain_name(content.get("recipe"))):
            raise UserError(f"recipe: this run was begun with {content.get('recipe') or 'another'}; leave it out")
        section = recipes.tidy({"method": content.get("method")})["method"] or {}
    else:
        shown, content = recipes.below(recipe or "", method or recipes.by_name(recipe or "dfme")["method"]["name"])
        content, section = content | {"recipe": recipe or shown}, content.get("method", {})
    return content | {"method": section if method in (None, section.get("name")) else {"name": method}}


def _job(below: recipes.Content, given: Mapping[str, Any], teacher: Mapping[str, Any]) -> Job:
    """The job of the options that are ``given`` and of those below them, checked."""
    settings = recipes.merged(below, dict(given))
    options, sections = dict(settings.pop("method")), {name: settings.pop(name, None) or {} for name in SECTIONS}
    method = str(options.pop("name", "dfme"))
    entry = METHODS[method]
    for name in (name for name in SECTIONS if name in given and name not in entry.sections):
        heeding = ", ".join(other for other, each in METHODS.items() if name in each.sections)
        raise UserError(f"{name}: method {method} does not use it; leave it out, or take one of {heeding}")
    heeded = {name: values if name in entry.sections else {} for name, values in sections.items()}
    job = Job(
        from_mapping(ExtractConfig, {name: value for name, value in settings.items() if value != {}}),
        from_mapping(TeacherConfig, teacher, "teacher."),
        {},
        method,
        from_mapping(entry.config, options, "method_options."),
        **{name: from_mapping(entry.section(name), values, f"{name}.") for name, values in heeded.items()},
    )
    check(job, {key for key, _ in flatten(given, ())}.__contains__)
    return recipes.fitted(job)


def _mapping(config: object) -> Mapping[str, Any]:
    """A configuration, given as its dataclass or as a mapping, as a mapping; none is an empty one."""
    if config is None:
        return {}
    if not isinstance(config, Mapping) and not dataclasses.is_dataclass(config):
        raise UserError(f"expected a configuration or a mapping of options, got {config!r}")
    return config if isinstance(config, Mapping) else leaves(config)
