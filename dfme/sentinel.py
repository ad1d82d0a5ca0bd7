"""Conditions on tensors that must hold, without making an accelerator wait for the host at every step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Sentinel:
    """Checks at once on the CPU; on an accelerator collects the flags and reads them together in ``verify``.

    Reading one flag per step would stall a GPU's queue. The loop calls ``verify`` before anything that lasts
    (a log line, a checkpoint, the student's file), so a broken value is never kept, only noticed a little later.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[], Exception]]] = []

    def expect(self, ok: Tensor, error: Callable[[], Exception]) -> None:
        """Require the boolean scalar ``ok``; ``error`` makes the exception to raise if it is false."""
        if ok.device.type == "cpu":
            if not bool(ok):
                raise error()
        else:
            self._pending.append((ok, error))

    def verify(self) -> None:
        """Read every pending flag and raise the first error there is."""
        pending, self._pending = self._pending, []
        for ok, error in pending:
            if not bool(ok):
                raise error()
