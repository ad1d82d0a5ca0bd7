"""A price line of audit.json from the runs of an attacker, one of each seed. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from dfme.audits.audit.ladder import pictures_of, possessed, weights_of
from dfme.audits.audit.price_parts import PriceLine
from dfme.audits.audit.prices import over_seeds
from dfme.audits.compare.figures import Outcome
from dfme.audits.compare.plan import Cell
from dfme.config.messages import printable
from dfme.config.settings import EvaluationConfig, Job, StudentConfig
from dfme.queries.programs import PROCEDURAL
from dfme.report.run_files import LEVELS


def price_line(
    outcomes: Sequence[Outcome], summaries: Mapping[str, Mapping[str, Any]]
) -> PriceLine:
    """What an attacker gets from a form of answers, without interval, money and delay.

    ``summaries``: of finished runs, by the name of their cells.
    """
    figures = [outcome.figures for outcome in outcomes]
    agreement = [run.agreement if run else None for run in figures]
    balanced = [run.agreement_balanced if run else None for run in figures]
    mean, sd = over_seeds(agreement)
    cell = outcomes[0].cell
    domain = cell.job.queries.domain
    knows = None if domain == "unknown" else domain
    pictures = pictures_of(cell.row, cell.job)
    ended = next((run for run in outcomes if run.state != "finished"), outcomes[0])
    queries_to = {
        f"{level:g}": [run.queries_to[level] if run else None for run in figures]
        for level in LEVELS
    }
    watches = [summaries.get(run.cell.name, {}).get("watch") or {} for run in outcomes]
    return PriceLine(
        row=cell.row,
        mode=cell.mode,
        agreement=agreement,
        mean=mean,
        sd=sd,
        agreement_balanced=balanced,
        balanced=over_seeds(balanced).mean,
        has_images=has_images(cell),
        has=possessed(cell.row, cell.job),
        weights=weights_of(cell.job),
        pictures=pictures,
        budget=cell.budget,
        knows=knows,
        interval=None,
        queries_to=queries_to,
        state=ended.state,
        reason=ended.reason,
        cells=[run.cell.name for run in outcomes if run.state != "not applicable"],
        cost_to_90=None,
        attack=attack_of(cell.job),
        alarms=[first_alarm(watch["detectors"]) for watch in watches if watch.get("detectors")],
    )


def first_alarm(detectors: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The queries until any detector raised an alarm; None if none did."""
    firsts = (statistics["first_alarm"] for statistics in detectors.values())
    return min((first for first in firsts if first is not None), default=None)


def has_images(cell: Cell) -> bool:
    """True if the cell's attacker asks a pool of somebody's images."""
    return pictures_of(cell.row, cell.job) is not None


def attack_of(job: Job) -> dict[str, str]:
    """Options of the attack that are not the defaults, by their keys, as text; files and folders by
    their names.
    """
    student = job.config.student
    options = {"method.name": job.method}
    pool = str(getattr(job.method_config, "pool", PROCEDURAL))
    if pool != PROCEDURAL:
        options["method.pool"] = PurePath(pool).name
    if job.queries.domain != "unknown":
        options["queries.domain"] = job.queries.domain
    for field in fields(StudentConfig):
        value = getattr(student, field.name)
        if value != field.default:
            options[f"student.{field.name}"] = str(value)
    if student.weights is not None:
        options["student.weights"] = PurePath(student.weights).name
    points = job.config.evaluation.points
    if points != EvaluationConfig.points:
        options["evaluation.points"] = str(points)
    return {key: printable(text) for key, text in options.items()}
