"""What an audit needs measured on the owner's side of one teacher."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dfme.measured import Bill, Detection, SplitAttack
from dfme.spec import Shape, Teacher

if TYPE_CHECKING:
    from torch import Tensor

Metering = Callable[[Teacher], Teacher]
"""Puts a teacher behind a ledger."""


class KeyOfMarks(Protocol):
    """Images that a marked model answers ``target``, and controls that it answers ``source``.

    Pixels are within ``bounds``; ``model_sha256``: of the marked weights' file.
    """

    @property
    def marks_MCHW(self) -> "Tensor": ...

    @property
    def controls_NCHW(self) -> "Tensor": ...

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def bounds(self) -> tuple[float, float]: ...

    @property
    def model_sha256(self) -> str: ...

    @property
    def digest(self) -> str:
        """SHA-256 of images and classes: what a record may say of a key."""


class Owner(Protocol):
    """The owner of a teacher. ``tell`` hears how far a measurement is.

    ``meter``: what ``benign_meter`` gave; behind one, no time is measured.
    """

    def benign_meter(self, folder: Path, /) -> AbstractContextManager[Metering | None]:
        """A ledger, in ``folder``, of the images that a custom teacher is asked; None for a
        built-in kind, which is free.
        """

    def bills(
        self,
        stacks: Sequence[tuple[str, ...]],
        tell: Callable[[str], None],
        meter: Metering | None,
    ) -> list[Bill]:
        """What stacks of defences, or label modes, cost honest users; that of no defence first."""

    def detection(
        self,
        names: Sequence[str],
        tell: Callable[[str], None],
        meter: Metering | None,
        sessions: int,
    ) -> Detection:
        """What detectors say of honest accounts, ``sessions`` of each stream."""

    def split(
        self,
        names: Sequence[str],
        recorded: Mapping[str, Path],
        tell: Callable[[str], None],
        meter: Metering | None,
    ) -> list[SplitAttack]:
        """What detectors say of recorded queries (folders by a run's name) dealt out to many
        accounts; nobody is asked but for what calibrates the detectors. RunError for a record that
        does not fit.
        """

    def train_twin(
        self, arch: str, shape: Shape, epochs: int, path: Path, tell: Callable[[str], None]
    ) -> None:
        """Train a net on the data's train part and write it to ``path``, if it is not there."""

    def marks(self, path: str) -> KeyOfMarks:
        """The key of a mark. UserError, in one line, for a file that is none."""

    def benign_at_most(self, images: int, stacks: bool, sessions: int, cells: int) -> int:
        """Most images that ``bills`` and ``detection`` ask a custom teacher, and those of
        ``cells`` attacks; ``images``: of the evaluation set.
        """

    def billing_seconds(self, stacks: int, images: int, answer: float) -> float:
        """About the seconds of ``bills``, with ``answer`` seconds of an image."""

    def splitting_seconds(self, images: int, looking: float) -> float:
        """About the seconds of ``split`` for a record of so many images, with ``looking`` seconds
        of the detectors for an image.
        """

    def streamed(self, sessions: int) -> int:
        """Images of the honest accounts that ``detection`` asks."""
