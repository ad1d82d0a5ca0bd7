"""What a caller in Python hands over in place of names and texts: networks, images, functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any

from dfme.config.imports import name_of
from dfme.config.messages import printable
from dfme.config.values import leaves
from dfme.errors import OptionError, UserError

if TYPE_CHECKING:
    from dfme.data import ImageSet


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
