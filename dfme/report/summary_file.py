"""summary.json read again: what a finished run says of itself, held to its form. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dfme.config.messages import printable
from dfme.config.values import flatten
from dfme.errors import RunError
from dfme.files import open_file
from dfme.report.metrics import CALLBACK_NAME, LARGEST, is_count

MAX_BYTES = 1 << 20
AGREEMENTS = ("agreement_served", "agreement_relabelled")
CONSTANT = ("constant_agreement", "constant_accuracy")

FieldCheck = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _or_none(form: FieldCheck) -> FieldCheck:
    return lambda value: value is None or form(value)


def _has(**forms: FieldCheck) -> FieldCheck:
    return lambda value: isinstance(value, dict) and all(form(value.get(name)) for name, form in forms.items())


def _is_count_each(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_count, value.values()))


def _is_list_of(form: FieldCheck) -> FieldCheck:
    return lambda value: isinstance(value, list) and all(map(form, value))


def _are_answers(value: Any) -> bool:
    """Lists of counts, as long as that of the classes; of a ``retrain``, how many answers it learnt from."""
    counts, names = _or_none(_is_list_of(is_count)), _or_none(_is_list_of(_is_text))
    forms = {
        "classes": _is_list_of(is_count),
        "names": names,
        **dict.fromkeys(("teacher", "student", "queries"), counts),
    }
    whole = is_count(value) or _has(**forms)(value)
    return whole and (is_count(value) or len({len(value[name]) for name in forms if value.get(name)}) < 2)


def _are_detectors(value: Any) -> bool:
    rang = _has(first_alarm=_or_none(is_count))
    return isinstance(value, dict) and all(name.isprintable() and rang(each) for name, each in value.items())


ADAPTER = _has(file=_is_text, sha256=_is_text)

FORMS: dict[str, FieldCheck] = {
    **dict.fromkeys(("budget", "spent", "evaluation_queries", "requests", "refused", "failed", "lost"), is_count),
    **dict.fromkeys(("seed", "student_steps", "students"), is_count),
    **dict.fromkeys(("teacher_accuracy", "accuracy", "agreement", "agreement_top5"), _or_none(_is_share)),
    **dict.fromkeys(AGREEMENTS, _or_none(_is_share)),
    "defences": _is_list_of(lambda text: _is_text(text) and text.isprintable()),
    "defence_report": lambda value: isinstance(value, dict),
    "watch": _has(images=is_count, detectors=_are_detectors),
    **dict.fromkeys(("vote_accuracy", "vote_agreement", "vote_agreement_top5"), _or_none(_is_share)),
    **dict.fromkeys(("kl", "vote_kl", "queries_per_second", "cost"), _or_none(_is_number)),
    **dict.fromkeys(("method", "label_mode", "student_arch", "device", "config_hash", "version", "torch"), _is_text),
    "wall_seconds": _is_number,
    "callback_metrics": lambda value: (
        isinstance(value, dict)
        and all(CALLBACK_NAME.fullmatch(name) and _is_number(each) for name, each in value.items())
    ),
    "authorised_by": _or_none(_is_text),
    "teacher": _has(kind=_is_text, num_classes=is_count, target=_or_none(_is_text), adapter=_or_none(ADAPTER)),
    **dict.fromkeys(("started", "ended"), _or_none(_is_text)),
    "baselines": _has(chance=_is_share, **dict.fromkeys(CONSTANT, _or_none(_is_share))),
    "answers": _are_answers,
    "warnings": _is_list_of(lambda line: _is_text(line) and line.isprintable()),  # a terminal shows them
    "spent_by_purpose": _is_count_each,
    "evaluation": _has(name=_is_text, images=is_count, held_back=lambda value: isinstance(value, bool)),
    "ended_by": _or_none(_is_text),
    "held_back": _or_none(
        _has(**dict.fromkeys(("goal", "agreement", "at_least", "one_class"), _is_share), images=is_count)
    ),
    "estimator": _or_none(
        _has(
            **dict.fromkeys(("kind", "form", "direction", "space", "objective"), _is_text),
            directions=is_count,
            step=_is_number,
        )
    ),
    "service": _or_none(
        _has(refused=_is_count_each, failed=_is_count_each, seconds_answering=_is_number, seconds_waited=_is_number)
    ),
}
"""What each entry is, where there is one; those of earlier versions lack some."""

NO_LABELS = "not known: the evaluation images have no labels"
"""What is said of an accuracy, then."""


def without_labels(summary: Mapping[str, Any]) -> str | None:
    """``NO_LABELS`` of a run whose evaluation images have none."""
    held_back = (summary.get("evaluation") or {}).get("held_back")
    return NO_LABELS if summary.get("accuracy") is None and held_back is False else None


def defended(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of a teacher with a watch or defences, rows that say so: beside the agreement, that with the teacher itself."""
    rows, watch = [], summary.get("watch") or {"detectors": {}}
    for name, found in watch["detectors"].items():
        rang = f"first alarm at image {found['first_alarm']:,}" if found["first_alarm"] else "no alarm"
        rows.append((f"watch: {name}", f"{rang} of {watch['images']:,} images, the evaluation's not counted"))
    if not summary.get("defences"):
        return rows
    counted = ", ".join(f"{name} {value}" for name, value in flatten(summary.get("defence_report") or {}, ()))
    shares = {name: summary.get(name) for name in AGREEMENTS}
    texts = {"defences": " + ".join(summary["defences"]), "defences report": printable(counted)}
    texts |= {name.replace("_", " "): f"{share:.2%}" for name, share in shares.items() if share is not None}
    return [*(row for row in texts.items() if row[1]), *rows]


def ended_early(summary: Mapping[str, Any]) -> str | None:
    """How --until-agreement ended the run, if it did."""
    seen = summary.get("held_back")
    if summary.get("ended_by") != "until_agreement" or seen is None:
        return None
    of = f"{seen['images']:,} held-back queries (95% interval from {seen['at_least']:.1%})"
    return f"--until-agreement {seen['goal']:g}: agreement on {seen['agreement']:.1%} of {of}"


def read_summary(path: Path) -> dict[str, Any] | None:
    """The entries of a summary.json; None without one. Raises ``RunError`` for a file that holds something else."""
    if not path.is_file():
        return None
    try:
        with open_file(path) as file:
            summary = json.loads(file.read(MAX_BYTES))
        if not isinstance(summary, dict) or "budget" not in summary or "spent" not in summary:
            raise ValueError("no budget and spent in it")
        for name, form in FORMS.items():
            if name in summary and not form(summary[name]):
                raise ValueError(f"its {name} is {json.dumps(summary[name])[:80]}")
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: expected the JSON of a finished run: {error}; resume the run to write it") from error
    return summary
