"""A defence that is an object of the user's: tried once, and blamed for what goes wrong in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import read_custom
from dfme.compute.modules import copied, defaults_kept
from dfme.config.defence_options import OwnDefence
from dfme.config.imports import blaming
from dfme.errors import DfmeError, TeacherError, UserError
from dfme.spec import Teacher
from dfme.teachers.owner.custom_state import custom_state, require_form
from dfme.teachers.owner.defences.defence import Defence


class CustomDefence(Defence):
    """An object of a user's class, made after another one was tried; a checkpoint keeps its
    ``state``.
    """

    def __init__(self, options: OwnDefence, teacher: Teacher) -> None:
        self.name = options.name
        self._subject = f"defence {self.name}"
        x_2CHW = torch.full((2, *teacher.spec.shape), teacher.spec.bounds[0])
        with self._blaming(UserError):
            self._object = options.make()
            trial = options.make()
            self._form = copied(custom_state(trial, self._subject, UserError))
            read_custom(trial.answer, torch.eye(2, teacher.num_classes).double(), x_2CHW)
        state = custom_state(trial, self._subject, UserError)
        require_form(self._form, state, self._subject, UserError)

    @contextmanager
    def _blaming(self, error: type[DfmeError]) -> Iterator[None]:
        """What goes wrong in the user's code, as one line."""
        with blaming(self._subject, error), defaults_kept(self._subject, error):
            yield

    @property
    def state(self) -> dict[str, Any]:  # type: ignore[override]
        return custom_state(self._object, self._subject, TeacherError)

    def admit(self, images: int) -> None:
        with self._blaming(TeacherError):
            getattr(self._object, "admit", super().admit)(images)

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        with self._blaming(TeacherError):
            y_BK = read_custom(self._object.answer, p_BK, images_BCHW.clone())
        require_form(self._form, self.state, self._subject, TeacherError)
        return y_BK

    def load_state_dict(self, state: dict[str, Any]) -> None:
        current = self.state
        current.clear()
        current.update(copied(state))
