"""TF32 as a GPU's products have it, on a CPU: operands of products are rounded to 10 bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dfme import precision

OPERANDS = {
    torch.ops.aten.convolution.default: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.bmm.default: (0, 1),
}


def rounded(x: Tensor) -> Tensor:
    """The nearest numbers of 10 bits and the exponent of fp32."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Rounding(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        operands = list(args)
        for at in OPERANDS.get(func, ()):  # type: ignore[call-overload]
            operands[at] = rounded(args[at]) if args[at].dtype == torch.float32 else args[at]
        return func(*operands, **kwargs or {})


@contextmanager
def tf32() -> Iterator[None]:
    with precision.ieee_fp32(), Rounding():
        yield


def flagged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Holds something while the real switch would be at TF32."""
    inside: list[str] = []

    @contextmanager
    def elsewhere() -> Iterator[None]:
        inside.append("tf32")
        yield
        inside.pop()

    monkeypatch.setattr(precision, "tf32", elsewhere)
    return inside
