"""The extraction methods by name. A new method is one file, one configuration and one line here."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from dfme.methods.configs import DfmeConfig, StaticConfig


class MethodEntry(NamedTuple):
    """A method's configuration class, and ``module:Class`` of its implementation, imported when it is built.

    ``estimates``: it estimates gradients, as the ``estimator`` section of a recipe says.
    """

    config: type[Any]
    implementation: str
    estimates: bool = False

    def load(self) -> Any:
        """The class of the implementation."""
        module, _, name = self.implementation.partition(":")
        return getattr(importlib.import_module(module), name)


METHODS: dict[str, MethodEntry] = {
    "dfme": MethodEntry(DfmeConfig, "dfme.methods.dfme:Dfme", estimates=True),
    "static": MethodEntry(StaticConfig, "dfme.methods.static:Static"),
}
