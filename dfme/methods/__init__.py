"""The extraction methods by name. A new method is one file, one configuration and one line here."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from dfme.config.settings import EstimatorConfig, QueriesConfig
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

SECTIONS: dict[str, type[Any]] = {"estimator": EstimatorConfig, "queries": QueriesConfig}
"""Sections of a recipe, besides ``method``, that some methods take their options from."""


class MethodEntry(NamedTuple):
    """A method's configuration class, and ``module:Class`` of its implementation, imported when it is built.

    ``sections``: those of ``SECTIONS`` that it heeds. ``students``: how many it needs at least.
    ``keeps``: whether its students learn from what was paid for before, however they are configured.
    ``estimator``: the class of its estimator section, whose defaults are the method's.
    """

    config: type[Any]
    implementation: str
    sections: tuple[str, ...] = ("queries",)
    students: int = 1
    keeps: bool = False
    estimator: type[EstimatorConfig] = EstimatorConfig

    def section(self, name: str) -> type[Any]:
        """The configuration class of one of ``SECTIONS``, with the method's own defaults."""
        return self.estimator if name == "estimator" else SECTIONS[name]

    def load(self) -> Any:
        """The class of the implementation."""
        module, _, name = self.implementation.partition(":")
        return getattr(importlib.import_module(module), name)


METHODS: dict[str, MethodEntry] = {
    "dfme": MethodEntry(DfmeConfig, "dfme.methods.dfme:Dfme", ("estimator", "queries")),
    "maze": MethodEntry(MazeConfig, "dfme.methods.maze:Maze", ("estimator", "queries"), estimator=MazeEstimatorConfig),
    "disguide": MethodEntry(DisguideConfig, "dfme.methods.disguide:Disguide", students=2),
    "dual_students": MethodEntry(DualStudentsConfig, "dfme.methods.dual_students:DualStudents", students=2),
    "dfms": MethodEntry(DfmsConfig, "dfme.methods.dfms:Dfms"),
    "knockoff": MethodEntry(KnockoffConfig, "dfme.methods.knockoff:Knockoff", (), keeps=True),
    "static": MethodEntry(StaticConfig, "dfme.methods.static:Static"),
    "procedural": MethodEntry(ProceduralConfig, "dfme.methods.procedural:Procedural"),
}
