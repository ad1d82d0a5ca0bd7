"""First adapter from a sample answer: where the scores are, and their form. No torch."""

import json
from pathlib import Path

from dfme.config.values import from_mapping
from dfme.config.yaml_files import parse_yaml
from dfme.data.class_names import read_names
from dfme.errors import OptionError, Unusable, UserError, flag
from dfme.teachers.remote.json_api.adapter_file import problems
from dfme.teachers.remote.json_api.candidates import (
    NEAR_ONE,
    Found,
    best_candidate,
    chat_text,
    is_distribution,
)
from dfme.teachers.remote.json_api.description import Description
from dfme.teachers.remote.json_api.doubts import require_no_doubt
from dfme.teachers.remote.json_bodies import outline, parse

_MAX_BYTES = 1_000_000


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter from a file with a sample answer; report what is left to fill in.

    UserError for a file that is none, an answer without scores or labels, and a path that exists.
    """
    document = _read(Path(sample))
    _require_no_chat(document)
    found = best_candidate(document)
    if found is None:
        raise OptionError(
            "sample",
            f"expected an answer with scores or a label in it, got {outline(document)[:300]}; "
            "docs/adapters.md has the forms that can be read",
        )
    require_no_doubt(document, found)
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
        raise OptionError(
            "write_adapter", f"cannot write {path}: {reason}; name another file"
        ) from None
    what = f"{len(found.values)} scores" if found.values else f"the {found.form} of a class"
    where = f"at {found.path}" if found.path else "as the whole answer"
    return (
        f"{path}: answer.form {found.form}, {what} {where}; fill in what is marked TODO "
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


def adapter_text(found: Found) -> str:
    """The YAML of a first adapter; what no answer tells is marked TODO."""
    mode = _mode(found)
    names = [*found.names]
    if len(names) == 1:
        names.append("TODO the other classes")
    known = found.form == "mapping" and mode != "logits" and _is_whole(found)
    lines = [
        "# A first adapter, from one sample answer. Every key is explained in docs/adapters.md.",
        f'url: "" # TODO where images are posted, or {flag("teacher.url")}',
        "image:",
        "  encoding: png_base64 # how an image travels: also png, data_url, raw, raw_base64, list",
        *(
            [f"batch: {found.images} # TODO the most images in one request"]
            if found.images > 1
            else []
        ),
        "request: # TODO as your request has it: json, bytes or multipart",
        "  json:",
        '    images: ["${image}"] # repeated for each image'
        if found.images > 1
        else "    image: ${image}",
        "answer:",
        f"  path: {_text(found.path)}",
        f"  form: {found.form}",
        *(
            [f"  label: {_text(found.label)}", f"  score: {_text(found.score)}"]
            if found.label
            else []
        ),
    ]
    if found.scale != 1:
        lines.append("  scale: 100 # they add up to nearly that: percentages")
    if names:
        left = " # TODO all the classes, in the order of the student's; or a file with one a line"
        lines.append(f"  classes: [{', '.join(map(_text, names))}]{'' if known else left}")
    lines.append("teacher:")
    lines.append(f"  # shape: [3, 32, 32] # TODO an image's C, H, W, or {flag('teacher.shape')}")
    if found.form == "scores":
        lines.append(f"  num_classes: {len(found.values)}")
    elif found.form == "number":
        lines.append(
            "  # num_classes: 10 # TODO how many classes there are, or "
            f"{flag('teacher.num_classes')}"
        )
        lines.append('  # numbers from 1 on: form: name above, with classes: ["1", "2", ...]')
    doubt = (
        " (these are below zero or sum to more than one: are they logits?)"
        if mode == "logits"
        else ""
    )
    return "\n".join([*lines, f"  label_mode: {mode} # what an answer reveals{doubt}", ""])


def _mode(found: Found) -> str:
    if not found.values:
        return "label"
    if min(found.values) < 0 or sum(found.values) / found.scale > 1 + NEAR_ONE:
        return "logits"
    whole = found.form in ("scores", "mapping") and _is_whole(found)
    return "probabilities" if whole else f"top_k:{len(found.values)}"


def _is_whole(found: Found) -> bool:
    return is_distribution(found.values, found.scale)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
