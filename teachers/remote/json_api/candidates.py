"""What in a sample answer may be the scores or the label of an image; a heuristic. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dfme.teachers.remote.json_bodies import as_number

_MAX_DEPTH = 16
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCORES = re.compile("score|prob|confidence|logit|predict|output|result|percent", re.IGNORECASE)
_LABELS = re.compile("label|class|name|tag|categor|predict|result", re.IGNORECASE)
_SURE_LABELS = re.compile("label|class|tag|categor", re.IGNORECASE)
_IDS = re.compile(r"label|class|categor|(^|[._])(id|index|idx)(s|es)?$", re.IGNORECASE)
_OTHER_NAMES = re.compile("model|file|version|user|host|server|service|status", re.IGNORECASE)
_NO_SCORES = re.compile(
    "box|bound|rect|polygon|coord|point|embed|feature|vector|size|shape", re.IGNORECASE
)
NEAR_ONE = 0.02  # how far a sum of rounded probabilities may be from one

CHAT_KEYS = frozenset(
    {
        "finish_reason",
        "finishReason",
        "stop_reason",
        "stopReason",
        "prompt_tokens",
        "completion_tokens",
        "output_tokens",
        "outputTokens",
        "promptTokenCount",
        "generated_text",
        "eval_count",
    }
)
"""Keys of what language models answer."""

CHAT_TEXTS = ("content", "text", "generated_text", "response", "completion")
"""Keys of the texts in it."""


class Found(NamedTuple):
    """A part of an answer that may be the scores of one image; ``weight``: how surely, a
    heuristic.
    """

    weight: float
    path: str
    form: str
    values: list[float]
    names: list[str]
    label: str = ""
    score: str = ""
    images: int = 1
    percent: bool = False

    @property
    def scale(self) -> float:
        """Divisor of the scores: 100 if they add up to that, pairs to half of it; a heuristic."""
        return 100.0 if self.percent else scale_of(self.values, self.form)


def best_candidate(document: object) -> Found | None:
    """The part that is most surely an image's scores or label; None where nothing may be."""
    return max(_candidates(document, "", 0), key=lambda found: found.weight, default=None)


def chat_text(document: object) -> str | None:
    """The path of the text in a language model's answer, perhaps empty; None for any other
    answer.
    """
    dicts = list(dicts_in(document))
    is_chat = any(
        CHAT_KEYS & node.keys() or {"role", "content"} <= node.keys() for _, node in dicts
    )
    if not is_chat:
        return None
    for path, node in dicts:
        for key in CHAT_TEXTS:
            if isinstance(node.get(key), str):
                return joined(path, key)
    return ""


