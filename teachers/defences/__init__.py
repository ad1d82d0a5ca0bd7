"""Defences of a teacher's answers, carried out; ``dfme.config.defences`` has their options and facts. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfme.config.defence_texts import parse_defences
from dfme.config.defences import DefenceOptions, Misinform
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import UserError
from dfme.spec import LabelMode
from dfme.teachers.remote.secrets import Secrets

MAPS = ("lattice", "temperature", "modelguard_w", "reverse_sigmoid", "mad", "grad2")

# name -> "module:Class", a ``defence.Defence``
DEFENCES: dict[str, str] = {
    **dict.fromkeys(MAPS, "dfme.teachers.defences.defence:MapDefence"),
    "modelguard_s": "dfme.teachers.defences.defence:CentroidDefence",
    "misinform": "dfme.teachers.defences.misinform:MisinformDefence",
    "noise": "dfme.teachers.defences.defence:NoiseDefence",
    "watermark": "dfme.teachers.defences.defence:WatermarkDefence",
    "quota": "dfme.teachers.defences.defence:QuotaDefence",
    "pow": "dfme.teachers.defences.defence:WorkDefence",
}


def check_defences(config: TeacherConfig, local: bool) -> None:
    """UserError that names all that is wrong with defences, without torch; ``local``: the model runs in this process."""
    if not (stack := parse_defences(config.defences)):
        return
    problems = [*mode_problems(stack, LabelMode.parse(config.label_mode or "probabilities"))]
    problems += [f"{each.name}: {text}" for each in stack for text in _own_problems(each, stack, config.kind)]
    if not local:
        where = f"run.py serve --teacher.defences {'+'.join(map(str, stack))}"
        problems = [f"a service is defended where it runs: {where}; leave it out here"]
    if problems:
        raise UserError(f"--teacher.defences: {'; '.join(dict.fromkeys(problems))}")


def mode_problems(stack: Sequence[DefenceOptions], mode: LabelMode) -> Iterator[str]:
    """What a label mode does to defences that it must not do."""
    if mode.kind == "logits":
        hint = "an attribute label_mode says that a teacher of one's own gives logits"
        yield f"expected --teacher.label-mode probabilities, top_k or label with a defence, got logits ({hint})"
    step = 0.0 if mode.decimals is None else 10.0**-mode.decimals
    for each in stack:
        if each.margin_kept is not None and step >= each.margin_kept:
            undone = f"--teacher.label-mode {mode} undoes the margin {each.margin_kept:g} that keeps the top class"
            yield f"{each.name}: {undone}; expected more decimals, or a margin above {step:g}"


def _own_problems(options: DefenceOptions, stack: Sequence[DefenceOptions], kind: str) -> Iterator[str]:
    if (count := [each.name for each in stack].count(options.name)) > 1:
        yield f"expected once, got {count}"
    try:
        if isinstance(options, Misinform) and options.data:
            check_dataset(options.data, download=False)
        if options.facts(2).key:
            key_of(options)
    except UserError as error:
        yield str(error)
    if isinstance(options, Misinform) and (options.gate == "mahalanobis") != bool(options.data):
        yield f"expected data with gate=mahalanobis, and with no other gate; got {options.data or 'none'}"
    if isinstance(options, Misinform) and options.gate == "mahalanobis" and kind != "torch":
        yield f"gate=mahalanobis looks into the network of a teacher of kind torch, got {kind}"


def key_of(options: DefenceOptions) -> bytes:
    """A defence's key, from the environment. UserError, which names the variable, where there is none."""
    if (name := getattr(options, "key_env", None)) is None:
        raise UserError("expected key_env=NAME, the environment variable that holds its key")
    return Secrets.from_environment([name]).fill(f"${{{name}}}").encode()
