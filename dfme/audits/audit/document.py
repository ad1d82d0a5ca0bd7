"""audit.json from what an audit measured, and what its phases leave on file."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from dfme.audits.audit import headline
from dfme.audits.audit.accounts import agreement_by, many_accounts
from dfme.audits.audit.advice import advice
from dfme.audits.audit.aitg import REPRESENTATIVE
from dfme.audits.audit.backbone import public_backbone
from dfme.audits.audit.controls import controls
from dfme.audits.audit.findings import Findings, not_run
from dfme.audits.audit.history import history
from dfme.audits.audit.options import OPTIONS, SHARED, limits
from dfme.audits.audit.owasp import fidelity_test
from dfme.audits.audit.parts import (
    CellResult,
    CopyExamination,
    Interval,
    MarkRecognition,
    NotRun,
    Recognition,
    Separation,
    WatchedAttack,
    WatchedAttacks,
)
from dfme.audits.audit.plan import AuditPlan
from dfme.audits.audit.result import (
    AITG,
    AuditResult,
    EvaluatedOn,
    Made,
    Options,
    PartType,
    Target,
    Tool,
    document,
    parse,
)
from dfme.audits.audit.rows import QUICK
from dfme.audits.audit.sheets import sheet
from dfme.errors import UserError
from dfme.files import write_text
from dfme.measured import Bill, SplitAttack
from dfme.oracle.ledger_log import Totals
from dfme.report.console import teacher_name
from dfme.report.page import embedded
from dfme.report.run_files import read_object
from dfme.run.build import spared_images
from dfme.run.job import PROJECT
from dfme.run.job import document as job_document
from dfme.run.opening import digests_on_record
from dfme.statistics import auroc
from dfme.students.heads import FROZEN
from dfme.version import __version__

ResultType = TypeVar("ResultType")


@dataclass
class Measured:
    """Results of an audit's phases so far, beside those of its cells.

    ``detection``: what the owner's side measured of detectors, ``split``: of attacks from many
    accounts. ``under_quota``: the cell that was attacked under the quota.
    """

    not_run: list[NotRun]
    utility: Sequence[Bill] = ()
    detection: WatchedAttacks | None = None
    split: Sequence[SplitAttack] = ()
    examination: CopyExamination = field(default_factory=CopyExamination)
    recognition: Recognition | None = None
    marks: MarkRecognition | None = None
    under_quota: str | None = None

    def tried(self, what: str, make: Callable[[], ResultType]) -> ResultType | None:
        """Result of ``make``, or None if the data do not allow it, which is noted."""
        try:
            return make()
        except UserError as error:
            self.not_run.append(NotRun(what, str(error)))
            return None


def audit_of(
    plan: AuditPlan, findings: Findings, measured: Measured, ledgers: Sequence[Totals], made: Made
) -> AuditResult:
    """All of audit.json; ``ledgers``: of what was asked outside the cells."""
    examination = measured.examination
    seeds = plan.config.seeds
    acceptable = limits(plan.config.acceptable, plan.config.budget)
    cells = findings.cells()
    games = findings.games(examination.twin)
    detection = _detection(findings, measured, cells)
    first = headline.headline(findings, seeds)
    audit = AuditResult(
        schema="dfme.audit/2",
        tool=tool(),
        made=made,
        options=_options(plan, acceptable),
        target=target(plan, findings),
        halves=plan.halves,
        headline=first,
        advice=advice(findings, detection),
        verdicts=findings.verdicts(acceptable),
        fidelity_test=fidelity_test(findings, cells),
        public_backbone=public_backbone(findings, FROZEN),
        untried=findings.untried,
        price=findings.price,
        games=games,
        defences=findings.defences,
        utility=findings.utility,
        pareto=findings.pareto(),
        detection=detection,
        drill=plan.drill,
        cells=cells,
        fidelity=examination.fidelity,
        fidelity_seeds=examination.fidelity_seeds,
        differences=examination.differences,
        transfer=examination.transfer,
        recognition=measured.recognition,
        marks=measured.marks,
        ledger=findings.ledger(ledgers, spared_images(plan.out / SHARED)),
        taxonomy=headline.TAXONOMY,
        not_run=[*measured.not_run, *_unexamined(plan, examination), *not_run(findings.runs)],
        limits=[
            *headline.what_it_does_not_tell(findings, len(seeds), plan.local, bool(measured.split)),
            *([REPRESENTATIVE] if AITG in acceptable else []),
        ],
        pictures=pictures(plan, first.attacker),
        quota=None,
        controls=[],
    )
    before = plan.against
    audit = replace(
        audit,
        quota=sheet(audit, measured.under_quota),
        history=None if before is None else history(audit, before),
    )
    audit = replace(audit, accounts=many_accounts(audit, measured.split))
    return replace(audit, controls=controls(audit))


def _unexamined(plan: AuditPlan, examination: CopyExamination) -> list[NotRun]:
    """What was not examined of the copies, and why; of large images ``quick`` decides that."""
    if plan.options.get("transfer") != "auto" or plan.config.transfer != "false":
        return [*examination.not_run]
    why = f"{QUICK}; add --transfer true"
    return [replace(part, why=why) for part in examination.not_run]


def _options(plan: AuditPlan, acceptable: Mapping[str, float]) -> Options:
    config = plan.config
    return Options(
        profile=config.profile,
        budget=config.budget,
        seeds=config.seeds,
        attackers=config.attackers,
        label_modes=config.label_modes,
        defences=config.defences,
        total=config.total,
        transfer=config.transfer,
        keep_below=config.keep_below,
        per=config.per,
        price_per_1000=plan.job.teacher.price_per_1000,
        rate=config.rate,
        weights=plan.weights,
        public_pool=config.public_pool,
        acceptable=acceptable,
    )


def _detection(
    findings: Findings, measured: Measured, cells: Sequence[CellResult]
) -> WatchedAttacks | None:
    """What was measured of detectors, with their alarms at the attacks, but that on the quota."""
    if measured.detection is None:
        return None
    watches = {
        name: summary["watch"]
        for name, summary in findings.summaries.items()
        if summary.get("watch") and name != measured.under_quota
    }
    return joined(measured.detection, cells, watches, findings.constant)


def target(plan: AuditPlan, findings: Findings) -> Target:
    """The audited teacher, as a finished run of its own answers describes it, if there is one."""
    example = findings.example
    teacher = example.get("teacher") or {}
    evaluation = example.get("evaluation") or {}
    accuracy = example.get("teacher_accuracy")
    files = (plan.job.teacher_options.get(option) for option in teacher.get("files") or ())
    places = [os.path.relpath(str(file)) for file in (*files, plan.out / OPTIONS) if file]
    place = next((place for place in places if not place.startswith("..")), OPTIONS)
    return Target(
        kind=plan.job.teacher.kind,
        name=teacher_name(job_document(plan.job)["teacher"]),
        local=plan.local,
        label_mode=plan.label_mode,
        shape=teacher.get("shape"),
        num_classes=teacher.get("num_classes"),
        levels=teacher.get("levels"),
        defences=[*plan.job.teacher.defences],
        authorised_by=example.get("authorised_by"),
        accuracy=accuracy,
        evaluation=EvaluatedOn(
            evaluation.get("name"),
            evaluation.get("images"),
            labelled=accuracy is not None,
            sha256=_scored_on(plan, findings),
        ),
        place=Path(place).as_posix(),
        files=teacher.get("files"),
    )


def _scored_on(plan: AuditPlan, findings: Findings) -> str | None:
    """Digest of the evaluation images, by a finished run's own record."""
    for outcome in findings.first.outcomes:
        if outcome.state == "finished":
            digests = digests_on_record(plan.first.directory(outcome.cell))
            return digests.get("evaluation.dataset")
    return None


