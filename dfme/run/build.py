"""From a job to a run: the one module that knows every role and puts them together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dfme.answers.asking import Reader
from dfme.compute import DeferredChecks, choose_device, deterministic, device_name, held_to, within_memory
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import Misfit, ShapeUnknown, TeacherError, UserError
from dfme.files import write_text
from dfme.graphs import GraphedForward, release
from dfme.oracle.defended import take_up_state
from dfme.oracle.journal import Journal, RecordPosition
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.randomness import Streams
from dfme.report.console import Console, header
from dfme.report.recorder import Recorder
from dfme.run.checkpoint import fitting
from dfme.run.components import build_components, build_method, needed_space
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import examination_of, shape_of
from dfme.run.goal import goal_of
from dfme.run.interrupt import Interrupt
from dfme.run.job import document, resume_command
from dfme.run.loop import Progress
from dfme.run.memory import mirrored, require_memory
from dfme.run.opening import finished_result, open_directory, recipe, tell_finished
from dfme.run.parts import build_parts, take_threads
from dfme.run.resuming import changed_source, require_same_adapter, require_same_run, take_up_threads
from dfme.run.run import Result, Run
from dfme.spec import Teacher
from dfme.teachers import KINDS
from dfme.teachers.build import make_teacher, wrap_callable
from dfme.teachers.facts import ADAPTER_FILE, resolved_adapter, teacher_facts, teacher_files
from dfme.teachers.local.white_box import TorchWhiteBox, open_white_box


def run_job(
    job: Job,
    *,
    teacher: Teacher | Callable[..., Any] | None = None,
    resume: bool = False,
    console: bool = True,
    callback: Callable[..., object] | None = None,
    evaluation: ImageSet | None = None,
    announced: bool = False,
    own_process: bool = False,
) -> Result:
    """Run a job to the end of its budget, or to the first interruption, and deliver its student.

    ``teacher`` takes the place of the one the job describes: any callable from images to answers; ``evaluation`` that
    of its evaluation set; ``announced``: the run's first line was said before torch was loaded; ``own_process``: this
    process is there for the run alone, so it chooses its threads. Whatever is wrong with the job raises
    UserError before the first query. A finished run that is resumed without a larger budget gives its result
    again. Global random state is as it was afterwards.
    """
    if resume and (result := finished_result(job)) is not None:
        _require_same_run(job, result.run_dir)
        tell_finished(job, result, Console(result.summary["budget"], quiet=not console))
        return result
    device = choose_device(job.config.device)
    gpus = [device] if device.type == "cuda" else []
    held = ExitStack()
    with within_memory(device), deterministic(job.config.deterministic, device), torch.random.fork_rng(gpus), held:
        interrupt = held.enter_context(Interrupt(console, True))
        held.callback(torch.set_num_threads, torch.get_num_threads())
        if resume:  # before another file than the run's is loaded, and found to be of another form
            _require_same_run(job, Path(job.config.out or ""))
        made = build_teacher(job, teacher, device)
        if teacher is None:
            held.callback(getattr(made, "close", lambda: None))
        ours = is_local(job) or job.teacher.kind not in KINDS
        free = own_process and device.type == "cpu" and ours
        run = open_run(job, made, device, held, resume, console, evaluation, free and not resume)
        path, run.recorder.callback = run.directory.path, callback and partial(run.heard, callback)
        first = [] if announced else [header(document(job))]
        for line in [*first, *run.notes, f"running on {device_name(device)}, recorded in {path}"]:
            run.recorder.note(line)
        # How to go on: no command line knows a teacher that was handed over.
        in_python = f"call extract again with out={str(path)!r}, resume=True"
        again = resume_command(path, job) if teacher is None else in_python
        try:
            return run.go(interrupt)
        except TeacherError as error:
            answered = run.oracle.ledger.useful or run.examination.answers is not None
            if isinstance(error.__cause__, Misfit) and not answered:  # a resume is held to the teacher as it was
                raise TeacherError(f"{error}; no answer came yet: mend that, and start a new run") from error
            raise TeacherError(f"{error}; all that was paid is kept: {again}") from error
        except KeyboardInterrupt:
            kept = f"stopped at once, all that was paid is kept; go on with:\n  {again}"
            began = resume or run.oracle.ledger.requests
            run.recorder.note(kept if began else "stopped before the first query: nothing is charged, nothing is kept")
            raise


def build_teacher(
    job: Job,
    teacher: Teacher | Callable[..., Any] | None,
    device: torch.device,
    meter: Callable[[Teacher], Teacher] | None = None,
) -> Teacher:
    """The job's teacher, or the one given, wrapped as the job's common keys say; ``meter`` as in ``make_teacher``.

    Of one whose file does not say which images it takes, they are those of the evaluation, where these have a shape.
    """
    if teacher is None:
        try:
            return make_teacher(job.teacher, job.teacher_options, device, meter=meter)
        except ShapeUnknown as unknown:
            if (shape := shape_of(job.config.evaluation)) is None:
                raise
            try:
                made = make_teacher(replace(job.teacher, shape=shape), job.teacher_options, device)
            except UserError:  # not these images, then
                raise unknown from None
        line = f"images {'x'.join(map(str, shape))}, as those of the evaluation (--teacher.shape)"
        setattr(made, "inferred", (line, *getattr(made, "inferred", ())))  # noqa: B010 (an attribute of local teachers)
        return made
    names = ("shape", "num_classes", "label_mode", "bounds", "levels", "max_batch")
    return wrap_callable(teacher, **{name: getattr(job.teacher, name) for name in names})


def facts_of(job: Job, teacher: Teacher) -> dict[str, Any]:
    """What the run's record says of its teacher."""
    return teacher_facts(teacher, job.teacher.kind, job.teacher_options)


