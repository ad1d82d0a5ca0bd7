"""Forms of JSON as dicts of types, and the pydantic models that check them."""

from typing import Any, NamedTuple

from pydantic import ConfigDict, create_model

FORM = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
MODULE = "dfme.audits.audit.model"  # it stands in names of the JSON schema


class Added(NamedTuple):
    """A part that audits of an earlier release of this form do not have."""

    part: Any


def form(parts: Any, name: str = "Audit") -> Any:
    """The type of a part as it is written here: a dict of parts, a list of one kind of part, or a
    type.
    """
    if isinstance(parts, dict):
        fields: dict[str, Any] = {}
        for key, part in parts.items():
            if isinstance(part, Added):
                fields[key] = (form(part.part, key.title()) | None, None)
            else:
                fields[key] = (form(part, key.title()), ...)
        return create_model(name, __config__=FORM, __module__=MODULE, **fields)
    return list[form(parts[0], name)] if isinstance(parts, list) else parts  # type: ignore[misc]


def maybe(part: Any) -> Any:
    """A part, or None where it is not known or was not run."""
    return form(part) | None