def tool() -> Tool:
    """Versions, and the commit of a checkout with a mark of changed files."""
    commit = None
    if (PROJECT / ".git").exists():
        words = ["git", "describe", "--always", "--dirty"]
        with suppress(OSError, subprocess.SubprocessError):
            git = subprocess.run(  # noqa: S603
                words,
                cwd=PROJECT,
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            )
            commit = git.stdout.strip() or None
    return Tool(__version__, torch.__version__, platform.python_version(), commit)


def pictures(plan: AuditPlan, attacker: str | None) -> dict[str, str]:
    """The sheet of the strongest attacker's queries, if it is not too large for the page."""
    for cell in plan.first.cells:
        if (cell.row, cell.mode) == (attacker, plan.label_mode):
            sheet = plan.first.directory(cell) / "samples.png"
            if sheet.is_file() and sheet.stat().st_size <= 400_000:
                return {"samples": embedded(sheet.read_bytes())}
    return {}


def joined(
    measured: WatchedAttacks,
    cells: Sequence[CellResult],
    watches: Mapping[str, Mapping[str, Any]],
    constant: float | None,
) -> WatchedAttacks:
    """Return ``measured`` with ``attacks`` and ``auroc`` of the cells that were watched.

    ``watches``: by a cell's name, ``watch`` of its summary. At its alarm a copy is worth what its
    last evaluation so far says, and before the first ``constant``, what one answer to everything
    is.
    """
    attacks = list[WatchedAttack]()
    for cell in cells:
        watch = watches.get(cell.name, {"detectors": {}})
        for detector, statistics in watch["detectors"].items():
            attacks.append(_attack(cell, watch["images"], detector, statistics, constant))
    return replace(measured, attacks=attacks, auroc=_separations(measured, attacks))


