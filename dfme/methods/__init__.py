"""Extraction methods by name, and users' own. A new one is a file, a configuration, a line."""

import dataclasses
import functools
from pkgutil import resolve_name
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass as as_model

from dfme.config.imports import find_target
from dfme.config.messages import unknown_choice
from dfme.config.sections import EstimatorConfig, QueriesConfig
from dfme.config.settings import Job
from dfme.config.values import CONFIG, options_of
from dfme.errors import Ref, UserError
from dfme.methods.configs import (
    DfmeConfig,
    DfmsConfig,
    DisguideConfig,
    DualStudentsConfig,
    KnockoffConfig,
    MazeConfig,
    MazeEstimatorConfig,
    ProceduralConfig,
    StaticConfig,
)
from dfme.spec import LABEL_KINDS

SECTIONS: dict[str, type[Any]] = {"estimator": EstimatorConfig, "queries": QueriesConfig}
"""Sections of a recipe, besides ``method``, that some methods take their options from."""


class MethodEntry(NamedTuple):
    """A method's configuration class, and its implementation: ``module:Class``, or a user's class
    itself.

    ``sections``: those of ``SECTIONS`` that it heeds. ``students``: how many it needs at least.
    ``keeps``: whether its students learn from what was paid for before, however they are
    configured. ``estimator``: the class of its estimator section, whose defaults are the method's.
    """

    config: type[Any]
    implementation: Any = ""
    sections: tuple[str, ...] = ("queries",)
    students: int = 1
    keeps: bool = False
    estimator: type[EstimatorConfig] = EstimatorConfig

    def section(self, name: str) -> type[Any]:
        """The configuration class of one of ``SECTIONS``, with the method's own defaults."""
        return self.estimator if name == "estimator" else SECTIONS[name]

    def load(self) -> Any:
        """The class of the implementation."""
        named = isinstance(self.implementation, str)
        return resolve_name(self.implementation) if named else self.implementation


METHODS: dict[str, MethodEntry] = {
    "dfme": MethodEntry(DfmeConfig, "dfme.methods.dfme:Dfme", ("estimator", "queries")),
    "maze": MethodEntry(
        MazeConfig,
        "dfme.methods.maze:Maze",
        ("estimator", "queries"),
        estimator=MazeEstimatorConfig,
    ),
    "disguide": MethodEntry(DisguideConfig, "dfme.methods.disguide:Disguide", students=2),
    "dual_students": MethodEntry(
        DualStudentsConfig, "dfme.methods.dual_students:DualStudents", students=2
    ),
    "dfms": MethodEntry(DfmsConfig, "dfme.methods.dfms:Dfms"),
    "knockoff": MethodEntry(KnockoffConfig, "dfme.methods.knockoff:Knockoff", (), keeps=True),
    "static": MethodEntry(StaticConfig, "dfme.methods.static:Static"),
    "procedural": MethodEntry(ProceduralConfig, "dfme.methods.procedural:Procedural"),
}


def entry_of(job: Job) -> MethodEntry:
    """Entry of the job's method; UserError where there is none."""
    return find_method(job.method, job.objects.get("method.name"))


def find_method(name: str, own_class: Any = None) -> MethodEntry:
    """Entry of a method by name, or by ``module:Class``; UserError where there is none.

    ``given`` is the class itself, where it was handed over in Python.
    """
    if own_class is None and ":" not in name:
        if name not in METHODS:
            raise UserError(
                unknown_choice("method", name, [*METHODS, "module:Class of your own"]),
                about=Ref("method.name"),
            )
        return METHODS[name]
    try:
        return _own_entry(own_class or find_target(name, Ref("method.name")))
    except (ValueError, TypeError, NameError) as error:
        raise UserError(str(error), about=Ref("method.name", name)) from error


@functools.cache
def _own_entry(method: Any) -> MethodEntry:
    """The entry of a class, its configuration a checked model. ValueError with what it lacks."""
    from dfme.methods.base import Method

    if not isinstance(method, type) or not issubclass(method, Method):
        raise ValueError(f"expected a class derived from dfme.Method, got {method!r:.80}")
    entry = getattr(method, "entry", None)
    kinds = getattr(method, "label_modes", ())
    if not isinstance(entry, MethodEntry) or not dataclasses.is_dataclass(entry.config):
        raise ValueError(
            "expected entry = dfme.MethodEntry(Config) on the class, Config a dataclass of its "
            "options"
        )
    if not kinds or not {*kinds, *entry.sections} <= {*LABEL_KINDS, *SECTIONS}:
        choices = (
            f"label_modes among {', '.join(LABEL_KINDS)} and sections among {', '.join(SECTIONS)}"
        )
        raise ValueError(f"expected {choices}, got {kinds} and {entry.sections}")
    config: Any = entry.config
    if not hasattr(config, "__pydantic_fields__"):
        config = as_model(config=CONFIG, frozen=config.__dataclass_params__.frozen)(config)
    options = {option.key: option.required for option in options_of(config)}
    if "batch_size" not in options or "name" in options or any(options.values()):
        expected = (
            f"expected options with defaults in {config.__name__}, one called batch_size "
            "and none name"
        )
        lacking = ", ".join(name for name, required in options.items() if required)
        got = f"no default of {lacking}" if lacking else ", ".join(options) or "none"
        raise ValueError(f"{expected}; got {got}")
    return entry._replace(config=config, implementation=method)