def dicts_in(document: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a document with their paths; of a list the first entry alone."""
    return _dicts(document, "", 0)


def _dicts(node: object, path: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, dict):
        yield path, node
        for key, item in node.items():
            yield from _dicts(item, joined(path, key), depth + 1)
    elif isinstance(node, list):
        for place, item in enumerate(node[:1]):
            yield from _dicts(item, f"{path}[{place}]", depth + 1)


def _candidates(value: Any, path: str, depth: int) -> Iterator[Found]:
    """Everything in a document that may be the scores or the label of one image."""
    if depth > _MAX_DEPTH:
        return
    key = path.rpartition(".")[2]
    if isinstance(value, dict):
        yield from _mapping(value, path, key)
        if lists := _parallel(value):
            yield lists._replace(path=path)
        for name, item in value.items():
            if is_name(name) and '"' not in name:
                yield from _candidates(item, joined(path, name), depth + 1)
    elif isinstance(value, list):
        yield from _listed(value, path, depth)
    elif isinstance(value, str) and is_name(value) and _LABELS.search(key):
        doubt = bool(_OTHER_NAMES.search(key))
        yield Found(
            1.0 + 0.5 * bool(_SURE_LABELS.search(key)) - 0.8 * doubt, path, "name", [], [value]
        )
    elif type(value) is int and value >= 0 and _LABELS.search(key):
        yield Found(1.0, path, "number", [], [])


def _mapping(value: dict[str, Any], path: str, key: str) -> Iterator[Found]:
    """An object that has a number for each name."""
    if len(value) > 1 and all(map(is_name, value)) and all(map(_is_score, value.values())):
        scores = list(map(_number, value.values()))
        if _may_be_scores(list(value.values()), key):
            percent = _has_percent(value.values())
            yield Found(_weight(scores, key), path, "mapping", scores, list(value), percent=percent)


def _listed(value: list[Any], path: str, depth: int) -> Iterator[Found]:
    """The candidates in a list: pairs, scores, or an entry for each image."""
    key = path.rpartition(".")[2]
    pairs = _pairs(value) or _rows(value) or _single_entries(value)
    if pairs is not None:
        yield pairs._replace(path=path)
    elif len(value) > 1 and all(map(_is_score, value)):
        if _may_be_scores(value, key):
            scores = list(map(_number, value))
            yield Found(
                _weight(scores, key), path, "scores", scores, [], percent=_has_percent(value)
            )
    elif value and "[*]" not in path and all(_is_like(value[0], item) for item in value):
        for found in _candidates(value[0], f"{path}[*]", depth + 1):
            yield found._replace(images=len(value))


def _pairs(entries: list[Any]) -> Found | None:
    """A list of objects that have a label and a score each."""
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return None
    leaves = [dict(_leaves(entry, "", 0)) for entry in entries]
    shared = [path for path in leaves[0] if all(path in each for each in leaves)]
    texts = [path for path in shared if all(isinstance(each[path], str) for each in leaves)]
    labels = [path for path in texts if all(is_name(each[path]) for each in leaves)]
    scores = [path for path in shared if all(_is_score(each[path]) for each in leaves)]
    if not scores:
        return None

    def surely(path: str) -> tuple[bool, bool]:
        return bool(_SCORES.search(path)), not isinstance(leaves[0][path], int)

    score = max(scores, key=surely)
    labels = sorted(
        (path for path in labels if path != score), key=lambda path: not _LABELS.search(path)
    )
    numbered = [path for path in scores if path != score and _IDS.search(path)]
    labels += [path for path in numbered if type(leaves[0][path]) is int]
    label = next(
        (path for path in labels if len({each[path] for each in leaves}) == len(leaves)), None
    )
    if label is None:
        return None
    given = [each[score] for each in leaves]
    names = [str(each[label]) for each in leaves]
    return _named("pairs", names, given, label, score)


def _rows(entries: list[Any]) -> Found | None:
    """A list of lists with a label and a score each."""
    if not entries or not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        return None
    for label, score in ((0, 1), (1, 0)):
        names = [entry[label] for entry in entries]
        given = [entry[score] for entry in entries]
        if _are_names(names) and all(map(_is_score, given)):
            return _named("pairs", names, given, str(label), str(score))
    return None


def _single_entries(entries: list[Any]) -> Found | None:
    """A list of objects that have one name and its score each."""
    if len(entries) < 2 or not all(
        isinstance(entry, dict) and len(entry) == 1 for entry in entries
    ):
        return None
    names = [name for entry in entries for name in entry]
    given = [score for entry in entries for score in entry.values()]
    if not _are_names(names) or not all(map(_is_score, given)):
        return None
    return _named("mapping", names, given)


def _parallel(value: dict[str, Any]) -> Found | None:
    """A list of labels and, beside it, as long a list of scores."""
    lists = [(path, item) for path, item in _leaves(value, "", 0) if isinstance(item, list)]
    opened = [(path, path, item) for path, item in lists]
    opened += [
        (f"{path}[0]", path, item[0]) for path, item in lists if item and isinstance(item[0], list)
    ]
    scores = [
        (path, items)
        for path, key, items in opened
        if items and all(map(_is_score, items)) and not _NO_SCORES.search(key)
    ]
    scores.sort(key=lambda found: not _SCORES.search(found[0]))
    names = [(path, *_names_in(path, key, items)) for path, key, items in opened if items]
    names = [found for found in names if found[2]]
    names.sort(key=lambda found: (found[3], not _LABELS.search(found[0])))
    for score, given in scores:
        for place, label, called, _ in names:
            if place != score and len(called) == len(given):
                return _named("lists", called, given, label, score)
    return None


def _names_in(path: str, key: str, items: list[Any]) -> tuple[str, list[str], bool]:
    """The path of the names in a list, the names, and whether they are numbers; no names if it has
    none.
    """
    if _are_names(items):
        return path, items, False
    if all(isinstance(item, dict) for item in items):
        shared = [leaf for leaf, text in _leaves(items[0], "", 0) if isinstance(text, str)]
        for leaf in sorted(shared, key=lambda leaf: not _LABELS.search(leaf)):
            texts = [dict(_leaves(item, "", 0)).get(leaf) for item in items]
            if _are_names(texts):
                return joined(f"{path}[*]", leaf), list(map(str, texts)), False
    if all(type(item) is int and item >= 0 for item in items) and _IDS.search(key):
        return path, list(map(str, dict.fromkeys(items))), True
    return path, [], True


def _named(
    form: str, names: list[str], given: list[Any], label: str = "", score: str = ""
) -> Found:
    values = list(map(_number, given))
    return Found(
        6.0 + _weight(values, score),
        "",
        form,
        values,
        names,
        label,
        score,
        percent=_has_percent(given),
    )


def leaves_of(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What stands in an object, and in objects in it, with its path."""
    return _leaves(entry, "", 0)


def _leaves(entry: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, item in entry.items():
        if is_name(name) and '"' not in name:
            if isinstance(item, dict) and depth < 2:
                yield from _leaves(item, joined(path, name), depth + 1)
            else:
                yield joined(path, name), item


def joined(path: str, name: str) -> str:
    """The path of what has this name at a path."""
    plain = f".{name}" if path else name
    return path + (plain if _PLAIN.fullmatch(name) else f'["{name}"]')


def _weight(values: list[float], key: str) -> float:
    return 0.5 + 4.0 * is_distribution(values) + 2.0 * bool(_SCORES.search(key))


def _may_be_scores(given: list[Any], key: str) -> bool:
    """False for what is rather a box, a size, a count or a price: counts are whole numbers."""
    values = list(map(_number, given))
    if _SCORES.search(key):
        return True
    if _NO_SCORES.search(key):
        return False
    return is_distribution(values) or not all(type(score) is int for score in given)


def scale_of(values: list[float], form: str = "") -> float:
    """100 where scores are percentages, else 1."""
    least = 50.0 if form in ("pairs", "lists") else 100 * (1 - NEAR_ONE)
    within = values and min(values) >= 0 and least <= sum(values) <= 100 * (1 + NEAR_ONE)
    return 100.0 if within else 1.0


def is_distribution(values: list[float], scale: float | None = None) -> bool:
    """True if they are probabilities of all classes, or percentages."""
    return min(values) >= 0 and abs(sum(values) / (scale or scale_of(values)) - 1) <= NEAR_ONE


def _is_like(first: object, other: object) -> bool:
    """True if both may be answers of one form."""
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys()
    return type(first) is type(other)


def _number(value: object) -> float:
    number = as_number(value)
    assert isinstance(number, int | float)
    return float(number)


def _is_score(value: object) -> bool:
    """A number, or a text that is surely one: with a point, or a sign of per cent."""
    if isinstance(value, str):
        return ("." in value or "%" in value) and not isinstance(as_number(value), str)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _has_percent(values: Any) -> bool:
    return any(isinstance(value, str) and "%" in value for value in values)


def _are_names(items: list[Any]) -> bool:
    """True for texts, each once, that are no numbers themselves."""
    texts = [
        item for item in items if isinstance(item, str) and is_name(item) and not _is_score(item)
    ]
    return 0 < len(texts) == len(items) == len(set(texts))


def is_name(text: str) -> bool:
    """True for what may be a name: printable, with no blank around it."""
    return text.isprintable() and 0 < len(text.strip()) == len(text) <= 200
