"""Custom teachers: any callable from images to scores, and how ``module:name`` becomes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dfme.answers.reading import CHARGED, NEGATIVE, as_tensor
from dfme.config.imports import find_target, what_and_where
from dfme.errors import DfmeError, TeacherError, UserError
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, Teacher
from dfme.teachers.label_modes import as_classes, restrict

PROBABILITIES = LabelMode("probabilities")

STATED = ("spec", "shape", "bounds", "levels", "num_classes", "label_mode", "max_batch")
"""Attributes by which a user's object describes itself."""


class Uncharged:
    """A count of the images that a teacher of one's own is asked outside a ledger's charges.

    Such are the images that calibrate a watch, and recorded ones that a resumed run shows to defences. The count waits
    for a ledger, and from then on tells it of each request before the request is made.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._record: Callable[[int], object] | None = None

    def report_to(self, record: Callable[[int], object]) -> None:
        """Call ``record`` with the number of images so far, if there are any, and with that of each later request."""
        self._record = record
        if self._waiting:
            record(self._waiting)
            self._waiting = 0

    def add(self, images: Any) -> None:
        """Count images that are about to be asked, unless they are charged."""
        if CHARGED.get():
            return
        if self._record is None:
            self._waiting += len(images)
        else:
            self._record(len(images))


class CustomTeacher:
    """A callable of the user's behind the same call as every teacher; on its ``device``, its parameters', or the CPU.

    Answers may be tensors, arrays or nested lists; with two classes, a lone probability or logit is that of class 1.
    """

    def __init__(
        self,
        call: Callable[[Tensor], Any],
        spec: ImageSpec,
        num_classes: int,
        label_mode: LabelMode,
        max_batch: int | None,
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = label_mode
        self.max_batch = max_batch
        names = getattr(call, "class_names", None)
        self.class_names = tuple(names) if isinstance(names, list | tuple) else None
        device = getattr(call, "device", None)
        if device is None and isinstance(call, nn.Module):
            device = next((parameter.device for parameter in call.parameters()), None)
        self.device = torch.device(device or "cpu")
        self.wire: RequestPolicy | None = getattr(call, "wire", None)
        self._call = call
        self.uncharged = Uncharged()
        ask: Callable[[Tensor, str], Any] | None = getattr(call, "ask", None)
        self.ask = None if ask is None else lambda images, key: self._read(ask(images, key))

        own: Any = call if hasattr(call, "witness") else None  # it has defences: see dfme.spec.Teacher
        for name in {"witness", "state_dict", "load_state_dict", "defences", "report", "watch"}.intersection(dir(own)):
            setattr(self, name, getattr(own, name))
        if hasattr(own, "served"):
            self.served = lambda images: self._read(self._counted(own.served, images))
        if hasattr(own, "truth"):
            self.truth = CustomTeacher(own.truth, spec, num_classes, label_mode, max_batch)

    def __call__(self, images: Tensor, /) -> Tensor:
        return self._read(self._counted(self._call, images))

    def _counted(self, call: Callable[[Tensor], Any], images: Tensor) -> Any:
        self.uncharged.add(images)
        return call(images)

    def _read(self, answer: object) -> Tensor:
        scores = as_tensor(answer)
        if not self.label_mode.soft:
            return scores
        classes = as_classes(scores, self.num_classes, self.label_mode)
        if classes is not scores and self.label_mode.kind == "probabilities":
            _require_probability(scores)
        return classes


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

    The object's attributes (``spec``, or ``shape``, ``bounds`` and ``levels``; ``num_classes``, ``label_mode``,
    ``max_batch``, ``device``, ``wire``) win over the arguments; UserError where shape or classes are given twice and
    differ, or not at all. ``label_mode`` restricts the object's, or says what it answers, by default probabilities.
    """
    if not callable(function_or_object) or isinstance(function_or_object, type):
        raise UserError(f"the teacher: expected a callable images -> scores, got {function_or_object!r}")
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
    wanted, declared = _mode(label_mode), _mode(stated["label_mode"])
    teacher = CustomTeacher(
        function_or_object,
        spec,
        classes,
        declared or (wanted if wanted and wanted.kind == "logits" else PROBABILITIES),
        max_batch if stated["max_batch"] is None else stated["max_batch"],
    )
    return restrict(teacher, wanted) if wanted else teacher


def make_custom(target: str, options: Mapping[str, Any]) -> Any:
    """What the class or function that ``module:name`` names makes of the user's options; another object as it is.

    UserError for options that do not fit the signature, and for whatever it raises.
    """
    make = find_target(target)
    if not isinstance(make, type) and not inspect.isroutine(make) and not options:
        return make
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        hint = "" if isinstance(make, type) else " (a function named here makes the teacher, it is not the teacher)"
        signature = f"{getattr(make, '__name__', 'teacher')}{inspect.signature(make)}"
        raise UserError(f"--teacher {target}: {error}; it is {signature}{hint}") from None
    try:
        return make(**options)
    except DfmeError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"--teacher {target}: could not be made: {what_and_where(error)}") from error


def accepts(target: str, name: str) -> bool:
    """Whether the signature behind ``module:name`` has a parameter of this name."""
    return name in inspect.signature(find_target(target)).parameters


def _given_once(name: str, example: str, given: Any, stated: Any) -> Any:
    """A value that must be given once, or twice the same."""
    given = tuple(given) if isinstance(given, list | tuple) else given
    stated = tuple(stated) if isinstance(stated, list | tuple) else stated
    flag = name.replace("_", "-")
    if given is None and stated is None:
        raise UserError(
            f"the teacher's {name} is not known: give the object an attribute {name} = {example}, "
            f"or say --teacher.{flag}"
        )
    if given is not None and stated is not None and given != stated:
        raise UserError(f"--teacher.{flag}: got {given}, but the teacher itself says {stated}")
    return given if stated is None else stated


def _require_probability(scores: Tensor) -> None:
    """TeacherError for lone scores that are no probabilities: once they are labels, no oracle can tell."""
    low, high = (float(value) for value in scores.aminmax())
    if low < -NEGATIVE or high > 1 + NEGATIVE:
        raise TeacherError(
            f"teacher: expected one probability per image, that of class 1, got values from {low:.4g} to {high:.4g}; "
            "if these are logits, start a new run with --teacher.label-mode logits, or give the teacher an attribute "
            "label_mode = 'logits'"
        )


def _mode(mode: LabelMode | str | None) -> LabelMode | None:
    return LabelMode.parse(mode) if isinstance(mode, str) else mode
