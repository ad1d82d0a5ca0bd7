"""From a job to a run: the one module that knows every role and puts them together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dfme.compute import DeferredChecks, choose_device, held_to, within_memory
from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.data import LabelledImages
from dfme.errors import TeacherError, UserError
from dfme.estimators.approximate import CHUNK
from dfme.estimators.build import make_estimator
from dfme.estimators.preflight import default_settings, needs_preflight, preflight_images, require_budget
from dfme.methods import METHODS
from dfme.oracle.journal import Journal, RecordPosition
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.randomness import Streams
from dfme.report.console import Console
from dfme.report.recorder import Recorder
from dfme.report.summary_file import read_summary
from dfme.run.checkpoint import fitting, load_checkpoint
from dfme.run.components import build_components, build_method, build_nets, needed_space, open_pool
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import EvaluationSet, HoldOut, evaluation_images, examination_of
from dfme.run.interrupt import Interrupt
from dfme.run.job import differing_keys, document, resume_command
from dfme.run.loop import Progress
from dfme.run.run import Result, Run
from dfme.run.student_file import load_student
from dfme.spec import ImageSpec, Teacher
from dfme.students.losses import make_distance
from dfme.teachers import KINDS
from dfme.teachers.build import make_teacher, wrap_callable
from dfme.teachers.facts import teacher_facts

PLANNED = (
    "since --student.steps are planned over the run's own budget, start a new run, or train again on what is paid for: "
    "run.py retrain"
)
"""What to do in place of giving such a run a larger budget."""


def run_job(
    job: Job,
    *,
    teacher: Teacher | Callable[..., Any] | None = None,
    resume: bool = False,
    console: bool = True,
) -> Result:
    """Run a job to the end of its budget, or to the first interruption, and deliver its student.

    ``teacher`` takes the place of the one the job describes: any callable from images to answers. Whatever is
    wrong with the job raises UserError before the first query. A finished run that is resumed without a larger
    budget gives its result again. Global random state is as it was afterwards.
    """
    if resume and (result := finished_result(job)) is not None:
        shown, budget = Console(result.summary["budget"], quiet=not console), result.summary["budget"]
        shown.note(
            f"{result.run_dir}: finished before with all of its {budget:,} queries, nothing was asked now; to go on, "
            + (PLANNED if job.config.student.steps else "give a larger --budget")
        )
        shown.table(result.summary, result.run_dir)
        return result
    device = choose_device(job.config.device)
    gpus = [device] if device.type == "cuda" else []
    with within_memory(device), torch.random.fork_rng(gpus), Interrupt(console) as interrupt, ExitStack() as held:
        made = build_teacher(job, teacher, device)
        if teacher is None:
            held.callback(getattr(made, "close", lambda: None))
        run = open_run(job, made, device, held, resume, console)
        path = run.directory.path
        # How to go on: no command line knows a teacher that was handed over.
        in_python = f"call extract again with out={str(path)!r}, resume=True"
        again = resume_command(path, job) if teacher is None else in_python
        try:
            return run.go(interrupt)
        except TeacherError as error:
            raise TeacherError(f"{error}; all that was paid is kept: {again}") from error
        except KeyboardInterrupt:
            run.recorder.note(f"stopped at once, all that was paid is kept; go on with:\n  {again}")
            raise


def finished_result(job: Job) -> Result | None:
    """The result of a run that came to the end of the job's budget before; none if there is something to do.

    Where summary or student cannot be read there is: to write them again, from the checkpoint.
    """
    path = Path(job.config.out or "")
    try:
        summary = read_summary(path / "summary.json")
        if summary is None or int(job.config.budget) > summary["budget"]:
            return None
        student = load_student(path)
    except UserError:
        return None
    require_same_run(job, path / "config.yaml")
    return Result(student, summary, path)


def build_teacher(job: Job, teacher: Teacher | Callable[..., Any] | None, device: torch.device) -> Teacher:
    """The job's teacher, or the one given, wrapped as the job's common keys say."""
    if teacher is None:
        return make_teacher(job.teacher, job.teacher_options, device)
    names = ("shape", "num_classes", "label_mode", "bounds", "levels", "max_batch")
    return wrap_callable(teacher, **{name: getattr(job.teacher, name) for name in names})


def open_run(job: Job, teacher: Teacher, device: torch.device, held: ExitStack, resume: bool, console: bool) -> Run:
    """Put the parts together; all that can be wrong is found before the run directory is made or touched.

    ``held`` closes what is opened: the run directory with its lock, ledger and journal, the recorder.
    """
    config, spec = job.config, teacher.spec
    deferred, streams = DeferredChecks(), Streams(config.seed, device)
    facts = teacher_facts(teacher, job.teacher.kind, job.teacher_options)

    def open_record(space: int = 0) -> tuple[RunDirectory, dict[str, Any], Oracle]:
        directory, state = open_directory(job, resume, space)
        held.enter_context(directory)
        with fitting(directory.checkpoint) if state else nullcontext():
            oracle = build_oracle(job, teacher, directory, state["oracle"] if state else {}, deferred, facts)
        held.callback(oracle.close)
        return directory, state, oracle

    # Another teacher than the record's is refused as such, before anything else is judged by it.
    record = open_record() if resume else None
    _require_answers_fit(job.method, teacher)
    _require_estimator(job, spec)
    make_distance(config.student.loss, teacher.label_mode)
    data = evaluation_images(config.evaluation, spec, teacher.num_classes)
    pool = open_pool(job, spec)
    nets = build_nets(job, spec, teacher.num_classes, device)
    directory, state, oracle = record or open_record(needed_space(job, nets, teacher, Path(config.out or "runs")))

    examination = build_examination(data, oracle, device)
    hold_out = examination.hold_out if isinstance(examination, HoldOut) else None
    path = directory.path
    components = build_components(job, nets, oracle, streams, deferred, pool=pool, directory=path, hold_out=hold_out)
    method = build_method(job, components)
    if method.students.replay is not None:
        held.callback(method.students.replay.close)
    budget, at = int(config.budget), oracle.ledger.spent
    recorder = Recorder.open(
        path, budget, document(job), config.wandb, bounds=spec.bounds, resume_at=at, quiet=not console
    )
    held.enter_context(recorder)
    oracle.report_to(recorder.note)
    run = Run(
        job, facts, directory, oracle, method, examination, recorder, streams, deferred, Progress(), device, nets.arch
    )
    if state:
        with fitting(directory.checkpoint):
            run.load_state_dict(state)
    if resume:
        directory.withdraw_summary()
        directory.write_config(recipe(job))
    return run


def _require_answers_fit(name: str, teacher: Teacher) -> None:
    """UserError if the method cannot learn from what the teacher answers, with those that can."""
    label_modes, kind = METHODS[name].load().label_modes, teacher.label_mode.kind
    if kind not in label_modes:
        able = [other for other, entry in METHODS.items() if kind in entry.load().label_modes]
        raise UserError(
            f"--method.name {name} needs a teacher that answers {' or '.join(label_modes)}, this one "
            f"answers {teacher.label_mode}; methods that can use it: {', '.join(able)}"
        )


def _require_estimator(job: Job, spec: ImageSpec) -> None:
    """UserError if the estimator does not fit the teacher's images, or the budget the check that it is left to."""
    if "estimator" not in METHODS[job.method].sections:
        return
    drafted, left_open = default_settings(job.estimator, spec), needs_preflight(job.estimator)
    if left_open:
        drafted = replace(drafted, step=1.0 if drafted.space == "lattice" else 1e-3)
    make_estimator(drafted, spec, lambda u_BCHW: u_BCHW, CHUNK, seed=0)
    if left_open:
        require_budget(int(job.config.budget), preflight_images(job.estimator, spec))


