"""Checks of values that an accelerator still computes: they are read together, and later."""

from collections.abc import Callable

import torch
from torch import Tensor

from dfme.compute.device import on_accelerator

MAX_PENDING = 4_096  # flags of an accelerator that wait to be read at most


class DeferredChecks:
    """Check at once on the CPU; on an accelerator collect flags and read them in one go in
    ``verify``.

    The loop calls ``verify`` before anything that lasts (a log line, a checkpoint, the student's
    file), so a broken value is never kept, only noticed a little later.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[], Exception]]] = []

    def expect(self, ok: Tensor, error: Callable[[], Exception]) -> None:
        """Require the boolean scalar ``ok``; ``error`` makes the exception to raise if it is
        false.
        """
        if not on_accelerator(ok.device):
            if not bool(ok):
                raise error()
            return
        self._pending.append((ok, error))
        if len(self._pending) >= MAX_PENDING:
            self.verify()

    def verify(self) -> None:
        """Read every pending flag and raise the first error there is."""
        pending = self._pending
        self._pending = []
        if not pending:
            return
        # a hundred are one kernel
        flags = torch.stack([ok.to(pending[0][0].device) for ok, _ in pending]).tolist()
        for ok, (_, error) in zip(flags, pending, strict=True):
            if not ok:
                raise error()
