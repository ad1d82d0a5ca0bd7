"""What in a sample answer speaks against the adapter that it seems to need. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dfme.errors import OptionError
from dfme.teachers.remote.json_api.candidates import (
    NEAR_ONE,
    Found,
    dicts_in,
    joined,
    leaves_of,
)

_MAX_DEPTH = 16
_LABELS = re.compile(r"label|class|name|tag|categor|predict|result", re.IGNORECASE)
_TOPS = re.compile(r"label|class|tag|categor|best|top", re.IGNORECASE)
_NUMBERS = re.compile(r"label|class|categor|(^|[._])(id|index|idx)(s|es)?$", re.IGNORECASE)
_SCORES = re.compile(r"score|prob|confidence|percent", re.IGNORECASE)
_LIMITS = re.compile(r"threshold|limit|min", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;|\n\t]")


def require_no_doubt(document: object, found: Found) -> None:
    """UserError for scores that an adapter would read at wrong classes, or in a wrong form."""
    where = f"at {found.path}" if found.path else "of the whole answer"
    if found.form == "scores":
        _require_no_labels_elsewhere(document, found, where)
    if found.names and found.values:
        _require_no_other_top(document, found, where)
    total = sum(found.values) / found.scale
    within = all(0 <= score / found.scale <= 1 for score in found.values)
    if within and total > 1 + NEAR_ONE:
        raise OptionError(
            "sample",
            f"the {len(found.values)} scores {where} all lie within 0 and 1 and add up to "
            f"{total:.4g}, so it is unclear what they are: probabilities add up to 1, and "
            "logits are rarely so small; they may be of several images, or one for each "
            "class alone: give the answer to one image, or write the adapter by hand "
            "(docs/adapters.md)",
        )


def _require_no_labels_elsewhere(document: object, found: Found, where: str) -> None:
    """Sorted scores are read by their places, which are not those of classes if labels say so."""
    falling = sorted(found.values, reverse=True)
    if found.values not in (falling, falling[::-1]):
        return
    path = next(_labels_in(document, "", found, 0), None)
    if path is not None:
        raise OptionError(
            "sample",
            f"the {len(found.values)} scores {where} are sorted, and as many labels stand at "
            f"{path[:100]!r}, so that places may not be classes: no adapter is written; write "
            "it by hand, with form: lists if the labels change with the image and form: "
            "scores if they never do (docs/adapters.md)",
        )


def _labels_in(node: Any, path: str, found: Found, depth: int) -> Iterator[str]:
    """Paths of as many labels as there are scores: in a list, an object or one text."""
    if depth > _MAX_DEPTH:
        return
    count = len(found.values)
    key = path.rpartition(".")[2]
    if isinstance(node, str):
        if _pieces(node, key) == count:
            yield path
    elif isinstance(node, list):
        around = path == found.path or found.path.startswith(f"{path}[*]")
        if len(node) == count and not around and _are_labels(node, key):
            yield path
        for item in node:
            yield from _labels_in(item, f"{path}[*]", found, depth + 1)
    elif isinstance(node, dict):
        texts = all(isinstance(item, str) for item in node.values())
        numbered = all(name.isdecimal() for name in node)
        if len(node) == count and texts and (numbered or _NUMBERS.search(key)):
            yield path
        for name, item in node.items():
            yield from _labels_in(item, joined(path, name), found, depth + 1)


def _are_labels(items: list[Any], key: str) -> bool:
    """True for texts, for objects with a text in each, and for numbers that may be of classes."""
    if all(isinstance(item, str) for item in items):
        return True
    if all(isinstance(item, dict) for item in items):
        return all(any(isinstance(text, str) for text in item.values()) for item in items)
    whole = all(type(item) is int for item in items)
    return whole and items != [*range(len(items))] and bool(_NUMBERS.search(key))


def _pieces(text: str, key: str) -> int:
    """How many labels one text may hold; 1 for a sentence."""
    pieces = [piece for piece in _BETWEEN.split(text) if piece.strip()]
    if len(pieces) == 1 and _LABELS.search(key):
        pieces = text.split()
    return len(pieces) if len(pieces) > 2 or _LABELS.search(key) else 1


def _require_no_other_top(document: object, found: Found, where: str) -> None:
    """A label with a score that is not among those that would be read: the best of them, mostly."""
    for path, node in dicts_in(document):
        leaves = dict(leaves_of(node))
        scored = any(_is_top_score(key, item, node, found) for key, item in leaves.items())
        tops = [key for key, item in leaves.items() if _is_top_label(key, item, node, found)]
        known = any(str(leaves[key]) in found.names for key in tops)
        if scored and tops and not known:
            raise OptionError(
                "sample",
                f"the scores {where} lack the label at {joined(path, tops[0])[:100]!r}, which "
                "has a score of its own: an adapter reads scores from one place, so no "
                "adapter is written; ask the service for an answer with all of them in one "
                "list",
            )


def _is_top_score(key: str, item: object, node: dict[str, Any], found: Found) -> bool:
    if not isinstance(item, int | float) or isinstance(item, bool):
        return False
    if key == found.score:
        return True
    return key in node and bool(_SCORES.search(key)) and not _LIMITS.search(key)


def _is_top_label(key: str, item: object, node: dict[str, Any], found: Found) -> bool:
    if not isinstance(item, str) and type(item) is not int:
        return False
    if key == found.label:
        return True
    return key in node and bool(_TOPS.search(key)) and not _SCORES.search(key)
