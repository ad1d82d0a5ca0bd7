"""What in a sample answer may be the scores or the label of an image; a heuristic. No torch."""

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dfme.teachers.remote.json_bodies import as_number

MAX_DEPTH = 16
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCORES = re.compile("score|prob|confidence|logit|predict|output|result|percent", re.IGNORECASE)
LABELS = re.compile("label|class|name|tag|categor|predict|result", re.IGNORECASE)
_SURE_LABELS = re.compile("label|class|tag|categor", re.IGNORECASE)
IDS = re.compile(r"label|class|categor|(^|[._])(id|index|idx)(s|es)?$", re.IGNORECASE)
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


class Candidate(NamedTuple):
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


def best_candidate(document: object) -> Candidate | None:
    """The part that is most surely an image's scores or label; None where nothing may be."""
    return max(_candidates(document, "", 0), key=lambda candidate: candidate.weight, default=None)


def chat_text(document: object) -> str | None:
    """The path of the text in a language model's answer, perhaps empty; None for any other
    answer.
    """
    dicts = list(dicts_in(document))
    if not any(CHAT_KEYS & node.keys() or {"role", "content"} <= node.keys() for _, node in dicts):
        return None
    for path, node in dicts:
        for key in CHAT_TEXTS:
            if isinstance(node.get(key), str):
                return joined(path, key)
    return ""


