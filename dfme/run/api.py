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
from dfme.config.values import from_mapping, leaves
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.run.checks import check
from dfme.spec import LabelMode

if TYPE_CHECKING:
    from dfme.data import ImageSet
    from dfme.run.run import Result


def extract(
    teacher: Callable[..., Any],
    *,
    shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    budget: int | str = 1_000_000,
    method: str = "dfme",
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
    evaluation: EvaluationConfig | Mapping[str, Any] | str | Any = None,
    schedule: ScheduleConfig | Mapping[str, Any] | None = None,
    wandb: WandbConfig | Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    until_agreement: float | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Clone ``teacher``, a ``dfme.spec.Teacher`` or a function images -> scores, within ``budget`` images.

    Images reach it as float32 (B, C, H, W) within ``bounds``; it answers scores (B, K) or labels (B,), as
    tensors, arrays or lists. ``shape`` and ``num_classes`` may stand on the teacher as attributes instead.
    ``evaluation`` is the name of a data set, its configuration, or images (N, C, H, W), uint8 or within 0 and 1, alone
    or as a tuple (images, labels); {"images": ..., "labels": ...} leaves room for the configuration. The result has the
    ``student`` (a torch module), the ``summary`` (the content of summary.json) and the ``run_dir``.

    Raises:
        UserError: before the first query, naming every option that cannot work.
        TeacherError: if the teacher fails for good; what was paid for is kept in the run directory.
    """
    if str(method) not in METHODS:
        raise UserError(unknown_choice("method", str(method), METHODS))
    examined, handed_over = _evaluation(evaluation)
    settings = {
        "budget": budget,
        "seed": seed,
        "out": None if out is None else str(out),
        "resume": resume,
        "until_agreement": until_agreement,
        "device": device,
        "precision": precision,
        "student": _mapping(student),
        "evaluation": examined,
        "schedule": _mapping(schedule),
        "wandb": _mapping(wandb),
    }
    named = teacher if hasattr(teacher, "__qualname__") else type(teacher)
    described = {
        **{"kind": f"{named.__module__}:{named.__qualname__}", "shape": shape, "num_classes": num_classes},
        **{"bounds": bounds, "levels": levels, "max_batch": max_batch},
        "label_mode": None if label_mode is None else str(label_mode),
    }
    job = _job(method, settings, described, method_options, {"estimator": estimator, "queries": queries})
    from dfme.run.build import run_job

    return run_job(job, teacher=teacher, resume=resume, console=progress, evaluation=handed_over)


def _evaluation(given: Any) -> tuple[Mapping[str, Any], ImageSet | None]:
    """The options of an evaluation, and the images that were handed over, if it was images."""
    if isinstance(given, str):
        return {"dataset": given}, None
    if given is None or dataclasses.is_dataclass(given) or (isinstance(given, Mapping) and "images" not in given):
        return _mapping(given), None
    options = dict(given) if isinstance(given, Mapping) else {}
    if "dataset" in options:
        raise UserError("evaluation: expected a dataset or images, got both")
    from dfme.data.folder import handed_over

    one = (options.pop("images", given), options.pop("labels", None))
    images, labels = given if isinstance(given, tuple) and len(given) == 2 else one
    data = handed_over(images, labels)
    return {**options, "dataset": data.name}, data


def _job(
    method: str,
    settings: Mapping[str, Any],
    teacher: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    sections: Mapping[str, object],
) -> Job:
    """The job that these describe, checked; a section of ``settings`` without an option is left to its defaults."""
    job = Job(
        from_mapping(ExtractConfig, {name: value for name, value in settings.items() if value != {}}),
        from_mapping(TeacherConfig, teacher, "teacher."),
        {},
        method,
        from_mapping(METHODS[method].config, options or {}, "method_options."),
        **{name: _section(name, method, config) for name, config in sections.items()},
    )
    check(job)
    return job


def _section(name: str, method: str, config: object) -> Any:
    """The configuration of a section that only some methods heed."""
    if config is not None and name not in METHODS[method].sections:
        heeding = ", ".join(other for other, entry in METHODS.items() if name in entry.sections)
        raise UserError(f"{name}: method {method} does not use it; leave it out, or take one of {heeding}")
    return from_mapping(METHODS[method].section(name), _mapping(config), f"{name}.")


def _mapping(config: object) -> Mapping[str, Any]:
    """A configuration, given as its dataclass or as a mapping, as a mapping; none is an empty one."""
    if config is None:
        return {}
    if not isinstance(config, Mapping) and not dataclasses.is_dataclass(config):
        raise UserError(f"expected a configuration or a mapping of options, got {config!r}")
    return config if isinstance(config, Mapping) else leaves(config)
