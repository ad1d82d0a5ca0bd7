"""A teacher with its defences: the outermost wrapper, which the label mode is cut by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dfme.answers.reading import read_answers
from dfme.compute import DeferredChecks
from dfme.config.defences import DefenceOptions
from dfme.config.imports import find_target
from dfme.errors import UserError
from dfme.spec import LabelMode, Teacher
from dfme.teachers.defences import DEFENCES
from dfme.teachers.defences.defence import Defence
from dfme.teachers.label_modes import Wrapper, restrict, reveal

CPU, PROBABILITIES, LOGITS = torch.device("cpu"), LabelMode("probabilities"), LabelMode("logits")
TOLERANCE = 1e-4  # by which answers may differ that were computed on another machine


class Defended(Wrapper):
    """A teacher whose answers pass ``defences``, one after the other, and are then cut to ``label_mode``.

    They work on unrounded probabilities in float64; an image that they leave as it is, is answered as without them, bit
    by bit. ``truth`` is the same teacher without them. Images count in the order in which they are asked, by one thread
    at a time. UserError for a teacher whose own answers do not do.
    """

    def __init__(self, teacher: Teacher, defences: Sequence[DefenceOptions], label_mode: LabelMode) -> None:
        needing = ", ".join(each.name for each in defences if each.name != "quota")
        if getattr(teacher, "wire", None) is not None:
            raise UserError("--teacher.defences: a service is defended where it runs; leave it out here")
        if needing and (given := teacher.label_mode) not in (PROBABILITIES, LOGITS):
            raise UserError(f"--teacher.defences: {needing}: expected a teacher with unrounded scores, got {given}")
        super().__init__(teacher)
        self.truth, self.label_mode = restrict(teacher, label_mode), label_mode
        self.defences = tuple(map(str, defences))
        self.close: Callable[[], None] = getattr(teacher, "close", lambda: None)
        self._stack: list[Defence] = [find_target(DEFENCES[each.name])(each, teacher) for each in defences]

    def __call__(self, images: Tensor, /) -> Tensor:
        """Refused where a quota is used up."""
        for each in self._stack:
            each.admit(len(images))
        return self._answers(images)

    def served(self, images: Tensor) -> Tensor:
        """What an honest user would be answered now; no state changes, and nothing is refused."""
        before = self.state_dict()
        try:
            return self._answers(images)
        finally:
            self.load_state_dict(before)

    def witness(self, images: Tensor, answers: Tensor) -> None:
        """Count answers from a record as if they were given now. ValueError where others would be given."""
        own, found = (each.cpu().double().nan_to_num(nan=-1.0) for each in (self._answers(images), answers))
        tolerance = TOLERANCE + 10.0 ** -(self.label_mode.decimals or 99)
        if own.shape != found.shape or bool(((own - found).abs() > tolerance).any()):
            expected = "expected the same key, files and arithmetic as when these images were answered"
            raise ValueError(f"{'+'.join(self.defences)}: other answers than on record; {expected}")

    def state_dict(self) -> dict[str, Any]:
        return {each.name: each.state_dict() for each in self._stack}

    def load_state_dict(self, state: Any) -> None:
        """Take up what ``state_dict`` gave. ValueError for anything that it cannot have given."""
        if not isinstance(state, dict) or [*state] != [each.name for each in self._stack]:
            raise ValueError(f"teacher: expected the states of {'+'.join(self.defences)}")
        for each in self._stack:
            each.load_state_dict(state[each.name])

    def report(self) -> dict[str, Any]:
        """What each defence counted, and how many rows it stored, by name, for the owner."""
        states = {each.name: each.state for each in self._stack if each.state}
        return {name: {k: len(v) if isinstance(v, Tensor) else v for k, v in s.items()} for name, s in states.items()}

    def _answers(self, images: Tensor) -> Tensor:
        given, wanted = self._teacher.label_mode, self.label_mode
        raw = read_answers(self._teacher(images), len(images), self.num_classes, given, DeferredChecks(), CPU)
        p_BK = raw.double().softmax(1) if given == LOGITS else raw
        if given == PROBABILITIES:
            p_BK = normalize(raw.double().clamp(min=0), p=1.0)
        y_BK, plain = p_BK, reveal(raw, given, wanted)
        for each in self._stack:
            y_BK = each.answer(y_BK, images)
        if y_BK is p_BK:
            return plain
        short_BK, top_B1 = y_BK.float(), y_BK.argmax(1, keepdim=True)
        most_B1 = short_BK.amax(1, keepdim=True)
        most_B1 = torch.where(short_BK.argmax(1, keepdim=True) == top_B1, most_B1, most_B1.nextafter(most_B1 + 1))
        defended = reveal(
            short_BK.scatter(1, top_B1, most_B1), PROBABILITIES, wanted
        )  # no top class is tied by rounding
        changed_B = (y_BK != p_BK).any(1)
        return torch.where(changed_B if plain.ndim == 1 else changed_B[:, None], defended, plain)