def parts_in(
    node: object, path: str = "", *, first: bool = False, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """A document and everything in it, with paths; ``first``: of a list the first item alone."""
    if depth > MAX_DEPTH:
        return
    yield path, node
    inside: list[tuple[str, object]] = []
    if isinstance(node, dict):
        inside = [(joined(path, name), item) for name, item in node.items()]
    elif isinstance(node, list):
        items = node[:1] if first else node
        inside = [(f"{path}[{0 if first else '*'}]", item) for item in items]
    for place, item in inside:
        yield from parts_in(item, place, first=first, depth=depth + 1)


def dicts_in(document: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a document with their paths; of a list the first entry alone."""
    return ((path, node) for path, node in parts_in(document, first=True) if isinstance(node, dict))


def _candidates(value: Any, path: str, depth: int) -> Iterator[Candidate]:
    """Everything in a document that may be the scores or the label of one image."""
    if depth > MAX_DEPTH:
        return
    key = last_key(path)
    if isinstance(value, dict):
        yield from _mapping(value, path, key)
        if lists := _parallel(value):
            yield lists._replace(path=path)
        for name, item in value.items():
            if is_name(name) and '"' not in name:
                yield from _candidates(item, joined(path, name), depth + 1)
    elif isinstance(value, list):
        yield from _listed(value, path, depth)
    elif isinstance(value, str) and is_name(value) and LABELS.search(key):
        doubt = bool(_OTHER_NAMES.search(key))
        yield Candidate(
            1.0 + 0.5 * bool(_SURE_LABELS.search(key)) - 0.8 * doubt, path, "name", [], [value]
        )
    elif type(value) is int and value >= 0 and LABELS.search(key):
        yield Candidate(1.0, path, "number", [], [])


def _mapping(value: dict[str, Any], path: str, key: str) -> Iterator[Candidate]:
    """An object that has a number for each name."""
    if len(value) > 1 and all(map(is_name, value)) and all(map(_is_score, value.values())):
        scores = list(map(_number, value.values()))
        if _may_be_scores(list(value.values()), key):
            yield Candidate(
                _weight(scores, key),
                path,
                "mapping",
                scores,
                list(value),
                percent=_has_percent(value.values()),
            )


def _listed(value: list[Any], path: str, depth: int) -> Iterator[Candidate]:
    """The candidates in a list: pairs, scores, or an entry for each image."""
    key = last_key(path)
    pairs = _pairs(value) or _rows(value) or _single_entries(value)
    if pairs is not None:
        yield pairs._replace(path=path)
    elif len(value) > 1 and all(map(_is_score, value)):
        if _may_be_scores(value, key):
            scores = list(map(_number, value))
            yield Candidate(
                _weight(scores, key), path, "scores", scores, [], percent=_has_percent(value)
            )
    elif value and "[*]" not in path and all(_is_like(value[0], item) for item in value):
        for candidate in _candidates(value[0], f"{path}[*]", depth + 1):
            yield candidate._replace(images=len(value))


def _pairs(entries: list[Any]) -> Candidate | None:
    """A list of objects that have a label and a score each."""
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return None
    leaves = [dict(leaves_of(entry)) for entry in entries]
    shared = [path for path in leaves[0] if all(path in leaf for leaf in leaves)]
    texts = [path for path in shared if all(isinstance(leaf[path], str) for leaf in leaves)]
    labels = [path for path in texts if all(is_name(leaf[path]) for leaf in leaves)]
    scores = [path for path in shared if all(_is_score(leaf[path]) for leaf in leaves)]
    if not scores:
        return None
    score = max(
        scores,
        key=lambda path: (bool(_SCORES.search(path)), not isinstance(leaves[0][path], int)),
    )
    labels = sorted(
        (path for path in labels if path != score), key=lambda path: not LABELS.search(path)
    )
    numbered = [path for path in scores if path != score and IDS.search(path)]
    labels += [path for path in numbered if type(leaves[0][path]) is int]
    label = next(
        (path for path in labels if len({leaf[path] for leaf in leaves}) == len(leaves)), None
    )
    if label is None:
        return None
    values = [leaf[score] for leaf in leaves]
    return _named("pairs", [str(leaf[label]) for leaf in leaves], values, label, score)


def _rows(entries: list[Any]) -> Candidate | None:
    """A list of lists with a label and a score each."""
    if not entries or not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        return None
    for label, score in ((0, 1), (1, 0)):
        names = [entry[label] for entry in entries]
        values = [entry[score] for entry in entries]
        if _are_names(names) and all(map(_is_score, values)):
            return _named("pairs", names, values, str(label), str(score))
    return None


def _single_entries(entries: list[Any]) -> Candidate | None:
    """A list of objects that have one name and its score each."""
    if len(entries) < 2 or not all(
        isinstance(entry, dict) and len(entry) == 1 for entry in entries
    ):
        return None
    names = [name for entry in entries for name in entry]
    values = [score for entry in entries for score in entry.values()]
    if not _are_names(names) or not all(map(_is_score, values)):
        return None
    return _named("mapping", names, values)


class _Names(NamedTuple):
    """Names in a list: the list's path, that of the names, these, and whether they are numbers."""

    place: str
    path: str
    names: list[str]
    numbered: bool = False


def _parallel(value: dict[str, Any]) -> Candidate | None:
    """A list of labels and, beside it, as long a list of scores."""
    lists = [(path, path, item) for path, item in leaves_of(value) if isinstance(item, list)]
    inner = [(f"{path}[0]", path, item[0]) for path, _, item in lists if item]
    opened = lists + [entry for entry in inner if isinstance(entry[2], list)]
    scores = [
        (path, items)
        for path, key, items in opened
        if items and all(map(_is_score, items)) and not _NO_SCORES.search(key)
    ]
    scores.sort(key=lambda entry: not _SCORES.search(entry[0]))
    lists_of_names = [_names_in(path, key, items) for path, key, items in opened if items]
    labels = [entry for entry in lists_of_names if entry is not None]
    labels.sort(key=lambda entry: (entry.numbered, not LABELS.search(entry.place)))
    for path, values in scores:
        for label in labels:
            if label.place != path and len(label.names) == len(values):
                return _named("lists", label.names, values, label.path, path)
    return None


def _names_in(place: str, key: str, items: list[Any]) -> _Names | None:
    """The names in a list; None if it has none."""
    if _are_names(items):
        return _Names(place, place, items)
    if all(isinstance(item, dict) for item in items):
        texts = [leaf for leaf, text in leaves_of(items[0]) if isinstance(text, str)]
        for leaf in sorted(texts, key=lambda leaf: not LABELS.search(leaf)):
            names = [dict(leaves_of(item)).get(leaf) for item in items]
            if _are_names(names):
                return _Names(place, joined(f"{place}[*]", leaf), list(map(str, names)))
    if all(type(item) is int and item >= 0 for item in items) and IDS.search(key):
        return _Names(place, place, list(map(str, dict.fromkeys(items))), numbered=True)
    return None


def _named(
    form: str, names: list[str], scores: list[Any], label: str = "", score: str = ""
) -> Candidate:
    values = list(map(_number, scores))
    return Candidate(
        6.0 + _weight(values, score),
        "",
        form,
        values,
        names,
        label,
        score,
        percent=_has_percent(scores),
    )


def leaves_of(entry: dict[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What stands in an object, and in objects in it, with its path."""
    for name, item in entry.items():
        if is_name(name) and '"' not in name:
            if isinstance(item, dict) and depth < 2:
                yield from leaves_of(item, joined(path, name), depth + 1)
            else:
                yield joined(path, name), item


def last_key(path: str) -> str:
    """The last name of a path."""
    return path.rpartition(".")[2]


def joined(path: str, name: str) -> str:
    """The path of what has this name at a path."""
    plain = f".{name}" if path else name
    return path + (plain if _PLAIN.fullmatch(name) else f'["{name}"]')


def _weight(values: list[float], key: str) -> float:
    return 0.5 + 4.0 * is_distribution(values) + 2.0 * bool(_SCORES.search(key))


def _may_be_scores(scores: list[Any], key: str) -> bool:
    """False for what is rather a box, a size, a count or a price: counts are whole numbers."""
    values = list(map(_number, scores))
    if _SCORES.search(key):
        return True
    if _NO_SCORES.search(key):
        return False
    return is_distribution(values) or not all(type(score) is int for score in scores)


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