def open_run(
    job: Job,
    teacher: Teacher,
    device: torch.device,
    held: ExitStack,
    resume: bool,
    console: bool,
    evaluation: ImageSet | None = None,
    choose_threads: bool = False,
) -> Run:
    """Put the parts together; all that can be wrong is found before the run directory is made or touched.

    ``held`` closes what is opened: directory, lock, ledger, journal, recorder. ``choose_threads``: by timing steps.
    """
    config, spec = job.config, teacher.spec
    deferred, streams, notes = DeferredChecks(), Streams(config.seed, device), list[str]()
    facts = facts_of(job, teacher)

    def begin(ledger: Ledger) -> None:
        notes.extend([*take_up_threads(ledger, device), *changed_source(ledger.teacher, facts)])

    def open_record(space: int = 0) -> tuple[RunDirectory, dict[str, Any], Oracle]:
        directory, state = open_directory(job, resume, space)
        held.enter_context(directory)
        notes.extend([directory.lock.note] if directory.lock.note else [])
        with fitting(directory.checkpoint) if state else nullcontext():
            oracle = build_oracle(job, teacher, directory, state, deferred, facts, begin)
        return directory, state, held.enter_context(closing(oracle))

    # Another teacher than the record's is refused as such, before anything else is judged by it.
    record = open_record() if resume else None
    data, pool, nets, needed = build_parts(job, teacher, device, evaluation, notes.append)
    require_memory(needed, device)
    notes += take_threads(job, nets, spec) if choose_threads else []
    directory, state, oracle = record or open_record(needed_space(job, nets, teacher, Path(config.out or "runs")))

    mode = oracle.label_mode if data is None else oracle.told
    examination = examination_of(data, spec, mode, device, partial(oracle, purpose="evaluation"))
    (goal, hold_out), path, at = goal_of(config, examination, oracle, device), directory.path, oracle.ledger.spent
    components = build_components(job, nets, oracle, streams, deferred, pool=pool, directory=path, hold_out=hold_out)
    method = build_method(job, components)
    if (replay := method.students.replay) is not None:
        held.callback(replay.close)
        notes += mirrored(replay, oracle.label_mode.answer_bytes(oracle.num_classes), needed, device)
    told = document(job) | {"resolved": {"teacher": facts, "student_arch": nets.arch, "device": device_name(device)}}
    budget = int(config.budget)
    log = Recorder.open(path, budget, told, config.wandb, bounds=spec.bounds, resume_at=at, quiet=not console)
    recorder = held.enter_context(log)
    oracle.report_to(recorder.note)
    if not resume and (inferred := getattr(teacher, "inferred", ())):
        notes.append(f"inferred, since nobody says: {'; '.join(inferred)}")
    parts = directory, oracle, method, examination, recorder, streams, deferred
    run = Run(job, facts, *parts, Progress(), device, nets.arch, goal, notes)
    if config.graphs:
        held.callback(release, [*nets.students, nets.generator, *_graphed(job, teacher)])
    if state:
        with fitting(directory.checkpoint):
            run.load_state_dict(state)
    if adapter := resolved_adapter(job.teacher.kind, job.teacher_options):
        write_text(directory.adapter, adapter)
    if resume:
        directory.withdraw_summary()
        directory.write_config(recipe(job))
    return run


