"""First adapter from a sample answer: where the scores are, and their form. No torch."""

import json
import re
from pathlib import Path
from typing import Any

from dfme.config.values import from_mapping
from dfme.config.yaml_files import parse_yaml
from dfme.data.class_names import read_names
from dfme.errors import OptionError, Unusable, UserError, flag
from dfme.teachers.remote.json_api.adapter_file import problems
from dfme.teachers.remote.json_api.candidates import (
    IDS,
    LABELS,
    NEAR_ONE,
    Candidate,
    best_candidate,
    chat_text,
    dicts_in,
    is_distribution,
    joined,
    last_key,
    leaves_of,
    parts_in,
)
from dfme.teachers.remote.json_api.description import Description
from dfme.teachers.remote.json_bodies import outline, parse

_MAX_BYTES = 1_000_000
_TOPS = re.compile(r"label|class|tag|categor|best|top", re.IGNORECASE)
_SCORES = re.compile(r"score|prob|confidence|percent", re.IGNORECASE)
_LIMITS = re.compile(r"threshold|limit|min", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;|\n\t]")


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter from a file with a sample answer; report what is left to fill in.

    UserError for a file that is none, an answer without scores or labels, and a path that exists.
    """
    document = _read(Path(sample))
    _require_no_chat(document)
    candidate = best_candidate(document)
    if candidate is None:
        raise OptionError(
            "sample",
            f"expected an answer with scores or a label in it, got {outline(document)[:300]}; "
            "docs/adapters.md has the forms that can be read",
        )
    require_no_doubt(document, candidate)
    text = adapter_text(candidate)
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
        raise OptionError(
            "write_adapter", f"cannot write {path}: {reason}; name another file"
        ) from None
    what = (
        f"{len(candidate.values)} scores"
        if candidate.values
        else f"the {candidate.form} of a class"
    )
    where = f"at {candidate.path}" if candidate.path else "as the whole answer"
    return (
        f"{path}: answer.form {candidate.form}, {what} {where}; fill in what is marked TODO "
        f"({text.count('TODO')} places)"
    )


def _require_no_chat(document: object) -> None:
    """UserError for what a language model answers: its text may say anything, in any words."""
    text = chat_text(document)
    if text is not None:
        where = f", at {text[:100]}" if text else ""
        raise OptionError(
            "sample",
            f"expected the answer of a classifier, got the text of a language model{where}, "
            "which names no class reliably: no adapter is written; if it says nothing but a "
            "class's name, write form: name by hand, with answer.no_answer for whatever else "
            "it says (docs/adapters.md)",
        )


def _read(path: Path) -> object:
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise OptionError("sample", f"cannot read {path}: {error.strerror}") from None
    if len(body) > _MAX_BYTES:
        raise OptionError("sample", f"expected at most {_MAX_BYTES:,} bytes, {path} has more")
    try:
        return parse(body)
    except Unusable as error:
        raise OptionError("sample", f"{path}: {error}") from None


def adapter_text(candidate: Candidate) -> str:
    """The YAML of a first adapter; what no answer tells is marked TODO."""
    mode = _mode(candidate)
    many = candidate.images > 1
    lines = [
        "# A first adapter, from one sample answer. Every key is explained in docs/adapters.md.",
        f'url: "" # TODO where images are posted, or {flag("teacher.url")}',
        "image:",
        "  encoding: png_base64 # how an image travels: also png, data_url, raw, raw_base64, list",
    ]
    if many:
        lines.append(f"batch: {candidate.images} # TODO the most images in one request")
    lines += [
        "request: # TODO as your request has it: json, bytes or multipart",
        "  json:",
        '    images: ["${image}"] # repeated for each image' if many else "    image: ${image}",
        "answer:",
        f"  path: {_text(candidate.path)}",
        f"  form: {candidate.form}",
    ]
    if candidate.label:
        lines += [f"  label: {_text(candidate.label)}", f"  score: {_text(candidate.score)}"]
    if candidate.scale != 1:
        lines.append("  scale: 100 # they add up to nearly that: percentages")
    if candidate.names:
        more = ["TODO the other classes"] if len(candidate.names) == 1 else []
        classes = f"  classes: [{', '.join(map(_text, [*candidate.names, *more]))}]"
        if candidate.form != "mapping" or mode == "logits" or not _is_complete(candidate):
            classes += " # TODO all the classes, in the order of the student's; or a file with one "
            classes += "a line"
        lines.append(classes)
    lines.append("teacher:")
    lines.append(f"  # shape: [3, 32, 32] # TODO an image's C, H, W, or {flag('teacher.shape')}")
    if candidate.form == "scores":
        lines.append(f"  num_classes: {len(candidate.values)}")
    elif candidate.form == "number":
        lines.append(
            "  # num_classes: 10 # TODO how many classes there are, or "
            f"{flag('teacher.num_classes')}"
        )
        lines.append('  # numbers from 1 on: form: name above, with classes: ["1", "2", ...]')
    doubt = " (these are below zero or sum to more than one: are they logits?)"
    end = doubt if mode == "logits" else ""
    lines.append(f"  label_mode: {mode} # what an answer reveals{end}")
    return "\n".join(lines) + "\n"


def _mode(candidate: Candidate) -> str:
    if not candidate.values:
        return "label"
    total = sum(candidate.values) / candidate.scale
    if min(candidate.values) < 0 or total > 1 + NEAR_ONE:
        return "logits"
    if candidate.form in ("scores", "mapping") and _is_complete(candidate):
        return "probabilities"
    return f"top_k:{len(candidate.values)}"


def _is_complete(candidate: Candidate) -> bool:
    return is_distribution(candidate.values, candidate.scale)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


# Reasons not to write the adapter that a sample answer seems to need


def require_no_doubt(document: object, candidate: Candidate) -> None:
    """UserError for scores that an adapter would read at wrong classes, or in a wrong form."""
    where = f"at {candidate.path}" if candidate.path else "of the whole answer"
    if candidate.form == "scores":
        _require_no_labels_elsewhere(document, candidate, where)
    if candidate.names and candidate.values:
        _require_no_other_top(document, candidate, where)
    total = sum(candidate.values) / candidate.scale
    if total > 1 + NEAR_ONE and all(0 <= s / candidate.scale <= 1 for s in candidate.values):
        raise OptionError(
            "sample",
            f"the {len(candidate.values)} scores {where} all lie within 0 and 1 and add "
            f"up to {total:.4g}, so it is unclear what they are: probabilities add up to 1, and "
            "logits are rarely so small; they may be of several images, or one for each class "
            "alone: give the answer to one image, or write the adapter by hand (docs/adapters.md)",
        )


def _require_no_labels_elsewhere(document: object, candidate: Candidate, where: str) -> None:
    """Sorted scores are read by their places, which are not those of classes if labels say so."""
    falling = sorted(candidate.values, reverse=True)
    if candidate.values not in (falling, falling[::-1]):
        return
    labels = (path for path, part in parts_in(document) if _may_be_labels(part, path, candidate))
    path = next(labels, None)
    if path is not None:
        raise OptionError(
            "sample",
            f"the {len(candidate.values)} scores {where} are sorted, and as many labels "
            f"stand at {path[:100]!r}, so that places may not be classes: no adapter is written; "
            "write it by hand, with form: lists if the labels change with the image and form: "
            "scores if they never do (docs/adapters.md)",
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
            raise OptionError(
                "sample",
                f"the scores {where} lack the label at "
                f"{joined(path, tops[0])[:100]!r}, which has a score of its own: an adapter reads "
                "scores from one place, so no adapter is written; ask the service for an answer "
                "with all of them in one list",
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
