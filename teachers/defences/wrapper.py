"""A teacher with its defences: the outermost wrapper, which the label mode is cut by."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import read_answers
from dfme.compute import DeferredChecks
from dfme.config.defences import DefenceOptions
from dfme.errors import UserError
from dfme.spec import LabelMode, Teacher
from dfme.teachers.defences import DEFENCES, mode_problems
from dfme.teachers.defences.defence import Defence
from dfme.teachers.label_modes import Wrapper, restrict, reveal

CPU = torch.device("cpu")
PROBABILITIES = LabelMode("probabilities")
TOLERANCE = 1e-4  # by which answers may differ that were computed on another machine


class Defended(Wrapper):
    """A teacher whose answers pass ``defences``, one after the other, and are then cut to ``label_mode``.

    They work on unrounded probabilities in float64; an image that they leave as it is, is answered as without them, bit
    by bit. ``truth`` is the same teacher without them. UserError for defences that this teacher or label mode rules
    out. Images count in the order in which they are asked; one thread asks at a time.
    """

    def __init__(self, teacher: Teacher, defences: Sequence[DefenceOptions], label_mode: LabelMode) -> None:
        given = teacher.label_mode
        problems = list(mode_problems(defences, label_mode))
        if given not in (LabelMode("logits"), PROBABILITIES):
            lacking = ", ".join(each.name for each in defences if each.name != "quota")
            problems += [f"{lacking}: expected a teacher with unrounded scores, got {given}"] if lacking else []
        if getattr(teacher, "wire", None) is not None:
            problems = ["a service is defended where it runs; leave it out here"]
        if problems:
            raise UserError(f"--teacher.defences: {'; '.join(problems)}")
        super().__init__(teacher)
        self.truth = restrict(teacher, label_mode)
        self.label_mode = label_mode
        self.defences = tuple(str(each) for each in defences)
        self.close: Callable[[], None] = getattr(teacher, "close", lambda: None)
        self._stack: list[Defence] = []
        for each in defences:
            module, _, name = DEFENCES[each.name].partition(":")
            self._stack.append(getattr(importlib.import_module(module), name)(each, teacher))

    def __call__(self, images: Tensor, /) -> Tensor:
        """Refused, and nothing is counted, where a quota is used up."""
        for each in self._stack:
            each.admit(len(images))
        return self._answers(images)

    def served(self, images: Tensor) -> Tensor:
        """What an honest user would be answered now; no state changes, and nothing is counted or refused."""
        before = self.state_dict()
        try:
            return self._answers(images)
        finally:
            self.load_state_dict(before)

    def witness(self, images: Tensor, answers: Tensor) -> None:
        """Count answers that came from a record as if they were given now. ValueError where others would be given."""
        own, found = (each.cpu().double().nan_to_num(nan=-1.0) for each in (self._answers(images), answers))
        tolerance = TOLERANCE + (10.0**-self.label_mode.decimals if self.label_mode.decimals else 0.0)
        if own.shape != found.shape or bool(((own - found).abs() > tolerance).any()):
            expected = "expected the same key, files and arithmetic as when these images were answered"
            raise ValueError(f"{'+'.join(self.defences)}: other answers than on record; {expected}")

    def state_dict(self) -> dict[str, Any]:
        return {each.name: each.state_dict() for each in self._stack}

    def load_state_dict(self, state: Any) -> None:
        """Take up what ``state_dict`` gave. ValueError for anything that it cannot have given."""
        if not isinstance(state, dict) or state.keys() != (names := {each.name for each in self._stack}):
            raise ValueError(f"teacher: expected the states of {', '.join(sorted(names))}, got {str(state)[:60]}")
        for each in self._stack:
            each.load_state_dict(state[each.name])

    def report(self) -> dict[str, Any]:
        """What each defence stored or counted, by name, for the owner."""
        return {each.name: report for each in self._stack if (report := each.report())}

    def _answers(self, images: Tensor) -> Tensor:
        given, wanted, classes = self._teacher.label_mode, self.label_mode, self.num_classes
        raw = read_answers(self._teacher(images), len(images), classes, given, DeferredChecks(), CPU)
        plain = reveal(raw, given, wanted)
        p_BK = raw
        if given.kind == "logits":
            p_BK = raw.double().softmax(1)
        elif given == PROBABILITIES:
            p_BK = raw.double().clamp_(min=0)
            p_BK = p_BK / p_BK.sum(1, keepdim=True)
        y_BK = p_BK
        for each in self._stack:
            y_BK = each.answer(y_BK, images)
        if y_BK is p_BK:
            return plain
        defended, changed_B = reveal(_as_float32(y_BK), PROBABILITIES, wanted), (y_BK != p_BK).any(1)
        return torch.where(changed_B if plain.ndim == 1 else changed_B[:, None], defended, plain)


def _as_float32(y_BK: Tensor) -> Tensor:
    """The answers in float32; where rounding makes the top class a tie, it is put ahead by one last bit."""
    top_B1, short_BK = y_BK.argmax(1, keepdim=True), y_BK.float()
    most_B1 = short_BK.amax(1, keepdim=True)
    ahead_B1 = torch.where(short_BK.argmax(1, keepdim=True) == top_B1, most_B1, most_B1.nextafter(most_B1 + 1))
    return short_BK.scatter(1, top_B1, ahead_B1)
