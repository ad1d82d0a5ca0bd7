"""Configurations of the commands that run no extraction of their own. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dfme.config.settings import EvaluationConfig, ScheduleConfig, StudentConfig


@dataclass(frozen=True)
class BenchConfig:
    """How long the framework's own loop takes beside the bare kernels of the same work.

    Args:
        cases: what to time: digits (cnn_small on 1x8x8, four replay steps a batch), digits_paper (the same without
            replay) and resnet (ResNet-34-8x to ResNet-18-8x on 3x32x32, without replay); http: the digits
            run through a served teacher beside the same one in process, and our client beside bare httpx2
        rounds: pairs of timings; the median of the ratios is reported
        seconds: about how long one timing takes
        batch_size: images per batch; 0 is 256, or 16 for resnet on a CPU
        device: auto, cpu, cuda or cuda:N
        precision: of the student's training steps: fp32 or bf16
        channels_last: memory format of convolutions; auto picks it where it is faster
        compile: run student and generator through torch.compile
    """

    cases: tuple[str, ...] = ("digits", "digits_paper", "resnet")
    rounds: int = 5
    seconds: float = 5.0
    batch_size: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: Literal["auto", "yes", "no"] = "auto"
    compile: bool = False


@dataclass(frozen=True)
class ServeConfig:
    """Serving a teacher over the Open Inference Protocol v2.

    Args:
        host: address to listen at; any but this machine's own lets others in
        port: port to listen at; 0: a free one, which is printed
        model: the model's name in URLs; by default that of the teacher's file or class
        max_batch: most images in one request; none: the teacher's own limit
        api_key_env: name of the environment variable with the key that clients must send; none: no key
        images_per_second: most images served per second; more is refused with 429
        requests_per_second: most requests served per second; more is refused with 429
        device: auto, cpu, cuda or cuda:N; where a teacher of kind torch runs
        threads: CPU threads of the model; 0: as many as torch uses
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model: str | None = None
    max_batch: int | None = None
    api_key_env: str | None = None
    images_per_second: float | None = None
    requests_per_second: float | None = None
    device: str = "auto"
    threads: int = 0


@dataclass(frozen=True)
class CompareConfig:
    """One comparison: rows x seeds x budgets x label modes, each cell a run of its own.

    Args:
        methods: rows in the order of the tables, such as static,dfme: names under rows of the file, or methods, which
            have their defaults then; none: all rows
        seeds: seeds of everything random, such as 0,1,2
        budgets: images that may be charged, such as 30k,100k
        label_modes: forms of the teacher's answers, such as probabilities,label
        student_steps: optimiser steps of each student over the whole run, the same in every cell
        jobs: runs side by side; each has its share of the cores
        out: directory of tables, curves and runs; by default a free name under runs/
        resume: go on with the comparison in --out: what is finished is kept, what was interrupted is resumed
    """

    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    budgets: tuple[str, ...] = ("30k",)
    label_modes: tuple[str, ...] = ("probabilities",)
    student_steps: int = 3_000
    jobs: int = 1
    out: str | None = None
    resume: bool = False


@dataclass(frozen=True)
class RetrainConfig:
    """A fresh student on the answers that a run paid for; the teacher is asked nothing.

    What is not given is as the run had it, its number of student steps included.

    Args:
        run: the run directory whose answers are learnt from
        out: directory of the new student; by default a free name under runs/
        seed: seed of the student's weights and of the draws
        device: auto, cpu, cuda or cuda:N
        precision: of the training steps: fp32, or bf16 (autocast)
        channels_last: memory format of convolutions; auto picks it where it is faster
        compile: run the student through torch.compile
        schedule: learning-rate schedule, over the steps
        student: the student
        evaluation: the run's evaluation set, whose recorded answers the student is scored on
    """

    run: str
    out: str | None = None
    seed: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: Literal["auto", "yes", "no"] = "auto"
    compile: bool = False
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    student: StudentConfig = field(default_factory=StudentConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
