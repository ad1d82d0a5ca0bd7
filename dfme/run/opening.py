"""Opening the directory of a run: a new one, a finished one, or one to resume, and the checks of
that one. Images that it takes from files may move until then, not change: digests are on record.
"""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.data import ImageSet
from dfme.errors import (
    Misfit,
    Misread,
    OptionError,
    Ref,
    RunError,
    TeacherError,
    Text,
    Unserved,
    UserError,
    flag,
    say,
)
from dfme.files import remove, write_text
from dfme.nets import find_net
from dfme.oracle.ledger import Ledger
from dfme.oracle.ledger_log import read_history, require_same_teacher
from dfme.oracle.oracle import Oracle
from dfme.queries.programs import PROCEDURAL
from dfme.report.console import Console
from dfme.report.run_files import read_object, read_summary
from dfme.run.checkpoint import load_checkpoint
from dfme.run.components import open_pool
from dfme.run.directory import CHECKPOINTS, QUERIES, RunDirectory
from dfme.run.job import POOLS, differing_keys, document, resume_command
from dfme.run.run import Result, Run
from dfme.run.scores import chosen_images
from dfme.run.student_file import load_student
from dfme.spec import ImageSpec, Teacher

DIGESTS = "data.json"

KINDS = {"student.weights": "weights"}
"""Keys that name files of another kind than images."""

ROOTS: dict[str, tuple[str, ...]] = {"evaluation.dataset": ("evaluation.root",)}
ROOTS |= {f"method.{pool}": ("method.root",) for pool in POOLS}
ROOTS |= dict.fromkeys(KINDS, ())
"""Keys that name files held to their digests, with the keys that say where those of torchvision
lie.
"""


def digests_of(job: Job, data: ImageSet | None, pool: object) -> dict[str, str]:
    """SHA-256 of the images on which students are scored, of the pool, and of the weights that
    students start from, by the keys that name them.
    """
    digests = {} if data is None else {"evaluation.dataset": data.digest}
    student = job.config.student
    if student.weights is not None:
        from dfme.nets.sources import digest_of, find_source

        digests["student.weights"] = digest_of(find_source(student.weights, student.arch))
    for name in POOLS:
        named = getattr(job.method_config, name, None)
        digest = getattr(pool, "digest", "")
        if named not in (None, PROCEDURAL) and digest:
            digests[f"method.{name}"] = digest
    return digests


def digests_on_record(run_dir: Path) -> dict[str, str]:
    """The digests that a run wrote down when it began; none of a run from before they were."""
    held = read_object(run_dir / DIGESTS)
    return {key: text for key, text in held.items() if key in ROOTS and isinstance(text, str)}


def may_have_moved(run_dir: Path) -> set[str]:
    """Keys whose values may differ, since what they name is held to its digest."""
    recorded = digests_on_record(run_dir)
    return {name for key in recorded for name in (key, *ROOTS[key])}


def require_recorded(run_dir: Path, now: Mapping[str, str], option: str = "resume") -> None:
    """UserError about this option where images, or weights, are not those on record; none on
    record may be any.
    """
    differing = [
        f"{key}: {KINDS.get(key, 'images')} of sha256 {digest[:12]} "
        f"(now {now[key][:12] if key in now else 'none'})"
        for key, digest in digests_on_record(run_dir).items()
        if now.get(key) != digest
    ]
    if differing:
        raise UserError(
            say(
                "this run was started with other values of {}; name the files of then, wherever "
                "they lie now, or start a new run in another {out}",
                ", ".join(differing),
            ),
            about=Ref(option),
        )


def settle_images(run_dir: Path, now: Mapping[str, str]) -> None:
    """Hold the images to those on record, and put on record what is not. UserError where they are
    others.
    """
    require_recorded(run_dir, now)
    if digests_on_record(run_dir) != dict(now):
        write_text(run_dir / DIGESTS, json.dumps(dict(now), indent=2) + "\n")


@dataclass(frozen=True)
class OpenRecord:
    """A run's open directory, the state in its checkpoint (empty without one), and its oracle."""

    directory: RunDirectory
    state: dict[str, Any]
    oracle: Oracle


