"""A teacher with its watch and its defences: the outermost wrapper, which the label mode is cut
by.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dfme.compute.modules import validate_like
from dfme.config.defence_options import DefenceOptions
from dfme.config.imports import find_target
from dfme.errors import OptionError, UserError, say
from dfme.spec import LabelMode, Teacher
from dfme.teachers.label_modes import LOGITS, PROBABILITIES, Wrapper, restrict, reveal
from dfme.teachers.owner.defences import CUSTOM, DEFENCES
from dfme.teachers.owner.defences.kinds import Defence
from dfme.teachers.owner.features import ask_inside
from dfme.teachers.owner.watch.watch import Watch

TOLERANCE = 1e-4  # by which answers may differ that were computed on another machine


class Defended(Wrapper):
    """A teacher whose answers pass ``defences``, one after the other, and are then cut to
    ``label_mode``.

    They work on unrounded probabilities in float64; an image that they leave as it is, is answered
    as without them, bit by bit. ``undefended`` is the same teacher without them. Images count in
    the order in which they are asked, by one thread at a time. ``watching`` makes what looks at
    them first, before any defence, but not at evaluation images nor in ``preview``. UserError for a
    teacher whose own answers do not do.
    """

    def __init__(
        self,
        teacher: Teacher,
        defences: Sequence[DefenceOptions],
        label_mode: LabelMode,
        watching: Callable[[Teacher], Watch] | None = None,
    ) -> None:
        _require_unrounded(teacher, defences, watching is not None)
        super().__init__(teacher)
        self.watch = watching(teacher) if watching else None
        if self.watch and self.watch.on_alarm == "label" and label_mode == LOGITS:
            raise UserError(
                say("{teacher.on_alarm:label}: expected a {teacher.label_mode} other than logits")
            )
        self.undefended = restrict(teacher, label_mode)
        self.label_mode = label_mode
        self.info = replace(
            self.info,
            defences=tuple(map(str, defences)),
            stateful=self,
            undefended=self.undefended,
            preview=self.preview,
            watch=self.watch,
        )
        self._stack: list[Defence] = [
            find_target(DEFENCES.get(options.name, CUSTOM))(options, teacher)
            for options in defences
        ]
        self._fresh = {defence.name: defence.state_dict() for defence in self._stack}

    def _answers(self, images: Tensor, ask: Callable[[Tensor], Any]) -> Tensor:
        """Refused where a quota is used up, or an alarm was raised and the watch is to refuse."""
        if self.watch:
            self.watch.admit()
        self.admit(len(images))
        return self._defended(images, ask)

    def admit(self, images: int) -> None:
        """Refused where a defence does not answer so many images more."""
        for defence in self._stack:
            defence.admit(images)

    def around(self, teacher: Teacher) -> "Defended":
        """The same defences and watch, with the same state, around another teacher in place of
        their own.
        """
        other = copy(self)
        other._teacher = teacher
        return other

    def preview(self, images: Tensor) -> Tensor:
        """Answers that an honest user would get now; no state changes, no watch, no refusal."""
        watch = self.watch
        self.watch = None
        before = self.state_dict()
        try:
            return self._defended(images, self._teacher)
        finally:
            self.load_state_dict(before)
            self.watch = watch

    def replay_answer(self, images: Tensor, answers: Tensor) -> None:
        """Count answers from a record as if they were given now. ValueError where others would be
        given.
        """
        tolerance = TOLERANCE + 10.0 ** -(self.label_mode.decimals or 99)
        now = _comparable(self._defended(images, self._teacher))
        recorded = _comparable(answers)
        if now.shape != recorded.shape or bool(((now - recorded).abs() > tolerance).any()):
            expected = (
                "other answers than on record; expected the same key, files and arithmetic as then"
            )
            raise ValueError(f"{'+'.join(self.info.defences) or 'watch'}: {expected}")

    @property
    def _stateful(self) -> dict[str, Defence | Watch]:
        parts: dict[str, Defence | Watch] = {defence.name: defence for defence in self._stack}
        if self.watch:
            parts["watch"] = self.watch
        return parts

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._stateful.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. ValueError for a state of another form."""
        validate_like(self._fresh, state, "teacher")
        for name, part in self._stateful.items():
            part.load_state_dict(state[name])

    def report(self) -> dict[str, Any]:
        """Counts of each defence, and its stored rows, by name, for the owner."""
        return {
            defence.name: {
                name: len(value) if isinstance(value, Tensor) else value
                for name, value in defence.state.items()
            }
            for defence in self._stack
            if defence.state
        }

    def _defended(self, images: Tensor, ask: Callable[[Tensor], Any]) -> Tensor:
        watch = self.watch
        answers = ask_inside(self._teacher, images, watch.features if watch else None, ask)
        p_BK = answers.p_BK
        cut_B = watch.see(images, p_BK, answers.distance_B) if watch else None
        y_BK = p_BK
        plain = reveal(answers.raw, self._teacher.label_mode, self.label_mode)
        for defence in self._stack:
            y_BK = defence.answer(y_BK, images)
        if cut_B is not None and cut_B.any():
            tops_BK = one_hot(y_BK.argmax(1), self.num_classes).double()
            y_BK = torch.where(cut_B[:, None], tops_BK, y_BK)
        if y_BK is p_BK:
            return plain
        defended = reveal(_in_float32(y_BK), PROBABILITIES, self.label_mode)
        changed_B = (y_BK != p_BK).any(1)
        return torch.where(changed_B if plain.ndim == 1 else changed_B[:, None], defended, plain)


def _require_unrounded(teacher: Teacher, defences: Sequence[DefenceOptions], watched: bool) -> None:
    """UserError for a teacher that cannot be defended, or watched, here."""
    key = "teacher.defences" if defences else "teacher.watch"
    if teacher.info.remote:
        verb = "defended" if defences else "watched"
        raise OptionError(key, f"a service is {verb} where it runs; leave it out here")
    needing = ", ".join(options.name for options in defences if options.name != "quota")
    if (needing or watched) and teacher.label_mode not in (PROBABILITIES, LOGITS):
        who = needing or "the watch"
        raise OptionError(
            key, f"{who}: expected a teacher with unrounded scores", got=str(teacher.label_mode)
        )


def _comparable(answers: Tensor) -> Tensor:
    return answers.cpu().double().nan_to_num(nan=-1.0)


def _in_float32(y_BK: Tensor) -> Tensor:
    """Answers in float32, of which no top class is tied by rounding."""
    short_BK = y_BK.float()
    top_B1 = y_BK.argmax(1, keepdim=True)
    most_B1, short_top_B1 = short_BK.max(1, keepdim=True)
    most_B1 = torch.where(short_top_B1 == top_B1, most_B1, most_B1.nextafter(most_B1 + 1))
    return short_BK.scatter(1, top_B1, most_B1)


def behind(teacher: Teacher) -> Teacher:
    """The teacher without watch, defences and the cut to a label mode that comes with them."""
    return teacher._teacher if isinstance(teacher, Defended) else teacher
