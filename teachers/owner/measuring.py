"""What the owner of a teacher measures: bills of defences, detectors, a twin. No torch until
then.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dfme.config.defences import NEED_FEATURES
from dfme.config.settings import Job, TeacherConfig
from dfme.errors import OptionError
from dfme.measured import ACCOUNTS, Bill, Detection, SplitAttack
from dfme.spec import ImageSpec, Shape, Teacher
from dfme.teachers import KINDS
from dfme.teachers.options import TrainDataConfig, TrainTeacherConfig
from dfme.teachers.owner import label_mode_of

if TYPE_CHECKING:
    from dfme.data import ImageSet
    from dfme.teachers.owner.marking.key import MarkKey
    from dfme.teachers.owner.utility import Draw

Metering = Callable[[Teacher], Teacher]
"""Puts a teacher behind a ledger."""
Tell = Callable[[str], None]


ACCOUNT_SECONDS = 0.003  # of new detectors over an account, beside those of its images; heuristic


class Tools(Protocol):
    """What the auditor's side lends for measurements of one job's teacher."""

    def teacher(self, config: TeacherConfig, meter: Metering | None, /) -> Teacher:
        """The teacher with these common keys."""

    def images(self, teacher: Teacher, tell: Tell, /) -> "ImageSet":
        """The evaluation images as the teacher takes them."""

    def attack(self, spec: ImageSpec, /) -> "Draw":
        """The images of an attack."""

    def meter(self, folder: Path, /) -> AbstractContextManager[Metering]:
        """A ledger and a journal in ``folder``."""


class Measuring:
    """Measurements of the teacher of a job, on the job's evaluation images and device.

    This is the ``Owner`` of ``dfme.audits.owner``, which describes the methods.
    """

    def __init__(self, job: Job, tools: Tools) -> None:
        self._job = job
        self._tools = tools
        self._teacher: Teacher | None = None

    def benign_meter(self, folder: Path, /) -> AbstractContextManager[Metering | None]:
        return nullcontext() if self._job.teacher.kind in KINDS else self._tools.meter(folder)

    def bills(
        self,
        stacks: Sequence[tuple[str, ...]],
        tell: Tell,
        meter: Metering | None = None,
        seed: int = 0,
    ) -> list[Bill]:
        from dfme.teachers.owner import utility

        # what does not fit is said before anything is measured
        rows = [(stack, self._defended(stack, meter)) for stack in ((), *stacks)]
        halved = self._calibrates_on_evaluation(stacks)
        plain = rows[0][1]
        data = self._tools.images(plain, tell)
        draw = self._tools.attack(plain.spec)
        measured = list[Bill]()
        for bill in utility.bills(rows, data, draw, seed, 1 + halved, timed=meter is None):
            measured.append(bill)
            tell(f"measured {len(measured)} of {len(rows)}: {bill.defence}")
        return measured

    def _defended(self, stack: Sequence[str], meter: Metering | None) -> Teacher:
        from dfme.teachers.label_modes import restrict

        mode = label_mode_of(stack)
        config = replace(self._job.teacher, defences=() if mode else tuple(stack))
        teacher = self._tools.teacher(config, meter)
        return restrict(teacher, mode) if mode else teacher

    def _calibrates_on_evaluation(self, stacks: Iterable[tuple[str, ...]]) -> bool:
        """Whether half of the evaluation images calibrate a defence."""
        evaluation = self._job.config.evaluation
        defences = [defence for stack in stacks for defence in stack]
        halved = any(f"data={evaluation.dataset}" in text.split(":") for text in defences)
        if halved and evaluation.limit:
            raise OptionError(
                "evaluation.limit", "expected 0, since a gate is calibrated on half of all images"
            )
        return halved

    def detection(
        self,
        names: Sequence[str],
        tell: Tell,
        meter: Metering | None = None,
        sessions: int | None = None,
        other: str | None = None,
        log: Path | None = None,
    ) -> Detection:
        """``sessions``: by default as many as ``run.py detect`` has. ``other``: images of one more
        stream; ``log``: of a service.
        """
        from dfme.teachers.owner.watch.detection import detect

        blind = self._blind(names)
        teacher = self._watched(names, meter)
        seen = detect(teacher, self._benign, other, tell=tell, log=log, sessions=sessions)
        why = dict.fromkeys(blind, "it looks into a network of kind torch")
        return replace(seen, left_out={**seen.left_out, **why})

    def split(
        self,
        names: Sequence[str],
        recorded: Mapping[str, Path],
        tell: Tell,
        meter: Metering | None = None,
    ) -> list[SplitAttack]:
        from dfme.teachers.owner.watch.accounts import split

        teacher = self._watched(names, meter)
        return split(teacher.info.watch, teacher.spec, recorded, tell)

    @property
    def _benign(self) -> str:
        """The images that calibrate detectors."""
        return self._job.teacher.benign or self._job.config.evaluation.dataset

    def _blind(self, names: Sequence[str]) -> list[str]:
        """Detectors that cannot see what they look at."""
        is_torch = self._job.teacher.kind == "torch"
        return [name for name in names if name in NEED_FEATURES and not is_torch]

    def _watched(self, names: Sequence[str], meter: Metering | None) -> Teacher:
        """The teacher under these detectors, calibrated once for all that is measured of them."""
        from dfme.compute.device import choose_device
        from dfme.teachers.build import make_teacher

        blind = self._blind(names)
        watch = tuple(name for name in names if name not in blind)
        if self._teacher is None or self._teacher.info.watch.names != watch:
            config = replace(
                self._job.teacher,
                watch=watch,
                benign=self._benign,
                on_alarm="log",
                defences=(),
                label_mode=None,
            )
            device = choose_device(self._job.config.device)
            self._teacher = make_teacher(config, self._job.teacher_options, device, meter=meter)
        return self._teacher

    def train_twin(self, arch: str, shape: Shape, epochs: int, path: Path, tell: Tell) -> None:
        if path.exists():
            return
        from dfme.nets import is_own
        from dfme.teachers.owner.training.train import train_teacher

        config = self._job.config
        on = config.evaluation
        twin = TrainTeacherConfig(
            TrainDataConfig(on.dataset, on.root, on.download, shape),
            "auto" if is_own(arch) else arch,
            epochs,
            batch_size=64,
            lr=0.05,
            seed=config.seed,
            device=config.device,
            out=str(path),
        )
        trained = train_teacher(twin, lambda metrics: None)
        tell(f"a twin, trained in {trained.seconds:.1f} s")

    def marks(self, path: str) -> "MarkKey":
        """The key of a mark."""
        from dfme.teachers.owner.marking.key import load_key

        return load_key(path)

    def benign_at_most(self, images: int, stacks: bool, sessions: int, cells: int) -> int:
        from dfme.teachers.owner.watch.detector import AGAIN, SESSION

        billed = 3 * images if stacks else 0
        # corrupted images, and repeats that are moved by a pixel
        watched = 2 * images + round(sessions * SESSION * (1 + AGAIN)) if sessions else 0
        # each cell calibrates a watch, and asks what honest users are answered
        return billed + watched + (2 * images + 1) * cells

    def billing_seconds(self, stacks: int, images: int, answer: float) -> float:
        from dfme.teachers.owner.utility import ROUNDS_SECONDS

        if not stacks:
            return 0.0
        # a row is asked three streams, and two sizes of calls are timed beside undefended ones
        return (1 + stacks) * (3 * images * answer + 2 * ROUNDS_SECONDS)

    def splitting_seconds(self, images: int, looking: float) -> float:
        begun = sum(min(accounts, images) for accounts in ACCOUNTS)
        return len(ACCOUNTS) * images * looking + ACCOUNT_SECONDS * begun

    def streamed(self, sessions: int) -> int:
        from dfme.teachers.owner.watch.detector import SESSION, STREAMS

        return (len(STREAMS) - 1) * sessions * SESSION  # other data is a stream of detect alone
