"""Runs of an audit made by hand: what attacks reached, what honest users paid, what detectors saw."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from handmade import FIGURES

from dfme.audits.audit.findings import Findings
from dfme.audits.audit.ladder import parse_rate
from dfme.audits.audit.parts import WatchedAttack, WatchedAttacks
from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.plan import Cell, attempt
from dfme.config.settings import (
    EvaluationConfig,
    ExtractConfig,
    Job,
    StudentConfig,
    TeacherConfig,
)
from dfme.measured import Bill, HonestStream, StreamBill
from dfme.methods.configs import KnockoffConfig
from dfme.report.run_files import LEVELS

JOB = Job(
    ExtractConfig(evaluation=EvaluationConfig("digits")), TeacherConfig(), {}, "procedural", None
)
SUMMARY: dict[str, Any] = {
    "teacher": {"shape": [1, 8, 8]},
    "evaluation": {"images": 359, "held_back": False},
    "baselines": {"constant_agreement": 0.1, "chance": 0.1},
}
POOLS = {
    "knockoff": "digits@like",
    "public_like": "digits@like",
    "public_pool": "photographs",
}
Curve = Sequence[tuple[int, float]] | None
REACHED, LOW = ((500, 0.6), (850, 0.91), (3000, 0.94)), ((500, 0.4), (3000, 0.75))


def outcome(
    row: str, mode: str, seed: int, curve: Curve, defence: str = "none", answers: str = "auto"
) -> Outcome:
    """A finished run with such a curve; a failed one without. ``knockoff`` has images, and
    attackers with public weights have what their names say.
    """
    job, budget = JOB, 3000
    pool = POOLS.get(row)
    if pool is not None:
        job = replace(JOB, method_config=KnockoffConfig(pool=pool))
        budget = curve[-1][0] if curve else budget
    if row.startswith("public"):
        student = StudentConfig(weights="models/net.safetensors")
        job = replace(job, config=replace(job.config, student=student))
    cell = Cell(row, mode, budget, seed, job, attempt(defence, answers, mode))
    if curve is None:
        return Outcome(cell, "failed", "it broke")
    reached = {level: next((at for at, share in curve if share >= level), None) for level in LEVELS}
    figures = replace(
        FIGURES,
        queries_to=reached,
        curve=list(curve),
        agreement=curve[-1][1],
        spent=3000,
    )
    return Outcome(cell, "finished", figures=figures)


def findings_of(
    *runs: Outcome,
    defended: Sequence[Outcome] = (),
    price: float | None = 1.5,
    bills: Any = (),
    rate: str | None = None,
    summary: dict[str, Any] = SUMMARY,
) -> Findings:
    every = (*runs, *defended)
    return Findings(
        mode="probabilities",
        budget=3000,
        price_per_1000=price,
        first=ComparisonResult("a", {}, runs),
        second=ComparisonResult("b", {}, tuple(defended)) if defended else None,
        runs=every,
        summaries={run.cell.name: summary for run in every if run.figures},
        utility=bills,
        rate=None if rate is None else parse_rate(rate),
    )


def bill(row: str, l1: float) -> Bill:
    held_out = StreamBill(answered=359, l1_mean=l1, accuracy_drop=0.0)
    return Bill(row, row, {}, held_out, held_out, StreamBill(answered=0), {}, 0.0)


def alarm(
    detector: str,
    first: int | None,
    share: float | None,
    mode: str = "probabilities",
    defence: str = "none",
) -> WatchedAttack:
    return WatchedAttack(
        cell="a",
        row="frugal",
        mode=mode,
        defence=defence,
        seed=0,
        detector=detector,
        images=3000,
        first_alarm=first,
        largest=None,
        largest_600=None,
        agreement_at_alarm=share,
    )


def stream(detector: str, name: str, alarms: int) -> HonestStream:
    return HonestStream(
        stream=name,
        detector=detector,
        sessions=20,
        units=180,
        sessions_with_alarm=alarms,
        queries=12_000,
        alarms=alarms,
        per_10000=0.0,
        per_10000_upper=168.0 + alarms,
    )


def watched(
    benign: Sequence[HonestStream] = (),
    attacks: Sequence[WatchedAttack] = (),
    largest: dict[str, Any] | None = None,
) -> WatchedAttacks:
    return WatchedAttacks(
        detectors=[],
        session=600,
        calibration_images=180,
        measuring_images=180,
        benign=benign,
        benign_largest=largest or {},
        left_out={},
        attacks=attacks,
    )
