"""The options of ``run.py bench`` and ``run.py compare``. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Basic, Count, Device, LabelModeText, Natural, Positive, Seed, parse_count


def _require_count(text: str) -> str:
    if parse_count(text) < 1:
        raise ValueError(f"expected at least 1 each, got {text}")
    return text


Budget = Annotated[str, AfterValidator(_require_count)]


@dataclass(frozen=True, config=CONFIG)
class BenchConfig:
    """How long the framework's own loop takes beside the bare kernels of the same work."""

    cases: tuple[str, ...] = ("digits", "digits_paper", "resnet")
    """what to time: digits (cnn_small on 1x8x8, four replay steps a batch), digits_paper (the same without replay) and
    resnet (ResNet-34-8x to ResNet-18-8x on 3x32x32, without replay); http: the digits run through a served teacher
    beside the same one in process, and our client beside bare httpx2"""
    rounds: Count = 5
    """pairs of timings; the median of the ratios is reported"""
    seconds: Positive = 5.0
    """about how long one timing takes"""
    batch_size: Natural = 0
    """images per batch; 0 is 256, or 16 for resnet on a CPU"""
    device: Device = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """of the student's training steps: fp32 or bf16"""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """memory format of convolutions; auto picks it where it is faster"""
    compile: bool = False
    """run student and generator through torch.compile"""


@dataclass(frozen=True, config=CONFIG)
class CompareConfig:
    """One comparison: rows x seeds x budgets x label modes, each cell a run of its own."""

    methods: Basic[tuple[str, ...]] = ()
    """rows in the order of the tables, such as static,dfme: names under rows of the file, or methods, which have their
    defaults then; none: all rows"""
    seeds: Basic[tuple[Seed, ...]] = (0, 1, 2)
    """seeds of everything random, such as 0,1,2"""
    budgets: Basic[tuple[Budget, ...]] = ("30k",)
    """images that may be charged, such as 30k,100k"""
    label_modes: Basic[tuple[LabelModeText, ...]] = ("probabilities",)
    """forms of the teacher's answers, such as probabilities,label"""
    student_steps: Basic[Count] = 3_000
    """optimiser steps of each student over the whole run, the same in every cell"""
    jobs: Basic[Count] = 1
    """runs side by side; each has its share of the cores"""
    out: Basic[str | None] = None
    """directory of tables, curves and runs; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the comparison in --out: what is finished is kept, what was interrupted is resumed"""