def _separations(measured: WatchedAttacks, attacks: Sequence[WatchedAttack]) -> list[Separation]:
    sessions = dict[tuple[str, str], dict[int, list[float]]]()
    for attack in attacks:
        if attack.largest_600 is not None:
            seeds = sessions.setdefault((attack.row, attack.detector), {})
            seeds.setdefault(attack.seed, []).append(attack.largest_600)
    separations = list[Separation]()
    for (row, detector), seeds in sessions.items():
        for stream, benign in measured.benign_largest.get(detector, {}).items():
            value, interval = auroc(seeds, benign)
            separations.append(
                Separation(
                    row=row,
                    detector=detector,
                    stream=stream,
                    auroc=value,
                    interval=Interval(*interval),
                    attack_sessions=sum(map(len, seeds.values())),
                    benign_sessions=len(benign),
                )
            )
    return separations


def _attack(
    cell: CellResult,
    images: int,
    detector: str,
    statistics: Mapping[str, Any],
    constant: float | None,
) -> WatchedAttack:
    first = statistics["first_alarm"]
    return WatchedAttack(
        cell=cell.name,
        row=cell.row,
        mode=cell.mode,
        defence=cell.defence,
        seed=cell.seed,
        detector=detector,
        images=images,
        first_alarm=first,
        largest=statistics["largest"],
        largest_600=statistics["largest_600"],
        agreement_at_alarm=agreement_by(cell, first, constant),
    )


PHASES = "phases.json"


def record_seconds(out: Path, phase: str, seconds: float) -> None:
    """Add a phase's seconds to those of the sessions before."""
    phases = read_object(out / PHASES)
    before = phases.get(phase)
    phases[phase] = round(seconds + (before if isinstance(before, float) else 0.0), 1)
    write_text(out / PHASES, json.dumps(phases, indent=1) + "\n")


def cached(
    path: Path,
    form: type[PartType],
    key: Sequence[str],
    make: Callable[[], Any],
    anew: bool = False,
) -> PartType:
    """Return the result on file for a key; make and store it where there is none, or ``anew``.
    RunError, in one line, for a file that does not fit the form.
    """
    record = read_object(path)
    if anew or record.get("of") != [*key] or "found" not in record:
        record = {"of": [*key], "found": json.loads(json.dumps(document(make()), allow_nan=False))}
        write_text(path, json.dumps(record, indent=1) + "\n")
    return parse(form, record["found"], path.name)
