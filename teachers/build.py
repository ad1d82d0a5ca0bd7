"""From the configuration to a teacher: a built-in kind, or a custom one."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any, Literal

import torch
from torch import Tensor

from dfme.compute.device import has_tf32
from dfme.compute.modules import defaults_kept
from dfme.config.defences import parse_defences
from dfme.config.messages import nearest
from dfme.config.settings import TeacherConfig
from dfme.config.values import options_from
from dfme.data.class_names import require_text
from dfme.errors import OptionError, Ref, UserError, flag, say
from dfme.spec import LabelMode, Teacher
from dfme.teachers import KINDS, RECORDED_THERE
from dfme.teachers.label_modes import Wrapper, restrict
from dfme.teachers.owner.checks import check_teacher

LOGGER = logging.getLogger("dfme")

# common keys that say nothing of images or answers
NOT_DESCRIBING = ("mean", "std", "price_per_1000", "defences", "watch", "benign", "on_alarm")


Recorded = Literal["queries", "log"]
"""What a watch records: queries of a run, or the log of a server, with features where it can."""


def make_teacher(
    config: TeacherConfig,
    options: Mapping[str, Any],
    device: torch.device,
    recorded: Recorded | None = None,
    meter: Callable[[Teacher], Teacher] | None = None,
    own: Callable[..., Any] | None = None,
) -> Teacher:
    """The teacher of a configuration, in its label mode; ``options`` are those of its kind.

    A built-in kind that gives logits answers probabilities by default. ``recorded``: behind a
    watch, maybe without detectors, that can record what it sees. ``meter`` wraps a custom teacher,
    below its defences; ``own`` is one that was handed over. UserError for an unknown kind, options
    that do not fit, and a label mode that tells more than the teacher gives.
    """
    if own is None and config.kind in KINDS:
        teacher = _built_in(config, options, device, recorded)
    elif own is not None or ":" in config.kind:
        teacher = _custom(config, options, recorded, meter, own)
    else:
        raise OptionError(
            "teacher",
            f"expected {', '.join(KINDS)} or module:Class",
            got=repr(config.kind),
            near=nearest(config.kind, KINDS),
        )
    require_text(teacher.info.class_names or (), f"{flag('teacher')}: its class names")
    return teacher


def _built_in(
    config: TeacherConfig,
    options: Mapping[str, Any],
    device: torch.device,
    recorded: Recorded | None,
) -> Teacher:
    kind = KINDS[config.kind]
    checked = options_from(kind.options, options, "teacher.")
    check_teacher(config, vars(checked))
    teacher: Teacher = resolve_name(kind.loader)(checked, config, device)
    if getattr(checked, "precision", "auto") == "tf32" and not has_tf32(device):
        LOGGER.warning(
            "teacher: %s is idle on %s, which has none: IEEE fp32",
            flag("teacher.precision", "tf32"),
            device,
        )
    return _as_configured(teacher, config, recorded)


def _as_configured(
    teacher: Teacher, config: TeacherConfig, recorded: Recorded | None, logits: bool = False
) -> Teacher:
    """Wrap in watch and defences, in the label mode; by default ``logits`` stay, or are cut."""
    cut = teacher.label_mode.kind == "logits" and not logits
    default = LabelMode("probabilities") if cut else teacher.label_mode
    mode = LabelMode.parse(config.label_mode) if config.label_mode else default
    if not (config.defences or config.watch or recorded):
        return restrict(teacher, mode)
    from dfme.teachers.owner.defences.wrapper import Defended

    watching = None
    if config.watch or recorded:
        from dfme.teachers.owner.watch.watch import Watch

        watching = partial(
            Watch,
            names=config.watch,
            data=config.benign,
            on_alarm=config.on_alarm,
            logged=recorded == "log",
        )
    if recorded == "queries" and teacher.info.remote:
        raise OptionError("record_queries", say(RECORDED_THERE, Ref("record")))
    return Defended(teacher, parse_defences(config.defences), mode, watching)


def _custom(
    config: TeacherConfig,
    options: Mapping[str, Any],
    recorded: Recorded | None,
    meter: Callable[[Teacher], Teacher] | None,
    own: Callable[..., Any] | None,
) -> Teacher:
    """A teacher from ``module:name``, or ``own``. Parameters named like a common key receive and
    give it.
    """
    from dfme.teachers.custom import accepts, make_custom, wrap_callable

    common = {
        f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name != "kind"
    }
    passed = {
        name: value
        for name, value in common.items()
        if own is None and value is not None and accepts(config.kind, name)
    }
    arguments = {**passed, **options}
    described = {
        name: arguments.get(name, value)
        for name, value in common.items()
        if name not in NOT_DESCRIBING
    }
    wrapped = bool(config.defences or config.watch or recorded or meter)
    if wrapped:  # the label mode is cut after them
        check_teacher(config, options)
        described["label_mode"] = "logits" if config.label_mode == "logits" else None
    if own is None:
        with defaults_kept(flag("teacher", config.kind), UserError):
            own = make_custom(config.kind, arguments)
    teacher = wrap_callable(own, **described)
    if (config.mean, config.std) != (None, None) and "mean" not in arguments:
        teacher = _Normalised(teacher, config)
    teacher = meter(teacher) if meter else teacher
    return _as_configured(teacher, config, recorded, not config.defences) if wrapped else teacher


class _Normalised(Wrapper):
    """A teacher of the user's that wants normalised images, behind an API that takes plain ones."""

    def __init__(self, teacher: Teacher, config: TeacherConfig) -> None:
        from dfme.teachers.local.pytorch import Normalise

        super().__init__(teacher)
        self._normalise = Normalise(config.mean, config.std, self.spec.shape[0], self.info.device)

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        return ask(self._normalise(images.to(self.info.device)))
