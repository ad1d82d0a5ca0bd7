"""Cost of defences to honest users: answers y against p without; time; memory."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.utils._pytree import tree_leaves

from dfme.answers.asking import binned_gaps
from dfme.config.defences import parse_defences, stated
from dfme.data import ImageSet
from dfme.errors import Refused
from dfme.measured import Bill, StreamBill
from dfme.spec import ImageSpec, LabelMode
from dfme.statistics import wilson_interval
from dfme.teachers.owner import label_mode_of

STREAMS = ("held_out", "corrupted", "data_free")
BATCH = 256
MIN_ROUNDS = 9
ROUNDS_SECONDS = 0.4
MIN_SCORE = 1e-12  # what a right class that was answered with zero counts as in the NLL: 27.6
Draw = Callable[[int, torch.Generator], Tensor]


def as_probabilities(answers: Tensor, mode: LabelMode, classes: int) -> Tensor:
    """Answers (B, K) or (B,) as float64 (B, K): labels one-hot, hidden mass spread evenly."""
    if mode.kind == "label":
        return one_hot(answers, classes).double()
    y_BK = answers.double().softmax(1) if mode.kind == "logits" else answers.double()
    hidden_BK = y_BK.isnan()
    rest_B1 = (1 - y_BK.nansum(1, keepdim=True)).clamp_min(0) / hidden_BK.sum(
        1, keepdim=True
    ).clamp_min(1)
    return torch.where(hidden_BK, rest_B1, y_BK)


def figures(p_NK: Tensor, y_NK: Tensor, labels_N: Tensor | None) -> StreamBill:
    """Changes for users who are answered y in place of p; without labels only what needs none."""
    if not len(y_NK):
        return StreamBill(answered=0)
    l1_N = (y_NK - p_NK).abs().sum(1)
    scores_N, served_N = y_NK.max(1)  # of equal scores the first class, as a label mode has it
    changes = StreamBill(
        answered=len(y_NK),
        top1_changed=(served_N != p_NK.argmax(1)).double().mean().item(),
        l1_mean=l1_N.mean().item(),
        l1_p95=l1_N.quantile(0.95).item(),
        l1_max=l1_N.max().item(),
    )
    if labels_N is None:
        return changes
    was_N = p_NK.argmax(1) == labels_N
    right_N = served_N == labels_N
    accuracy = right_N.double().mean().item()
    return replace(
        changes,
        accuracy=accuracy,
        accuracy_drop=(was_N.double().mean() - right_N.double().mean()).item(),
        became_wrong=int((was_N & ~right_N).sum()),
        became_right=int((right_N & ~was_N).sum()),
        ece=calibration_error(scores_N, right_N),
        nll=(0 - y_NK.gather(1, labels_N[:, None]).clamp_min(MIN_SCORE).log().mean()).item(),
        confidence_auroc=confidence_auroc(scores_N, right_N),
        accuracy_interval=wilson_interval(accuracy, len(y_NK)),
    )


def calibration_error(scores_N: Tensor, right_N: Tensor) -> float:
    """Mean |accuracy - score| over 15 equal bins of the score (Guo et al. 2017, arXiv 1706.04599,
    3).
    """
    return (binned_gaps(scores_N, right_N).sum(0).abs().sum() / len(scores_N)).item()


def confidence_auroc(scores_N: Tensor, right_N: Tensor) -> float | None:
    """P(the score of a right answer > that of a wrong one), equal ones half; None without both."""
    right_R = scores_N[right_N]
    wrong_W = scores_N[~right_N].sort().values
    if not len(right_R) or not len(wrong_W):
        return None
    below_R = torch.searchsorted(wrong_W, right_R) + torch.searchsorted(
        wrong_W, right_R, right=True
    )
    return (below_R.double().mean() / (2 * len(wrong_W))).item()


def corrupted(x_BCHW: Tensor, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """In turn: moved by a pixel, .7 to 1.3 times as bright, noise of .05, blurred by 1, 2, 1."""
    low, high = spec.bounds
    height, width = x_BCHW.shape[2:]
    y_BCHW = (x_BCHW - low) / (high - low)
    around_BCHW = pad(y_BCHW, (1, 1, 1, 1), "replicate")
    places = ((1, 0), (1, 2), (0, 1), (2, 1), (1, 1), (0, 0), (0, 2), (2, 0), (2, 2))
    parts = [around_BCHW[..., down : down + height, over : over + width] for down, over in places]
    moved = torch.stack(parts)
    first = torch.arange(0, len(y_BCHW), 4)
    y_BCHW[0::4] = moved[torch.randint(4, (len(first),), generator=rng), first]
    y_BCHW[1::4] *= 0.7 + 0.6 * torch.rand((len(y_BCHW[1::4]), 1, 1, 1), generator=rng)
    y_BCHW[2::4] += 0.05 * torch.randn(y_BCHW[2::4].shape, generator=rng)
    blur = torch.tensor([2, 2, 2, 2, 4, 1, 1, 1, 1]) / 16
    y_BCHW[3::4] = torch.einsum("nbchw,n->bchw", moved[:, 3::4], blur)
    return y_BCHW * (high - low) + low


def bills(
    rows: Sequence[tuple[tuple[str, ...], Any]],
    data: ImageSet,
    draw: Draw,
    seed: int,
    every: int = 1,
    timed: bool = True,
) -> Iterator[Bill]:
    """Bills of stacks of defences and their teachers, against the first, undefended one.

    Streams are held-out images in random order (of ``every`` so many the last), the same corrupted,
    and as many of an attack, which ``draw`` makes. Each stream, and each timing, finds a defence as
    cold as it came.
    """
    base = rows[0][1]
    batch = min(base.spec.at_once(BATCH), base.info.max_batch or BATCH)
    rng = torch.Generator().manual_seed(seed)
    order_N = torch.randperm(len(data) // every, generator=rng) * every + every - 1

    def images(stream: str) -> Iterator[Tensor]:
        rng = torch.Generator().manual_seed(seed)
        for index in order_N.split(batch):
            x_BCHW = draw(len(index), rng) if stream == "data_free" else data.batch(index)
            yield base.spec.quantise(
                corrupted(x_BCHW, base.spec, rng) if stream == "corrupted" else x_BCHW
            )

    plain = {stream: _answers(base, images(stream)) for stream in STREAMS}
    timed_BCHW = data.batch(order_N.repeat(-(-batch // len(order_N)))[:batch])
    for stack, teacher in rows:
        stateful = teacher.info.stateful
        cold = stateful.state_dict() if stateful else {}
        streams = dict[str, StreamBill]()
        for stream, p_NK in plain.items():
            y_NK = _answers(teacher, images(stream), cold)
            labelled = data.labels is not None and stream != "data_free"
            labels_N = data.required_labels[order_N][: len(y_NK)] if labelled else None
            paid = figures(p_NK[: len(y_NK)], y_NK, labels_N)
            streams[stream] = _with_state(paid, stateful) if stateful else paid
        ms = dict[str, float]()
        for count in (1, batch) if timed else ():
            ms |= _timed(base, teacher, cold, timed_BCHW[:count])
        yield Bill(
            row="+".join(stack) or "none",
            defence="+".join(stack) or "none",
            states=_statement(stack, base.num_classes),
            held_out=streams["held_out"],
            corrupted=streams["corrupted"],
            data_free=streams["data_free"],
            ms=ms,
            state_mb=streams["data_free"].state_mb,
        )


def _with_state(paid: StreamBill, stateful: Any) -> StreamBill:
    """With what the defences hold and have counted after a stream."""
    report = stateful.report()
    work = None
    if "pow" in report and paid.answered:
        work = 1000 * report["pow"]["seconds_of_work"] / paid.answered
    held = sum(getattr(leaf, "nbytes", 8) for leaf in tree_leaves(stateful.state_dict()))
    return replace(paid, state_mb=held / 1e6, report=report, work_s_per_1000=work)


def _statement(stack: tuple[str, ...], classes: int) -> dict[str, str]:
    """What a stack of defences states of itself; nothing of a label mode."""
    if label_mode_of(stack):
        return {}
    facts = stated(parse_defences(stack), classes)
    return {
        "top_kept": facts.keeps_top,
        "l1_at_most": "no bound" if facts.l1 is None else f"{facts.l1:g}",
        "state": "yes" if facts.stateful else "no",
        "random": "yes" if facts.random else "no",
        "needs": ", ".join(facts.needs) or "nothing",
    }


def _timed(base: Any, teacher: Any, cold: Any, x_BCHW: Tensor) -> dict[str, float]:
    """Medians of calls in turn: milliseconds an image, and times those of the undefended one."""
    plain = list[float]()
    defended = list[float]()
    began = time.perf_counter()
    while len(defended) < MIN_ROUNDS or time.perf_counter() - began < ROUNDS_SECONDS:
        for called, seconds in ((base, plain), (teacher, defended)):
            if cold:
                teacher.info.stateful.load_state_dict(cold)
            started = time.perf_counter()
            with suppress(Refused):
                _call(called, x_BCHW)
            seconds.append(time.perf_counter() - started)
    count = len(x_BCHW)
    median = statistics.median(defended)
    return {
        f"ms_{count}": 1000 * median / count,
        f"times_{count}": median / statistics.median(plain),
    }


def _answers(teacher: Any, stream: Iterator[Tensor], cold: Any = None) -> Tensor:
    """The answers (N, K) of a teacher in the state ``cold``, up to the first batch that is
    refused.
    """
    if cold:
        teacher.info.stateful.load_state_dict(cold)
    rows = [torch.empty(0, teacher.num_classes, dtype=torch.float64)]
    with suppress(Refused):
        for x_BCHW in stream:
            rows.append(
                as_probabilities(_call(teacher, x_BCHW), teacher.label_mode, teacher.num_classes)
            )
    return torch.cat(rows)


def _call(teacher: Any, x_BCHW: Tensor) -> Any:
    """The answers on the host, so that an accelerator is waited for."""
    with torch.no_grad():
        return teacher(x_BCHW.to(teacher.info.device, copy=True)).cpu()
