"""The owner's side of the API: models, the form of their answers, how a teacher is made. No torch here."""

from __future__ import annotations

from typing import Any, NamedTuple

from teachers.options import TorchOptions


class Kind(NamedTuple):
    """A built-in kind of teacher: the dataclass of its options and ``module:function`` of its loader.

    The loader is imported when a teacher is made, and called with the options, the
    ``dfme.config.TeacherConfig`` and the torch device.
    """

    options: type[Any]
    loader: str


KINDS: dict[str, Kind] = {
    "torch": Kind(TorchOptions, "teachers.torch_local:load_torch"),
}
