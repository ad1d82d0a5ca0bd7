"""First adapter from a sample answer: where the scores are, and their form. No torch."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dfme.config.values import from_mapping
from dfme.config.yaml_files import parse_yaml
from dfme.data.class_names import read_names
from dfme.errors import Unusable, UserError
from dfme.teachers.remote.json_api.adapter_file import problems
from dfme.teachers.remote.json_api.description import Description
from dfme.teachers.remote.json_bodies import outline, parse

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 16
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SCORES = re.compile("score|prob|confidence|logit|predict|output|result", re.IGNORECASE)
_LABELS = re.compile("label|class|name|tag|categor|predict|result", re.IGNORECASE)
_IDS = re.compile(r"label|class|categor|(^|[._])(id|index|idx)$", re.IGNORECASE)
_NEAR_ONE = 0.02  # how far a sum of rounded probabilities may be from one


class Found(NamedTuple):
    """A part of an answer that may be the scores of one image; ``weight``: how surely, a heuristic."""

    weight: float
    path: str
    form: str
    values: list[float]
    names: list[str]
    label: str = ""
    score: str = ""
    images: int = 1


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter from a file with a sample answer; report what is left to fill in.

    UserError for a file that is none, an answer without scores or labels, and a path that exists.
    """
    document = _read(Path(sample))
    found = max(_candidates(document, "", 0), key=lambda found: found.weight, default=None)
    if found is None:
        raise UserError(
            f"--sample: expected an answer with scores or a label in it, got {outline(document)[:300]}; "
            "docs/adapters.md has the forms that can be read"
        )
    text = adapter_text(found)
    description = from_mapping(Description, parse_yaml(text), prefix=f"{sample}: ")
    for problem in problems(description):
        raise UserError(f"{sample}: the answer's names fit into no adapter: {problem}")
    if description.answer.classes:
        read_names(description.answer.classes, f"{sample}: its labels")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = "it is there already" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"--write-adapter: cannot write {path}: {reason}; name another file") from None
    what = f"{len(found.values)} scores" if found.values else f"the {found.form} of a class"
    where = f"at {found.path}" if found.path else "as the whole answer"
    return (
        f"{path}: answer.form {found.form}, {what} {where}; fill in what is marked TODO "
        f"({text.count('TODO')} places)"
    )


def _read(path: Path) -> object:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"--sample: cannot read {path}: {error.strerror}") from None
    if len(body) > _MAX_BYTES:
        raise UserError(f"--sample: expected at most {_MAX_BYTES:,} bytes, {path} has more")
    try:
        return parse(body)
    except Unusable as error:
        raise UserError(f"--sample: {path}: {error}") from None


def _candidates(value: Any, path: str, depth: int) -> Iterator[Found]:
    """Everything in a document that may be the scores or the label of one image."""
    if depth > _MAX_DEPTH:
        return
    key = path.rpartition(".")[2]
    if isinstance(value, dict):
        numbers = {name: float(score) for name, score in value.items() if _is_number(score)}
        if len(numbers) == len(value) > 1 and all(map(_is_name, value)):
            scores = list(numbers.values())
            yield Found(_weight(scores, key), path, "mapping", scores, list(numbers))
        for name, item in value.items():
            if _is_name(name) and '"' not in name:
                yield from _candidates(item, _joined(path, name), depth + 1)
    elif isinstance(value, list):
        yield from _listed(value, path, depth)
    elif isinstance(value, str) and _is_name(value) and _LABELS.search(key):
        yield Found(1.0, path, "name", [], [value])
    elif type(value) is int and value >= 0 and _LABELS.search(key):
        yield Found(1.0, path, "number", [], [])


