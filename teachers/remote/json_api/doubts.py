"""Reasons not to write the adapter that a sample answer seems to need. No torch."""

from __future__ import annotations

import re
from typing import Any

from dfme.errors import UserError
from dfme.teachers.remote.json_api.candidates import (
    IDS,
    LABELS,
    NEAR_ONE,
    Candidate,
    dicts_in,
    joined,
    last_key,
    leaves_of,
    parts_in,
)

_TOPS = re.compile(r"label|class|tag|categor|best|top", re.IGNORECASE)
_SCORES = re.compile(r"score|prob|confidence|percent", re.IGNORECASE)
_LIMITS = re.compile(r"threshold|limit|min", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;|\n\t]")


def require_no_doubt(document: object, candidate: Candidate) -> None:
    """UserError for scores that an adapter would read at wrong classes, or in a wrong form."""
    where = f"at {candidate.path}" if candidate.path else "of the whole answer"
    if candidate.form == "scores":
        _require_no_labels_elsewhere(document, candidate, where)
    if candidate.names and candidate.values:
        _require_no_other_top(document, candidate, where)
    total = sum(candidate.values) / candidate.scale
    if total > 1 + NEAR_ONE and all(0 <= s / candidate.scale <= 1 for s in candidate.values):
        raise UserError(
            f"--sample: the {len(candidate.values)} scores {where} all lie within 0 and 1 and add "
            f"up to {total:.4g}, so it is unclear what they are: probabilities add up to 1, and "
            "logits are rarely so small; they may be of several images, or one for each class "
            "alone: give the answer to one image, or write the adapter by hand (docs/adapters.md)"
        )


def _require_no_labels_elsewhere(document: object, candidate: Candidate, where: str) -> None:
    """Sorted scores are read by their places, which are not those of classes if labels say so."""
    falling = sorted(candidate.values, reverse=True)
    if candidate.values not in (falling, falling[::-1]):
        return
    labels = (path for path, part in parts_in(document) if _may_be_labels(part, path, candidate))
    path = next(labels, None)
    if path is not None:
        raise UserError(
            f"--sample: the {len(candidate.values)} scores {where} are sorted, and as many labels "
            f"stand at {path[:100]!r}, so that places may not be classes: no adapter is written; "
            "write it by hand, with form: lists if the labels change with the image and form: "
            "scores if they never do (docs/adapters.md)"
        )


def _may_be_labels(part: object, path: str, candidate: Candidate) -> bool:
    """True for as many labels as there are scores: in a list, an object or one text."""
    count = len(candidate.values)
    key = last_key(path)
    if isinstance(part, str):
        return _pieces(part, key) == count
    if isinstance(part, list):
        around = path == candidate.path or candidate.path.startswith(f"{path}[*]")
        return len(part) == count and not around and _are_labels(part, key)
    if not isinstance(part, dict) or len(part) != count:
        return False
    numbered = all(name.isdecimal() for name in part)
    return all(isinstance(item, str) for item in part.values()) and bool(
        numbered or IDS.search(key)
    )


def _are_labels(items: list[Any], key: str) -> bool:
    """True for texts, for objects with a text in each, and for numbers that may be of classes."""
    if all(isinstance(item, str) for item in items):
        return True
    if all(isinstance(item, dict) for item in items):
        return all(any(isinstance(text, str) for text in item.values()) for item in items)
    are_numbers = all(type(item) is int for item in items) and items != [*range(len(items))]
    return are_numbers and bool(IDS.search(key))


def _pieces(text: str, key: str) -> int:
    """How many labels one text may hold; 1 for a sentence."""
    pieces = [piece for piece in _BETWEEN.split(text) if piece.strip()]
    if len(pieces) == 1 and LABELS.search(key):
        pieces = text.split()
    return len(pieces) if len(pieces) > 2 or LABELS.search(key) else 1


def _require_no_other_top(document: object, candidate: Candidate, where: str) -> None:
    """UserError for a label with a score of its own, mostly the best, that would not be read."""
    for path, node in dicts_in(document):
        leaves = dict(leaves_of(node))
        scored = any(_is_top_score(key, item, node, candidate) for key, item in leaves.items())
        tops = [key for key, item in leaves.items() if _is_top_label(key, item, node, candidate)]
        if scored and tops and not any(str(leaves[key]) in candidate.names for key in tops):
            raise UserError(
                f"--sample: the scores {where} lack the label at "
                f"{joined(path, tops[0])[:100]!r}, which has a score of its own: an adapter reads "
                "scores from one place, so no adapter is written; ask the service for an answer "
                "with all of them in one list"
            )


def _is_top_score(key: str, item: object, node: dict[str, Any], candidate: Candidate) -> bool:
    if not isinstance(item, int | float) or isinstance(item, bool):
        return False
    if key == candidate.score:
        return True
    return key in node and bool(_SCORES.search(key)) and not _LIMITS.search(key)


def _is_top_label(key: str, item: object, node: dict[str, Any], candidate: Candidate) -> bool:
    if not isinstance(item, str) and type(item) is not int:
        return False
    if key == candidate.label:
        return True
    return key in node and bool(_TOPS.search(key)) and not _SCORES.search(key)
