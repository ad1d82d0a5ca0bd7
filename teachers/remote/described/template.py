"""A JSON document with places for images, described by a person and filled for each request.

``${image}`` stands for an encoded image and ``${images}`` for the list of all of a request's. A list whose only item
holds ``${image}`` (and no such list is nearer to it) is repeated for every image. ``${NAME}`` of any other name is an
environment variable. Keys are left as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dfme.errors import UserError

IMAGE = "${image}"
IMAGES = "${images}"
_NAME = re.compile(r"\$\{([^}]*)\}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def problem_of(template: object, batch: int, as_text: bool) -> str | None:
    """What is wrong with a template for requests of up to ``batch`` images, in words; None if nothing is.

    ``as_text``: whether an encoded image is text, which may stand within a longer one.
    """
    if not isinstance(template, dict | list):
        return f"expected an object or a list with {IMAGE} in it, got {type(template).__name__}"
    try:
        json.dumps(template, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"expected what JSON can say: {error}"
    found = [text for text in texts(template) if IMAGE in text or IMAGES in text]
    if len(found) != 1 or found[0].count(IMAGE) + found[0].count(IMAGES) != 1:
        return f"expected {IMAGE} or {IMAGES} once, got {len(found) or 'none'}"
    if found[0] not in (IMAGE, IMAGES) and (IMAGES in found[0] or not as_text):
        return (
            f"expected {IMAGES if IMAGES in found[0] else IMAGE} alone, as the whole of a text, got {found[0][:60]!r}"
        )
    if batch > 1 and needs_one(template):
        return f"with batch: {batch}, expected {IMAGES}, or {IMAGE} within a list of one item, which is repeated"
    return None


def texts(node: object) -> Iterator[str]:
    """Every text in a document that is a value."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from texts(child)


def environment_names(*values: str) -> list[str]:
    """The environment variables that texts want, each once. UserError for a name that none can have."""
    names = dict.fromkeys(name for text in values for name in _NAME.findall(text) if name not in ("image", "images"))
    odd = next((name for name in names if not _ENVIRONMENT.fullmatch(name)), None)
    if odd is not None:
        raise UserError(f"expected ${{NAME}} with the name of an environment variable, got ${{{odd[:40]}}}")
    return list(names)


def with_environment(node: Any, fill: Callable[[str], str]) -> Any:
    """The document with ``fill`` applied to every text but the places of images, which are left."""
    if isinstance(node, dict):
        return {key: with_environment(value, fill) for key, value in node.items()}
    if isinstance(node, list):
        return [with_environment(item, fill) for item in node]
    if not isinstance(node, str):
        return node
    parts = re.split(r"(\$\{images?\})", node)
    return "".join(part if part in (IMAGE, IMAGES) else fill(part) for part in parts)


def fill_images(node: Any, images: Sequence[Any]) -> Any:
    """The document for these encoded images."""
    if isinstance(node, dict):
        return {key: fill_images(value, images) for key, value in node.items()}
    if isinstance(node, list):
        if len(node) == 1 and needs_one(node[0]):
            return [fill_images(node[0], [image]) for image in images]
        return [fill_images(item, images) for item in node]
    if node == IMAGES:
        return list(images)
    if node == IMAGE:
        return images[0]
    return node.replace(IMAGE, images[0]) if isinstance(node, str) and IMAGE in node else node


def needs_one(node: object) -> bool:
    """Whether ``${image}`` stands in a document outside every list that would be repeated for it."""
    if isinstance(node, str):
        return IMAGE in node
    if isinstance(node, dict):
        return any(map(needs_one, node.values()))
    return isinstance(node, list) and len(node) != 1 and any(map(needs_one, node))
