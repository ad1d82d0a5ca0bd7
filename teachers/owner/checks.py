"""What is checked of a teacher, its defences and its watch before anything loads. No torch."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from dfme.config.defence_options import DefenceOptions
from dfme.config.defences import NEED_FEATURES, Misinform, parse_defences
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import Message, OptionError, Problem, Ref, Text, UserError, joined, say
from dfme.spec import LabelMode
from dfme.teachers import KINDS


def watch_problems(teacher: TeacherConfig, local: bool) -> Iterator[Problem | Message]:
    """``local``: the teacher is in this process."""
    names = ",".join(teacher.watch)
    benign = teacher.benign
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if names and not local:
        text = say("a service is watched where it runs, by run.py serve {}", Ref("watch", names))
        yield Problem("teacher.watch", text)
        return
    if names and benign is None:
        text = say("expected held-out labelled images to calibrate {} on: a set or FOLDER", names)
        yield Problem("teacher.benign", text)
    if needing and teacher.kind != "torch":
        yield Problem(
            "teacher.watch",
            f"{needing}: expected a teacher of kind torch to look into",
            got=teacher.kind,
        )
    if teacher.on_alarm == "label" and teacher.label_mode == "logits":
        yield say("{teacher.on_alarm:label}: expected a {teacher.label_mode} other than logits")
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield Problem("teacher.benign", error.message)


# Defences


def check_defences(teacher: TeacherConfig, local: bool) -> None:
    """UserError with all problems of the defences; no torch. ``local``: in this process."""
    stack = parse_defences(teacher.defences)
    mode = LabelMode.parse(teacher.label_mode or "probabilities")
    problems = list[Text]()
    for defence in stack:
        texts = _problems(defence, mode, teacher.kind)
        problems += [say("{}: {}", defence.name, text) for text in texts]
    times = Counter(defence.name for defence in stack)
    problems += [
        f"{name}: expected once, got {count}" for name, count in times.items() if count > 1
    ]
    if stack and mode.kind == "logits":
        problems = [
            say(
                "expected {teacher.label_mode:probabilities}, top_k or label, got logits ({})",
                "an attribute label_mode says that a custom teacher gives logits",
            )
        ]
    if stack and not local:
        served = Ref("teacher.defences", "+".join(map(str, stack)))
        text = "a service is defended where it runs: run.py serve {}; leave it out here"
        problems = [say(text, served)]
    if problems:
        raise OptionError("teacher.defences", joined(problems, "; "))


def _problems(options: DefenceOptions, mode: LabelMode, kind: str) -> Iterator[Text]:
    """Problems of one defence: what it lacks, or what a label mode does to it that it must not
    do.
    """
    step = 10.0 ** -(mode.decimals or 0)
    margin = options.margin_kept
    if mode.decimals and margin is not None and step >= margin:
        yield say(
            "{} undoes the margin {:g} that keeps the top class; expected more decimals, or a "
            "margin above {:g}",
            Ref("teacher.label_mode", mode),
            margin,
            step,
        )
    try:
        if isinstance(options, Misinform) and options.data:
            check_dataset(options.data, download=False)
        if "key" in options.facts(2).needs:
            key_of(options)
    except UserError as error:
        yield error.message
    if isinstance(options, Misinform) and (options.gate == "mahalanobis") != bool(options.data):
        yield (
            "expected data with gate=mahalanobis, and with no other gate; got "
            f"{options.data or 'none'}"
        )
    if isinstance(options, Misinform) and options.gate == "mahalanobis" and kind != "torch":
        yield f"gate=mahalanobis looks into the network of a teacher of kind torch, got {kind}"


def key_of(options: DefenceOptions) -> bytes:
    """A defence's key, from the environment. UserError, which names the variable, where there is
    none.
    """
    from dfme.teachers.remote.secrets import Secrets

    if (name := getattr(options, "key_env", None)) is None:
        raise UserError("expected key_env=NAME, the environment variable that holds its key")
    return Secrets.from_environment([name]).fill(f"${{{name}}}").encode()


# The teacher with all that is around it


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Check defences, watch, and the options of a built-in kind.

    What a run is to say first, if anything. May raise UserError.
    """
    local = config.kind not in KINDS or KINDS[config.kind].is_local
    check_defences(config, local)
    if problems := [*watch_problems(config, local)]:
        raise UserError(*problems)
    check = KINDS[config.kind].check if config.kind in KINDS else None
    line: str | None = resolve_name(check)(config, options) if check else None
    return line or ""