def _listed(value: list[Any], path: str, depth: int) -> Iterator[Found]:
    """The candidates in a list: pairs, scores, or an entry for each image."""
    pairs = _pairs(value)
    if pairs is not None:
        yield pairs._replace(path=path)
    elif len(value) > 1 and all(map(_is_number, value)):
        scores = list(map(float, value))
        yield Found(_weight(scores, path.rpartition(".")[2]), path, "scores", scores, [])
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
    labels = [path for path in texts if all(_is_name(each[path]) for each in leaves)]
    scores = [path for path in shared if all(_is_number(each[path]) for each in leaves)]
    if not scores:
        return None
    score = max(scores, key=lambda path: (bool(_SCORES.search(path)), isinstance(leaves[0][path], float)))
    labels.sort(key=lambda path: not _LABELS.search(path))
    numbered = [path for path in scores if path != score and _IDS.search(path)]
    labels += [path for path in numbered if type(leaves[0][path]) is int]
    label = next((path for path in labels if len({each[path] for each in leaves}) == len(leaves)), None)
    if label is None:
        return None
    values = [float(each[score]) for each in leaves]
    names = [str(each[label]) for each in leaves]
    return Found(6.0 + _weight(values, score), "", "pairs", values, names, label, score)


def _leaves(entry: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, item in entry.items():
        if _is_name(name) and '"' not in name:
            if isinstance(item, dict) and depth < 2:
                yield from _leaves(item, _joined(path, name), depth + 1)
            else:
                yield _joined(path, name), item


def _joined(path: str, name: str) -> str:
    plain = f".{name}" if path else name
    return path + (plain if _PLAIN.fullmatch(name) else f'["{name}"]')


def _weight(values: list[float], key: str) -> float:
    return 2.0 + 3.0 * _is_distribution(values) + bool(_SCORES.search(key))


def _scale(values: list[float], form: str = "") -> float:
    """Divisor of the scores: 100 if they add up to that, pairs to half of it; a heuristic."""
    least = 50.0 if form == "pairs" else 100 * (1 - _NEAR_ONE)
    return 100.0 if values and min(values) >= 0 and least <= sum(values) <= 100 * (1 + _NEAR_ONE) else 1.0


def _is_distribution(values: list[float]) -> bool:
    return min(values) >= 0 and abs(sum(values) / _scale(values) - 1) <= _NEAR_ONE


def _is_like(first: object, other: object) -> bool:
    """True if both may be answers of one form."""
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys()
    return type(first) is type(other)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_name(text: str) -> bool:
    return text.isprintable() and 0 < len(text.strip()) == len(text) <= 200


def adapter_text(found: Found) -> str:
    """The YAML of a first adapter; what no answer tells is marked TODO."""
    mode = _mode(found)
    names = found.names + ["TODO the other classes"] * (len(found.names) == 1)
    known = found.form == "mapping" and mode != "logits" and _is_distribution(found.values)
    lines = [
        "# A first adapter, from one sample answer. Every key is explained in docs/adapters.md.",
        'url: "" # TODO where images are posted, or --teacher.url',
        "image:",
        "  encoding: png_base64 # how an image travels: also png, data_url, raw, raw_base64, list",
        *([f"batch: {found.images} # TODO the most images in one request"] if found.images > 1 else []),
        "request: # TODO as your request has it: json, bytes or multipart",
        "  json:",
        '    images: ["${image}"] # repeated for each image' if found.images > 1 else "    image: ${image}",
        "answer:",
        f"  path: {_text(found.path)}",
        f"  form: {found.form}",
        *([f"  label: {_text(found.label)}", f"  score: {_text(found.score)}"] if found.label else []),
    ]
    if _scale(found.values, found.form) != 1:
        lines.append("  scale: 100 # they add up to nearly that: percentages")
    if names:
        left = " # TODO all the classes, in the order of the student's; or a file with one a line"
        lines.append(f"  classes: [{', '.join(map(_text, names))}]{'' if known else left}")
    lines.append("teacher:")
    lines.append("  # shape: [3, 32, 32] # TODO an image's C, H, W, or --teacher.shape")
    if found.form == "scores":
        lines.append(f"  num_classes: {len(found.values)}")
    elif found.form == "number":
        lines.append("  # num_classes: 10 # TODO how many classes there are, or --teacher.num-classes")
    doubt = " (these are below zero or sum to more than one: are they logits?)" if mode == "logits" else ""
    return "\n".join([*lines, f"  label_mode: {mode} # what an answer reveals{doubt}", ""])


def _mode(found: Found) -> str:
    if not found.values:
        return "label"
    if min(found.values) < 0 or sum(found.values) / _scale(found.values, found.form) > 1 + _NEAR_ONE:
        return "logits"
    whole = found.form != "pairs" and _is_distribution(found.values)
    return "probabilities" if whole else f"top_k:{len(found.values)}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
