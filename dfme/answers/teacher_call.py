"""A teacher's call: it is asked, also from several threads, and its answers come back checked."""

import hashlib
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, PartialAnswers, read_answers
from dfme.compute.modules import DeferredChecks
from dfme.errors import BudgetExhausted, DfmeError, Misfit, TeacherError, Unusable
from dfme.spec import Teacher


class TeacherCall:
    """Asks ``teacher``, also from several threads; answers come to ``device``, checked.

    ``run`` names the run, for the keys of its requests. ``tells_more``: an answer told more than
    its mode. ``unknown_names``: what a service answered in place of its classes. ``fits``: whether
    it has ever answered as is read.
    """

    tells_more = False

    def __init__(
        self, teacher: Teacher, deferred: DeferredChecks, run: str, device: torch.device
    ) -> None:
        self._teacher = teacher
        self._deferred = deferred
        self._run = run
        self._device = device
        self._remote = teacher.info.remote
        self._ask = teacher.info.charged or teacher
        self.needs_key = self._remote is not None
        self.unknown_names = Counter[str]()
        self.fits: Callable[[], bool] = lambda: True

    def __call__(self, query_BCHW: Tensor, position: int, code: bytes) -> Tensor:
        """The answers to the images that follow ``position`` others of the run and have the digest
        ``code``.

        Raises:
            Refused, Unanswered: as the teacher does; Unusable also for an answer of a service that
            its label
                mode rules out.
            TeacherError: for such an answer of any other teacher, and for whatever it raises.
        """
        raw = self._call(query_BCHW, position, code)
        teacher = self._teacher
        mode = teacher.label_mode
        gaps = (
            raw if isinstance(raw, PartialAnswers) else PartialAnswers(raw, (0,) * len(query_BCHW))
        )
        if gaps.slip and not self.fits():
            raise Misfit(gaps.slip, "unknown class", for_good=True)
        self.unknown_names.update(gaps.names)
        if len(gaps.gaps) != len(query_BCHW) or not {*gaps.gaps} <= {0, NO_ANSWER, UNKNOWN_CLASS}:
            raise TeacherError(
                f"teacher: expected PartialAnswers with a mark for each of {len(query_BCHW)} "
                "images (0, "
                f"{NO_ANSWER} or {UNKNOWN_CLASS}), got {len(gaps.gaps)} marks"
            )
        try:
            answers = self._read(gaps.answers, gaps.gaps.count(0))
            return gaps.whole(answers, teacher.num_classes, mode) if any(gaps.gaps) else answers
        except TeacherError as error:
            if self._remote:
                came = gaps.answers
                numbers = isinstance(came, Tensor) and bool(came.isfinite().all())
                raise (Misfit if numbers else Unusable)(error.message, error.reason) from error
            raise
        except Exception as error:  # there are dtypes that nothing can be done with
            what = f"what none can be read from ({type(error).__name__})"
            raise TeacherError(f"teacher: expected {mode.kind}, got {what}") from error

    def _read(self, raw: object, images: int) -> Tensor:
        teacher = self._teacher
        if not images:
            return torch.empty(0, device=self._device)
        form = (images, teacher.num_classes, teacher.label_mode)
        return read_answers(raw, *form, self._deferred, self._device, self._more)

    def _more(self) -> None:
        self.tells_more = True

    def _call(self, query_BCHW: Tensor, position: int, code: bytes) -> object:
        try:
            with torch.no_grad(), torch.autocast(query_BCHW.device.type, enabled=False):
                asked_BCHW = query_BCHW.clone()  # a teacher may write into it, and be asked again
                if self._remote is None:
                    return self._ask(asked_BCHW)
                return self._remote.ask(asked_BCHW, self._key(position, code))
        except (
            BaseException
        ) as error:  # a client may give up the whole process: it is not its own here
            if isinstance(error, DfmeError | KeyboardInterrupt) and not isinstance(
                error, BudgetExhausted
            ):
                raise
            name = type(error).__name__[:80]
            raise TeacherError(
                f"teacher: expected answers to {len(query_BCHW)} images {tuple(query_BCHW.shape)}, "
                "but it "
                f"raised {name}: {' '.join(str(error).split())[:500]}",
                f"raised {name}",
            ) from error

    def _key(self, position: int, code: bytes) -> str:
        """Seed that is the same for every attempt at the same images at the same place of the same
        run.
        """
        return hashlib.sha256(f"{self._run} {position} {code.hex()}".encode()).hexdigest()[:32]