def _graphed(job: Job, teacher: Teacher) -> list[torch.nn.Module]:
    """The network of a teacher of ours in this process, from now on replayed; empty for others."""
    network = getattr(teacher, "network", None) if job.teacher.kind in KINDS else None
    return [] if network is None else [GraphedForward(network, "the teacher").net]


def build_oracle(
    job: Job,
    teacher: Teacher,
    directory: RunDirectory,
    state: dict[str, Any],
    deferred: DeferredChecks,
    facts: dict[str, Any] | None = None,
    begin: Callable[[Ledger], None] = lambda ledger: None,
) -> Oracle:
    """The oracle with its ledger and journal, as a checkpoint left them or new; ``facts``: the teacher's, to be kept.

    ``begin`` is called with the ledger before it is settled.

    A network of ours on a GPU needs no journal: it gives its answers again for nothing, while writing each
    one down would make the GPU wait for the host at every step. A resumed run then asks again what it asked
    since the checkpoint, and the ledger says so (``lost``); the state of its defences is that of the checkpoint alone.
    A teacher of one's own may cost money on any device.
    """
    counted = place = None
    state = state["oracle"] if state else {}
    if state:
        counted = held_to(Ledger(1).state_dict(), state["ledger"], "ledger")
        place = state["journal"] and held_to(RecordPosition(0, 0)._asdict(), state["journal"], "journal")
    on_gpu = torch.device(getattr(teacher, "device", None) or "cpu").type == "cuda"
    ledger = Ledger(int(job.config.budget), directory.ledger, counted, facts, job.config.fsync)
    begin(ledger)
    free = on_gpu and job.teacher.kind in KINDS
    journal = None if free else Journal(directory.journal, place, job.config.fsync)
    reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes, job.config.seed)
    oracle = Oracle(teacher, ledger, journal, deferred, reader=reader)
    if uncharged := getattr(teacher, "uncharged", None):
        uncharged.report_to(ledger.record_beside)
    if state:
        oracle.take_up_answered(state.get("answered"))
        take_up_state(teacher, state)
    _ = reader.recovery  # which takes seconds, and is there before the first image is asked
    return oracle


def is_local(job: Job) -> bool:
    """Whether the teacher is one of the built-in kinds that answer in this process, where nobody is paid."""
    return job.teacher.kind in KINDS and KINDS[job.teacher.kind].is_local


def white_box(job: Job) -> TorchWhiteBox:
    """The job's teacher, of kind torch, with its gradients."""
    return open_white_box(job.teacher, job.teacher_options, choose_device(job.config.device))


def _require_same_run(job: Job, run_dir: Path) -> None:
    """UserError where settings, adapter or the teacher's files are not those of the run on record."""
    kind, options = job.teacher.kind, job.teacher_options
    if (adapter := resolved_adapter(kind, options)) and (run_dir / ADAPTER_FILE).is_file():
        require_same_adapter(run_dir / ADAPTER_FILE, adapter)
    source = KINDS[kind].file if kind in KINDS else None
    require_same_run(job, run_dir, teacher_files(kind, options), source.option if source else "")
