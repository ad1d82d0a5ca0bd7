"""The options of ``run.py compare``. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from dfme.benchmarks.compare.engines import require_engine
from dfme.config.fields import (
    CONFIG,
    Basic,
    Count,
    LabelModeText,
    Natural,
    Seed,
    accepted_by,
    parse_count,
)


def _require_count(text: str) -> str:
    if parse_count(text) < 1:
        raise ValueError(f"expected at least 1 each, got {text}")
    return text


Budget = Annotated[str, AfterValidator(_require_count)]


@dataclass(frozen=True, config=CONFIG)
class CompareConfig:
    """One comparison: rows x seeds x budgets x label modes x defences x attackers, each cell a run or shared."""

    methods: Basic[tuple[str, ...]] = ()
    """rows in the order of the tables, such as static,dfme: names under rows of the file, or methods, which have their
    defaults then; none: all rows"""
    seeds: Basic[tuple[Seed, ...]] = (0, 1, 2)
    """seeds of everything random, such as 0,1,2"""
    budgets: Basic[tuple[Budget, ...]] = ("30k",)
    """images that may be charged, such as 30k,100k"""
    label_modes: Basic[tuple[LabelModeText, ...]] = ("probabilities",)
    """forms of the teacher's answers, such as probabilities,label"""
    defences: Basic[tuple[str, ...]] = ("none",)
    """what a teacher on this machine is defended by in turn, each one defence or several joined by +, such as
    none,lattice:n=10,modelguard_w:epsilon=1 (docs/defences.md)"""
    answers: Basic[tuple[str, ...]] = ("auto",)
    """attackers of each defence: what they learn (auto: as the row says; scores, kl, label), how they undo the defence,
    which they know (table, net), repeat=N and vote=N, joined by +, such as scores,kl,label,table,net,kl+repeat=4; they
    recover what answers tell, and hide nothing"""
    student_steps: Basic[Count] = 3_000
    """optimiser steps of each student over the whole run, the same in every cell"""
    jobs: Basic[Count | None] = None
    """runs side by side; each has its share of the cores. None: 1, or all that slurm or ray has room for"""
    engine: Basic[Annotated[str, accepted_by(require_engine)]] = "local"
    """who runs them: local (processes of this machine, each on a GPU of its own), commands (a list, and an array of
    SLURM jobs, for you to run), slurm (submitit) or ray. All of them read and write --out"""
    engine_options: Basic[tuple[str, ...]] = ()
    """KEY=VALUE of the engine's own: partition=gpu,time=240,gpus_per_node=1,cpus_per_task=4 of slurm;
    address=HOST:6379,num_cpus=4,num_gpus=0.25 of ray; of commands, what the array says to sbatch"""
    retries: Basic[Natural] = 3
    """how many times a run that was killed or preempted, or lost its node, is gone on with; one that fails is not"""
    format: Basic[Literal["png", "pdf"]] = "png"
    """of the picture: png or pdf"""
    out: Basic[str | None] = None
    """directory of tables, curves and runs; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the comparison in --out: what is finished is kept, what was interrupted is resumed"""
