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

from dfme.compute import validate_like
from dfme.config.defence_options import DefenceOptions
from dfme.config.imports import find_target
from dfme.errors import OptionError, UserError, say
from dfme.spec import LabelMode, Teacher
from dfme.teachers.defences import DEFENCES, OWN
from dfme.teachers.defences.defence import Defence
from dfme.teachers.label_modes import Wrapper, restrict, reveal
from dfme.teachers.watch.watch import LOGITS, PROBABILITIES, Watch, asked

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
        needing = ", ".join(each.name for each in defences if each.name != "quota")
        key = "teacher.defences" if defences else "teacher.watch"
        if teacher.info.remote:
            verb = "defended" if defences else "watched"
            text = f"a service is {verb} where it runs; leave it out here"
            raise OptionError(key, text)
        if (needing or watching) and (given := teacher.label_mode) not in (PROBABILITIES, LOGITS):
            who = needing or "the watch"
            expected = f"{who}: expected a teacher with unrounded scores"
            raise OptionError(key, expected, got=str(given))
        super().__init__(teacher)
        self.watch = watching(teacher) if watching else None
        if self.watch and self.watch.on_alarm == "label" and label_mode == LOGITS:
            raise UserError(
                say("{teacher.on_alarm:label}: expected a {teacher.label_mode} other than logits")
            )
        self.undefended = restrict(teacher, label_mode)
        self.label_mode = label_mode
        self.info = replace(
            teacher.info,
            defences=tuple(map(str, defences)),
            stateful=self,
            undefended=self.undefended,
            preview=self.preview,
            watch=self.watch,
        )
        self._stack: list[Defence] = [
            find_target(DEFENCES.get(it.name, OWN))(it, teacher) for it in defences
        ]
        self._fresh = {each.name: each.state_dict() for each in self._stack}

    def __call__(self, images: Tensor, /) -> Tensor:
        """Refused where a quota is used up, or an alarm was raised and the watch is to refuse."""
        if self.watch:
            self.watch.admit()
        self.admit(len(images))
        return self._defended(images)

    def admit(self, images: int) -> None:
        """Refused where a defence does not answer so many images more."""
        for each in self._stack:
            each.admit(images)

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
            return self._defended(images)
        finally:
            self.load_state_dict(before)
            self.watch = watch

    def replay_answer(self, images: Tensor, answers: Tensor) -> None:
        """Count answers from a record as if they were given now. ValueError where others would be
        given.
        """
        own, found = (
            each.cpu().double().nan_to_num(nan=-1.0) for each in (self._defended(images), answers)
        )
        tolerance = TOLERANCE + 10.0 ** -(self.label_mode.decimals or 99)
        if own.shape != found.shape or bool(((own - found).abs() > tolerance).any()):
            expected = (
                "other answers than on record; expected the same key, files and arithmetic as then"
            )
            raise ValueError(f"{'+'.join(self.info.defences) or 'watch'}: {expected}")

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self._stateful.items()}

    @property
    def _stateful(self) -> dict[str, Defence | Watch]:
        return {each.name: each for each in self._stack} | (
            {"watch": self.watch} if self.watch else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. ValueError for a state of another form."""
        validate_like(self._fresh, state, "teacher")
        for name, each in self._stateful.items():
            each.load_state_dict(state[name])

    def report(self) -> dict[str, Any]:
        """Counts of each defence, and its stored rows, by name, for the owner."""
        return {
            each.name: {k: len(v) if isinstance(v, Tensor) else v for k, v in each.state.items()}
            for each in self._stack
            if each.state
        }

    def _defended(self, images: Tensor) -> Tensor:
        wanted = self.label_mode
        watch = self.watch
        raw, p_BK, distance_B = asked(self._teacher, images, watch.features if watch else None)
        cut_B = watch.see(images, p_BK, distance_B) if watch else None
        y_BK = p_BK
        plain = reveal(raw, self._teacher.label_mode, wanted)
        for each in self._stack:
            y_BK = each.answer(y_BK, images)
        if cut_B is not None and cut_B.any():
            y_BK = torch.where(
                cut_B[:, None], one_hot(y_BK.argmax(1), self.num_classes).double(), y_BK
            )
        if y_BK is p_BK:
            return plain
        short_BK = y_BK.float()
        top_B1 = y_BK.argmax(1, keepdim=True)
        most_B1, short_top_B1 = short_BK.max(1, keepdim=True)
        most_B1 = torch.where(short_top_B1 == top_B1, most_B1, most_B1.nextafter(most_B1 + 1))
        # so no top class is tied by rounding
        defended = reveal(short_BK.scatter(1, top_B1, most_B1), PROBABILITIES, wanted)
        changed_B = (y_BK != p_BK).any(1)
        return torch.where(changed_B if plain.ndim == 1 else changed_B[:, None], defended, plain)


def behind(teacher: Teacher) -> Teacher:
    """The teacher without watch, defences and the cut to a label mode that comes with them."""
    return teacher._teacher if isinstance(teacher, Defended) else teacher