def open_directory(job: Job, resume: bool, held: ExitStack) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory, locked until ``held`` closes, and its checkpoint's state; empty without
    one.
    """
    out = Path(job.config.out) if job.config.out else free_name(job, job.method)
    directory = held.enter_context(
        RunDirectory.open_for_resume(out) if resume else RunDirectory.create(out)
    )
    directory.is_new_run = not resume
    if not resume:
        directory.write_config(recipe(job))
    return directory, load_checkpoint(directory.checkpoint) if directory.has_checkpoint else {}


def free_name(job: Job, what: str) -> Path:
    """A new directory under runs/, named after the data, the command and the seed."""
    dataset = job.config.evaluation.dataset
    subject = "run" if dataset == "none" else Path(dataset).name
    return RunDirectory.free_name(Path("runs") / f"{subject}-{what}-seed{job.config.seed}")


def as_begun(job: Job, run_dir: Path) -> Job:
    """The job of a resumed run: its steps are chosen already, and its queries are recorded if they
    were so from the first on. RunError where these are gone.
    """
    begun = any(os.path.lexists(run_dir / name) for name in CHECKPOINTS)
    recorded = (run_dir / QUERIES).is_dir() if begun else job.config.record_queries
    if begun and not recorded and load_yaml(run_dir / "config.yaml").get("record_queries") is True:
        raise RunError(
            f"{run_dir / QUERIES}: expected the queries that this run recorded, got no folder; "
            "restore it, or start a new run in another directory"
        )
    config = replace(job.config, minutes=None, record_queries=recorded)
    return replace(job, config=config)


def recipe(job: Job) -> str:
    """config.yaml: the job with every default, fit for --config; resuming is no part of a
    recipe.
    """
    return dump_yaml(document(replace(job, config=replace(job.config, resume=False))))


def in_time(job: Job, teacher: Teacher, evaluation: ImageSet | None, local: bool) -> Job:
    """The job with the student's steps that fit its ``minutes``, if any. ``local``: the teacher is
    one of ours in this process.
    """
    if job.config.minutes is None:
        return job
    from dfme.run.minutes import within_minutes

    return within_minutes(job, teacher, local, evaluation)


def write_recipe(job: Job, directory: RunDirectory, resume: bool, adapter: str) -> None:
    """Write the adapter as resolved, and the recipe of a resumed run, which has no summary any
    more.
    """
    if adapter:
        write_text(directory.adapter, adapter)
    if resume:
        remove(directory.summary)
        directory.write_config(recipe(job))


def finished_result(job: Job) -> Result | None:
    """The result of a run that came to the end of the job's budget before; none if there is
    something to do.

    Where summary or student cannot be read there is: to write them again, from the checkpoint.
    """
    path = Path(job.config.out or "")
    try:
        summary = read_summary(path / "summary.json")
        if summary is None:
            return None
        if summary.get("ended_by") == "until_agreement":
            goes_on = (job.config.until_agreement or 0.0) > (summary.get("held_back") or {}).get(
                "goal", 1
            )
        else:
            goes_on = int(job.config.budget) > summary["budget"]
        if goes_on:
            return None
        student = load_student(
            path, job.objects.get("student.arch") or find_net(job.config.student.arch)
        )
    except UserError:
        return None
    return Result(student, summary, path)


def tell_finished(job: Job, result: Result, shown: Console) -> None:
    """Say of a run that came to its end before how to go on, and show its table again."""
    spent = result.summary["spent"]
    reached = result.summary.get("ended_by") == "until_agreement"
    how = "at its goal, after" if reached else "with all of its"
    larger = flag("until_agreement" if reached else "budget")
    advice: Text = f"give a larger {larger}"
    if job.config.student.is_planned and not reached:
        advice = PLANNED
    shown.note(
        f"{result.run_dir}: finished before {how} {spent:,} queries, nothing was asked now; to go "
        f"on, {advice}"
    )
    shown.table(result.summary, result.run_dir)


PLANNED = say(  # in place of a larger budget
    "since {student.steps} are planned over the run's own budget, without {student.rounds}, start "
    "a new run, or train again on what is paid for: run.py retrain"
)


def how_to_resume(job: Job, path: Path, command: str, in_python: bool) -> str:
    """How to go on with a run: by the ``command`` that began it, or, where no command line knows
    its teacher, in Python.
    """
    if in_python:
        return f"call extract again with out={str(path)!r}, resume=True"
    return resume_command(path, job, command)


def with_advice(error: TeacherError, run: Run, again: str) -> TeacherError:
    """The error with how to go on, where one can."""
    if isinstance(error, Unserved) or isinstance(error.__cause__, Misread):
        return error
    answered = run.oracle.ledger.useful or run.examination.answers is not None
    # a resume is held to the teacher as it was
    if isinstance(error.__cause__, Misfit) and not answered:
        return TeacherError(error.message + "; no answer came yet: mend that, and start a new run")
    return TeacherError(error.message + f"; all that was paid is kept: {again}")


def require_same_run(job: Job, run_dir: Path, files: Mapping[str, str], option: str) -> None:
    """UserError, with the keys, where the run on record was started with values that decide another
    result.

    ``files``: digests of the teacher's files, which ``option`` names. They may lie elsewhere now;
    what is in them may not differ. So may images whose digest is on record, which are held to it
    once they are read.
    """
    config = run_dir / "config.yaml"
    keys = differing_keys(load_yaml(config, own=True), job)
    ledger = run_dir / "ledger.jsonl"
    recorded = (read_history(ledger).teacher or {}).get("files") if ledger.exists() else None
    if recorded:
        require_same_teacher({"files": recorded}, {"files": files})
        keys = [key for key in keys if key.removeprefix("teacher.") not in (*files, option)]
    moved = may_have_moved(run_dir)
    keys = [key for key in keys if key not in moved]
    if keys:
        planned = "; " + PLANNED if "budget" in keys and job.config.student.is_planned else ""
        raise OptionError(
            "resume",
            say(
                "this run was started with other values of {} (see {}); leave those out, or start "
                "a new run in another {out}{}",
                ", ".join(keys),
                config,
                planned,
            ),
        )


def require_same_images(
    job: Job, run_dir: Path, handed_over: ImageSet | None = None, unmoved: bool = False
) -> None:
    """UserError where images are not those of the run on record, which is neither opened nor
    changed.

    They are read as the run's teacher took them. ``unmoved``: also where they are named as they
    were.
    """
    moved = may_have_moved(run_dir)
    differing = differing_keys(load_yaml(run_dir / "config.yaml", own=True), job)
    if not (moved if unmoved else moved & {*differing}):
        return
    ledger = run_dir / "ledger.jsonl"
    facts = (read_history(ledger).teacher if ledger.is_file() else None) or {}
    try:
        spec = ImageSpec(tuple(facts["shape"]), tuple(facts["bounds"]), facts["levels"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{ledger}: expected the shape and bounds of the run's teacher") from error
    data = chosen_images(job.config.evaluation, spec, handed_over)
    data = None if data is None else data.digested()
    require_recorded(run_dir, digests_of(job, data, open_pool(job, spec)))


def take_up_threads(ledger: Ledger, device: torch.device) -> list[str]:
    """Use the first stretch's number of CPU threads, which decides last bits. A line if changed."""
    now = torch.get_num_threads()
    recorded = ledger.stretches[0]["threads"] if ledger.stretches and device.type == "cpu" else now
    ledger.begin(recorded)
    if recorded == now:
        return []
    torch.set_num_threads(recorded)
    line = f"the run was begun with {recorded} threads of torch, this process had {now}"
    return [f"threads: {line}; this stretch takes {recorded}, too"]


def changed_source(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """A line for each module of the user's own that is not the one that the run began with."""
    had, has = (
        {"teacher": facts.get("source"), **facts.get("sources", {})}
        for facts in (before or {}, now or {})
    )
    lines = []
    for name in (name for name in has if has[name] and had.get(name) not in (None, has[name])):
        old, new = (
            f"{facts[name]['file']!r} (sha256 {facts[name]['sha256'][:12]!r})"
            for facts in (had, has)
        )
        lines.append(f"{name}: {old} is now {new}; if its answers are others, start a new run")
    return lines
