"""Ranks: the processes of one run, one on each GPU, as torchrun starts them. They share the rows of its batches.

Every rank holds all networks and draws the same random numbers. What each image decides by itself is worked out by
rows and gathered; gradients and batch statistics are summed over the ranks; the rest each does whole. So it is the same
run for any number of ranks, up to the order in which floats are added (docs/ranks.md).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dfme.compute import device_name
from dfme.config.torchrun import world
from dfme.errors import DfmeError, UserError

MIN_PATIENCE = 1_800.0
"""Seconds that ranks wait for each other at least: the first one may be scoring, or asking a slow teacher."""

ALIKE_EVERY = 1_000
"""Turns of a run between two looks whether its ranks have drifted apart."""

ALL = slice(None)
Tensors = Callable[[], Iterable[Tensor]]


class Ranks:
    """One process alone, or several: what these do together is done by all, in the same order.

    What is on the host travels by gloo, what is on a GPU by NCCL (``gpus``), so that no GPU waits while the first rank
    waits for a teacher. The first rank owns the budget, the files and what only one may ask.
    """

    def __init__(self, number: int = 0, count: int = 1, gpus: Any = None) -> None:
        self.number, self.count, self.gpus, self._agreed = number, count, gpus, 0

    @property
    def first(self) -> bool:
        return self.number == 0

    def rows(self, images: int) -> slice:
        """This rank's rows of a batch; all of one that has fewer than two for each: statistics need two."""
        if self.count == 1 or images < 2 * self.count:
            return ALL
        return slice(images * self.number // self.count, images * (self.number + 1) // self.count)

    def by_rows(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """``function`` of tensors (B, ...), which takes each row by itself; whole on every rank under autograd."""
        rows = ALL if torch.is_grad_enabled() else self.rows(len(tensors[0]))
        if rows == ALL:
            return function(*tensors)
        return self.gather(function(*(x[rows] for x in tensors)), rows, len(tensors[0]))

    def gather(self, own: Tensor, rows: slice, images: int) -> Tensor:
        """The whole (B, ...) of what each rank has for its rows."""
        whole = own.new_zeros(images, *own.shape[1:])
        whole[rows] = own
        return self.sum(whole)  # a row is nothing on the other ranks

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's ``x``, in its place: the same bits on all of them."""
        self._together("all_reduce", x, gpus=x.is_cuda)
        return x

    def share(self, x: Tensor) -> Tensor:
        """The first rank's ``x``, in the place of every other's, which has its form."""
        if self.count > 1:
            self._together("broadcast", x := x.contiguous(), 0, gpus=x.is_cuda)
        return x

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The others do what is inside once the first has done it: it may download what all of them read."""
        turn = torch.zeros(())
        if not self.first:
            self.share(turn)
        yield
        if self.first:
            self.share(turn)

    def agree(self, flag: bool, same: Tensors | None = None) -> bool:
        """The first rank's answer; every ``ALIKE_EVERY``-th time that they are given, all still have the ``same``."""
        if self.count == 1:
            return flag
        self._agreed += same is not None
        if same is not None and self._agreed % ALIKE_EVERY == 0:
            self.require_same(same)
        return bool(self.share(torch.tensor(int(flag))))

    def require_same(self, same: Tensors) -> None:
        """DfmeError, on every rank, where these tensors have not the same bits on all."""

        def digest() -> str:
            each = (x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data for x in same())
            return hashlib.sha256(b"".join(each)).hexdigest()[:16]

        self.require_alike("weights and random streams", digest, DfmeError)

    def said(self, own: Any) -> list[Any]:
        """What every rank says."""
        said = [own] * self.count
        self._together("all_gather_object", said, own)
        return said

    def require_alike(self, what: str, own: Callable[[], str], error: type[DfmeError] = UserError) -> None:
        """``error``, on every rank, where ``own`` is not the same on all."""
        said = [] if self.count == 1 else self.said(own())
        for number, text in enumerate(said):
            if text != said[0]:
                raise error(f"torchrun: expected the same {what} on every rank, got {said[0]} on 0, {text} on {number}")

    def require_no_chance(self, nets: Iterable[nn.Module]) -> None:
        """UserError for nets that draw random numbers as they train: rows by themselves would draw others."""
        for each in (module for net in nets for module in net.modules() if self.count > 1):
            name, share = type(each).__name__, getattr(each, "p", None) or getattr(each, "drop_prob", None)
            if share and ("Drop" in name or "Stochastic" in name):
                raise UserError(f"--student.arch: {name} draws random numbers, which several ranks cannot; start one")

    def wrap(self, rows: slice) -> AbstractContextManager[object]:
        """While a net that trains sees its rows, batch normalisation has the statistics of the whole batch."""
        return nullcontext() if rows == ALL else _SharedStatistics(self)

    def sum_gradients(self, net: nn.Module, losses: Tensor, rows: slice, images: int) -> Tensor:
        """Gradients become the sum of every rank's, which saw its rows; the losses (B,) of the whole batch."""
        if rows == ALL:
            self.same_gradients(net.parameters())
            return losses
        losses_B = losses.new_zeros(images)
        losses_B[rows] = losses
        self._all_at_once(self.sum, [*_gradients(net.parameters()), losses_B])
        return losses_B

    def same_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Gradients of a whole batch become the first rank's: a GPU's kernels may differ in the last bits."""
        if self.count > 1:
            self._all_at_once(self.share, _gradients(parameters))

    def _all_at_once(self, together: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> None:
        flat = together(torch.cat([x.reshape(-1) for x in tensors]))
        for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
            x.copy_(part.view_as(x))

    def _together(self, collective: str, *given: Any, gpus: bool = False) -> None:
        try:
            getattr(dist, collective)(*given, group=self.gpus if gpus else None)
        except RuntimeError as error:
            raise DfmeError(
                f"rank {self.number} waits for the others in vain: one of them has ended; all that was paid is kept: "
                "the same line with --resume auto goes on, which torchrun --max-restarts 3 does by itself"
            ) from error


ALONE = Ranks()


def join(device: torch.device, patience: float, facts: str) -> tuple[torch.device, Ranks]:
    """The ranks that torchrun started, once all are there, and the GPU of this one; ``ALONE`` without it.

    ``patience``: seconds that one request to the teacher may take. Twice as long they wait for each other. UserError
    where ``facts``, torch or the model of the GPU, whose random numbers depend on it, are not the same on all.
    """
    (number, count), own = world(), int(os.environ.get("LOCAL_RANK", "0"))
    if count == 1:
        return device, ALONE
    if device.type == "cuda":
        if own >= (found := torch.cuda.device_count()):
            raise UserError(f"torchrun --nproc-per-node: this machine has {found} GPUs; start as many, or --device cpu")
        torch.cuda.set_device(device := torch.device("cuda", own))
    # It keeps the group that there is when it is first imported, and with it threads that may abort an exit.
    importlib.import_module("torch.distributed.nn")
    store, *_ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # One store serves all restarts: without a name of their own the new ranks find where the killed ones listened.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), store)  # type: ignore[attr-defined]
    wait = timedelta(seconds=max(MIN_PATIENCE, 2 * patience))
    dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=wait)
    atexit.register(dist.destroy_process_group)  # not sooner: the others would hear of it before a rank says its error
    ranks = Ranks(number, count, dist.new_group(backend="nccl") if device.type == "cuda" else None)
    ranks.require_alike("start", lambda: f"{facts}, {device_name(device)}, torch {torch.__version__}")
    return device, ranks


class _SharedStatistics(TorchFunctionMode):
    """Batch normalisation by the mean and the variance over every rank's rows, differentiable through both.

    On a GPU by the kernels of torch's SyncBatchNorm, which has none for a CPU. It stands in the place of the function,
    not of modules: a student's file, its moving average and its eval mode know nothing of it.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        if x.is_cuda:
            from torch.nn.modules._functions import SyncBatchNorm

            format = torch.channels_last if x.ndim == 4 and x.stride(1) == 1 else torch.contiguous_format
            whole, statistics = x.contiguous(memory_format=format), (running_mean, running_var, eps, momentum)
            return SyncBatchNorm.apply(whole, weight, bias, *statistics, self._ranks.gpus, self._ranks.count)
        axes, shape = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        own = x.float() if x.element_size() < 4 else x
        values = own.new_tensor([x.numel() // x.shape[1]])
        sums, count = _Sum.apply(torch.cat([own.sum(axes), values]), self._ranks).split([x.shape[1], 1])
        mean = sums / count
        centred = own - mean.view(shape)
        var = _Sum.apply(centred.square().sum(axes), self._ranks) / count
        with torch.no_grad():
            for running, now in ((running_mean, mean), (running_var, var * count / (count - 1))):
                if running is not None:
                    running.lerp_(now, momentum)
        y = centred * (var + eps).rsqrt().view(shape)
        y = y if weight is None else y * weight.view(shape)
        return (y if bias is None else y + bias.view(shape)).to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum over the ranks; so is its gradient, since the loss of every rank depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.ranks.sum(grads[0].clone()), None


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