def build_examination(data: LabelledImages | None, oracle: Oracle, device: torch.device) -> EvaluationSet | HoldOut:
    """What the student is scored on: labelled images, or generated ones that are held back."""
    return examination_of(data, oracle.label_mode, device, partial(oracle, purpose="evaluation"))


def build_oracle(
    job: Job,
    teacher: Teacher,
    directory: RunDirectory,
    state: dict[str, Any],
    deferred: DeferredChecks,
    facts: dict[str, Any] | None = None,
) -> Oracle:
    """The oracle with its ledger and journal, as a checkpoint left them or new; ``facts``: the teacher's, to be kept.

    A network of ours on a GPU needs no journal: it gives its answers again for nothing, while writing each
    one down would make the GPU wait for the host at every step. A resumed run then asks again what it asked
    since the checkpoint, and the ledger says so (``lost``). A teacher of one's own may cost money on any device.
    """
    counted = place = None
    if state:
        counted = held_to(Ledger(1).state_dict(), state["ledger"], "ledger")
        place = state["journal"] and held_to(RecordPosition(0, 0)._asdict(), state["journal"], "journal")
    ledger = Ledger(int(job.config.budget), directory.ledger, counted, facts)
    on_gpu = torch.device(getattr(teacher, "device", None) or "cpu").type == "cuda"
    journal = None if on_gpu and job.teacher.kind in KINDS else Journal(directory.journal, place)
    return Oracle(teacher, ledger, journal, deferred)


def open_directory(job: Job, resume: bool, space: int) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory, locked, and the state of its checkpoint; empty without one.

    UserError where a new run would find fewer than ``space`` bytes of free disk.
    """
    out = Path(job.config.out) if job.config.out else free_name(job, job.method)
    directory = RunDirectory.open_for_resume(out) if resume else RunDirectory.create(out)
    try:
        if resume:
            require_same_run(job, directory.config)
            return directory, load_checkpoint(directory.checkpoint) if directory.has_checkpoint else {}
        directory.require_space(space)
        directory.write_config(recipe(job))
    except BaseException:
        directory.close()
        raise
    return directory, {}


def free_name(job: Job, what: str) -> Path:
    """A directory under runs/ that does not exist yet, named after the data, what is done with it, and the seed."""
    dataset = job.config.evaluation.dataset
    subject = "run" if dataset == "none" else Path(dataset).name
    return RunDirectory.free_name(Path("runs") / f"{subject}-{what}-seed{job.config.seed}")


def recipe(job: Job) -> str:
    """config.yaml: the job with every default, fit for --config; resuming is no part of a recipe."""
    return dump_yaml(document(replace(job, config=replace(job.config, resume=False))))


def require_same_run(job: Job, config: Path) -> None:
    """UserError, with the keys, where the run on record was started with values that decide another result."""
    keys = differing_keys(load_yaml(config, own=True), job)
    if keys:
        planned = f"; {PLANNED}" if "budget" in keys and job.config.student.steps else ""
        raise UserError(
            f"--resume: this run was started with other values of {', '.join(keys)} (see {config}); "
            f"leave those flags out, or start a new run in another --out{planned}"
        )
