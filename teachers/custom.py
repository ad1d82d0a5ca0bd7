"""Custom teachers: any callable from images to scores, and how ``module:name`` becomes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import NEGATIVE, PartialAnswers, add_up_to, as_tensor
from dfme.compute.modules import defaults_kept
from dfme.config.imports import blaming, find_target
from dfme.errors import OptionError, Ref, TeacherError, UserError, say
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, Teacher, TeacherInfo
from dfme.teachers.label_modes import PROBABILITIES, as_classes, restrict

PROVING = 4  # images whose logits do not add up to one by chance

STATED = ("spec", "shape", "bounds", "levels", "num_classes", "label_mode")
"""Attributes by which a user's object describes itself."""


class Uncharged:
    """Counts images that a custom teacher is asked outside a ledger's charges (by a watch, or
    again).

    The counts wait for a ledger, which from then on is told of each request before it is made.
    """

    def __init__(self) -> None:
        self._waiting = list[int]()
        self.record: Callable[[int], object] = self._waiting.append

    def report_to(self, record: Callable[[int], object]) -> None:
        """Call ``record`` with the number of images so far, if any, and of each later request."""
        self.record = record
        if self._waiting:
            record(sum(self._waiting))
            self._waiting.clear()


class CustomTeacher:
    """A user's callable as a teacher, described by ``info``.

    Answers may be tensors, arrays or nested lists; with two classes a lone score is that of class
    1.
    """

    def __init__(
        self,
        call: Callable[[Tensor], Any],
        spec: ImageSpec,
        num_classes: int,
        label_mode: LabelMode,
        info: TeacherInfo,
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = label_mode
        self.wire = info.wire
        self._unproven = label_mode.kind == "logits"
        self._call = call
        self._ask = info.remote.ask if info.remote else None
        self._uncharged = Uncharged()
        self.info = TeacherInfo(info.device, info.max_batch, info.class_names)
        self.info = replace(
            self.info,
            remote=self if info.remote else None,
            defences=info.defences,
            stateful=info.stateful,
            undefended=self._answering(info.undefended),
            preview=self._answering(info.preview),
            watch=info.watch,
            charged=self._answer,
            report_uncharged=self._uncharged.report_to,
        )

    def __call__(self, images: Tensor, /) -> Any:
        self._uncharged.record(len(images))
        return self._answer(images)

    def _answer(self, images: Tensor) -> Any:
        with defaults_kept("teacher", TeacherError):
            answer = self._call(images)
        return self._read(answer)

    def ask(self, images: Tensor, key: str, /) -> Any:
        assert self._ask is not None, "only a service is asked with a key"
        return self._read(self._ask(images, key))

    def close(self) -> None:
        """Do nothing: the maker of the connection closes it."""

    def _answering(self, call: Callable[[Tensor], Any] | None) -> CustomTeacher | None:
        """The same teacher with the answers of ``call``."""
        if call is None:
            return None
        other = copy(self)
        other._call = call
        other.info = replace(self.info, charged=other._answer)
        return other

    def _read(self, answer: object) -> Any:
        if isinstance(answer, PartialAnswers):
            return answer.mapped(self._read)
        scores = as_tensor(answer)
        if not self.label_mode.soft:
            return scores
        if self._unproven and scores.ndim == 2 and scores.shape[1] > 1 and len(scores) >= PROVING:
            _require_logits(scores)
            self._unproven = False
        classes = as_classes(scores, self.num_classes, self.label_mode)
        if classes is not scores and self.label_mode.kind == "probabilities":
            _require_probability(scores)
        return classes


def complete(thing: Any, max_batch: int | None = None) -> TeacherInfo:
    """Facts of a user's object: its ``info``, or single attributes; ``wire`` or ``ask`` make it a
    service.
    """
    info = getattr(thing, "info", None)
    if not isinstance(info, TeacherInfo):
        device = getattr(thing, "device", None)
        if device is None and isinstance(thing, nn.Module):
            device = next((parameter.device for parameter in thing.parameters()), None)
        names = getattr(thing, "class_names", None)
        info = TeacherInfo(
            str(torch.device(device or "cpu")),
            getattr(thing, "max_batch", None),
            tuple(names) if isinstance(names, list | tuple) else None,
            remote=_remote(thing),
        )
    return info if info.max_batch is not None else replace(info, max_batch=max_batch)


def _remote(thing: Any) -> Any:
    """A user's service, which is called where it has no ``ask``; None for another teacher."""
    wire = getattr(thing, "wire", None)
    ask = getattr(thing, "ask", None)
    if wire is None and ask is None:
        return None
    return SimpleNamespace(
        wire=wire or RequestPolicy(), ask=ask or (lambda images, key: thing(images))
    )


def wrap_callable(
    function_or_object: Any,
    *,
    shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    label_mode: LabelMode | str | None = None,
    bounds: tuple[float, float] | None = None,
    levels: int | None = None,
    max_batch: int | None = None,
) -> Teacher:
    """A teacher from a callable images (B, C, H, W) -> scores.

    The object's attributes (``spec``, or ``shape``, ``bounds`` and ``levels``; ``num_classes``,
    ``label_mode``, ``max_batch``, ``device``, ``wire``) win over the arguments; UserError where
    shape or classes are given twice and differ, or not at all. ``label_mode`` restricts the
    object's, or says what it answers, by default probabilities.
    """
    if not callable(function_or_object) or isinstance(function_or_object, type):
        raise UserError(
            f"the teacher: expected a callable images -> scores, got {function_or_object!r}"
        )
    if isinstance(function_or_object, nn.Module) and function_or_object.training:
        raise UserError("the teacher is a torch module in training mode; call its eval() first")
    stated = {name: getattr(function_or_object, name, None) for name in STATED}
    if stated["spec"] is None:
        spec = ImageSpec(
            _given_once("shape", "(C, H, W)", shape, stated["shape"]),
            tuple(stated["bounds"] or bounds or (0.0, 1.0)),
            levels if stated["levels"] is None else stated["levels"],
        )
    else:
        spec = stated["spec"]
        _given_once("shape", "(C, H, W)", shape, spec.shape)
    classes = _given_once("num_classes", "10", num_classes, stated["num_classes"])
    if classes < 2:
        expected = "expected at least 2 (a binary model with one output has 2)"
        raise UserError(f"the teacher's num_classes: {expected}, got {classes}")
    wanted, declared = (
        LabelMode.parse(mode) if isinstance(mode, str) else mode
        for mode in (label_mode, stated["label_mode"])
    )
    teacher = CustomTeacher(
        function_or_object,
        spec,
        classes,
        declared or (wanted if wanted and wanted.kind == "logits" else PROBABILITIES),
        complete(function_or_object, max_batch),
    )
    return restrict(teacher, wanted) if wanted else teacher


def make_custom(target: str, options: Mapping[str, Any]) -> Any:
    """Build the class or function of ``module:name`` with the user's options; objects stay.

    UserError for options that do not fit the signature, and for whatever it raises.
    """
    make = find_target(target)
    if not isinstance(make, type) and not inspect.isroutine(make) and not options:
        return make
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        is_class = isinstance(make, type)
        hint = "" if is_class else " (a function named here makes the teacher, it is none)"
        signature = f"{getattr(make, '__name__', 'teacher')}{inspect.signature(make)}"
        raise UserError(f"{error}; it is {signature}{hint}", about=Ref("teacher", target)) from None
    with blaming(say("{}: could not be made", Ref("teacher", target)), UserError):
        return make(**options)


def accepts(target: str, name: str) -> bool:
    """True if the signature behind ``module:name`` has a parameter of this name."""
    return name in inspect.signature(find_target(target)).parameters


def _given_once(name: str, example: str, argument: Any, attribute: Any) -> Any:
    """A value that must be given once, or twice the same."""
    argument = tuple(argument) if isinstance(argument, list | tuple) else argument
    attribute = tuple(attribute) if isinstance(attribute, list | tuple) else attribute
    key = f"teacher.{name}"
    if argument is None and attribute is None:
        raise UserError(
            say(
                "the teacher's {} is not known: say {}, or give it {} = {}",
                name,
                Ref(key),
                name,
                example,
            )
        )
    if argument is not None and attribute is not None and argument != attribute:
        raise OptionError(key, f"got {argument}, but the teacher itself says {attribute}")
    return argument if attribute is None else attribute


def _require_logits(scores_BK: Tensor) -> None:
    """TeacherError for probabilities that are said to be logits: a softmax of them hides most."""
    for total, cure in ((1.0, ""), (100.0, " and divide by 100")):
        if add_up_to(scores_BK, total):
            raise TeacherError(
                f"teacher: expected logits, got numbers that add up to {total:g} for every image, "
                "as "
                f"probabilities do; leave out label_mode = 'logits'{cure}, and start a new run"
            )


def _require_probability(scores: Tensor) -> None:
    """TeacherError for lone scores that are no probabilities: once they are labels, no oracle can
    tell.
    """
    low, high = (float(value) for value in scores.aminmax())
    if low < -NEGATIVE or high > 1 + NEGATIVE:
        percent = "if these are percentages, divide them by 100; "
        hint = percent if low >= -NEGATIVE and high <= 100 else ""
        raise TeacherError(
            say(
                "teacher: expected one probability per image, that of class 1, got values from "
                "{:.4g} to {:.4g}; {}if these are logits, start a new run with "
                "{teacher.label_mode:logits}, or give the teacher an attribute label_mode = "
                "'logits'",
                low,
                high,
                hint,
            )
        )
