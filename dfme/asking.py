"""One question to a teacher: the call, outside autograd and autocast, and the answer held to its label mode."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from dfme.answers import read_answers
from dfme.errors import DfmeError, TeacherError, Unusable
from dfme.sentinel import Sentinel
from dfme.spec import Teacher


class Asker:
    """Asks ``teacher`` once at a time or from several threads; answers come to ``device``, checked.

    ``run`` is a name of the run, which tells its requests from those of other runs.
    """

    def __init__(self, teacher: Teacher, sentinel: Sentinel, run: str, device: torch.device) -> None:
        self._teacher, self._sentinel, self._run, self._device = teacher, sentinel, run, device
        self._is_service = getattr(teacher, "wire", None) is not None
        self._ask_with_key: Callable[[Tensor, str], object] | None = getattr(teacher, "ask", None)

    @property
    def needs_key(self) -> bool:
        """Whether requests carry a key, and so need their digest."""
        return self._ask_with_key is not None

    def __call__(self, query_BCHW: Tensor, position: int, code: bytes) -> Tensor:
        """The answers to the images that follow ``position`` others of the run and have the digest ``code``.

        Raises:
            Refused, Unanswered: as the teacher does; Unusable also for an answer of a service that its label mode
                rules out.
            TeacherError: for such an answer of any other teacher, and for whatever it raises.
        """
        raw = self._call(query_BCHW, position, code)
        teacher = self._teacher
        try:
            return read_answers(
                raw, len(query_BCHW), teacher.num_classes, teacher.label_mode, self._sentinel, self._device
            )
        except TeacherError as error:
            if self._is_service:
                raise Unusable(str(error), "unusable answer") from error
            raise

    def _call(self, query_BCHW: Tensor, position: int, code: bytes) -> object:
        try:
            with torch.no_grad(), torch.autocast(query_BCHW.device.type, enabled=False):
                asked_BCHW = query_BCHW.clone()  # a teacher may write into it, and be asked again
                if self._ask_with_key is None:
                    return self._teacher(asked_BCHW)
                return self._ask_with_key(asked_BCHW, self._key(position, code))
        except DfmeError:
            raise
        except (Exception, SystemExit) as error:  # a client may give up the whole process: it is not its own here
            reason = " ".join(str(error).split())
            raise TeacherError(
                f"teacher: expected answers to {len(query_BCHW)} images {tuple(query_BCHW.shape)}, but it raised "
                f"{type(error).__name__}: {reason}"
            ) from error

    def _key(self, position: int, code: bytes) -> str:
        """The same for every attempt at the same images at the same place of the same run, and for nothing else."""
        return hashlib.sha256(f"{self._run} {position} {code.hex()}".encode()).hexdigest()[:32]
