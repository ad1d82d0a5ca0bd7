"""A description's file: read safely, and checked before anything is sent. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfme.errors import UserError
from dfme.options import from_mapping
from dfme.recipes import load_yaml
from teachers.remote.class_names import ClassNames, read_class_names
from teachers.remote.described.checks import described_texts, problems
from teachers.remote.described.description import Description
from teachers.remote.described.template import environment_names


@dataclass(frozen=True)
class JsonApi:
    """A description together with what was read apart from it or beside it."""

    description: Description
    template: dict[str, Any] | list[Any] | None
    classes: ClassNames | None

    @property
    def secrets(self) -> list[str]:
        """Names of the environment variables that it needs, those of its URL not among them."""
        return environment_names(*described_texts(self.description, self.template))


def load_adapter(path: str | Path) -> JsonApi:
    """The description in a YAML file. UserError naming the file and everything that is wrong with it."""
    mapping, template = _without_template(load_yaml(path))
    description = from_mapping(Description, mapping, prefix=f"{path}: ")
    found = list(problems(description, template))
    if found:
        raise UserError("; ".join(f"{path}: {problem}" for problem in found))
    answer, folder = description.answer, Path(path).parent
    classes = read_class_names(answer.classes, f"{path}: answer.classes", folder) if answer.classes else None
    return JsonApi(description, template, classes)


def _without_template(mapping: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The mapping without ``request.json``, and that: data in any form, which no reader of options may interpret."""
    request = mapping.get("request")
    if not isinstance(request, dict):
        return mapping, None
    others = {key: value for key, value in request.items() if key != "json"}
    rest = {key: value for key, value in mapping.items() if key != "request"}
    return (rest | {"request": others} if others else rest), request.get("json")
