"""From a job to a run: the one module that knows every role and puts them together."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.compute.device import Streams, choose_device, deterministic, device_name, within_memory
from dfme.compute.modules import DeferredChecks, validate_like
from dfme.config.defences import parse_defences
from dfme.config.messages import printable
from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import ShapeUnknown, TeacherError, UserError, flag
from dfme.files import make_folder
from dfme.oracle.journal import Journal, RecordPosition
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.report.console import Console, header
from dfme.report.recorder import Recorder
from dfme.run.checkpoint import explain_load_errors, naming_the_rate
from dfme.run.components import build_components, build_method, with_recorded_net
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import OwnersRecord, examination_of
from dfme.run.job import document
from dfme.run.loop import Interrupt, Progress, goal_of
from dfme.run.opening import (
    OpenRecord,
    as_begun,
    changed_source,
    digests_of,
    finished_result,
    how_to_resume,
    in_time,
    open_directory,
    require_same_images,
    require_same_run,
    settle_images,
    take_up_threads,
    tell_finished,
    with_advice,
    write_recipe,
)
from dfme.run.parts import build_parts, require_room, sized
from dfme.run.run import Result, Run
from dfme.run.scores import shape_of
from dfme.run.timing import rehearse
from dfme.run.work import take_threads
from dfme.spec import LabelMode, Teacher
from dfme.teachers import KINDS
from dfme.teachers.build import Recorded, make_teacher
from dfme.teachers.facts import resolved_adapter, teacher_facts, teacher_files
from dfme.teachers.local.pytorch import TorchTeacher, load_torch
from dfme.teachers.options import TorchOptions


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
    opened: Callable[[Run], None] = lambda run: None,
    command: str = "",
) -> Result:
    """Run a job to the end of its budget, or to the first interruption, and deliver its student.

    ``teacher`` takes the place of the one the job describes: any callable from images to answers;
    ``evaluation`` that of its evaluation set; ``announced``: the run's first line was said before
    torch was loaded; ``own_process``: this process is there for the run alone, so it chooses its
    threads; ``opened`` is called with the run before its first query; ``command``: the one that
    goes on with it. Whatever is wrong with the job raises UserError before the first query. A
    finished run that is resumed without a larger budget gives its result again. Global random state
    is as it was afterwards.
    """
    if resume and (result := finished_result(job)) is not None:
        require_same_run(job, result.run_dir, *files_of(job))
        require_same_images(job, result.run_dir, evaluation)
        tell_finished(job, result, Console(result.summary["budget"], quiet=not console))
        return result
    device = choose_device(job.config.device)
    gpus = [device] if device.type == "cuda" else []
    with (
        within_memory(device),
        deterministic(job.config.deterministic, device),
        ExitStack() as held,
    ):
        held.enter_context(torch.random.fork_rng(gpus))
        interrupt = held.enter_context(Interrupt(console, True))
        held.callback(torch.set_num_threads, torch.get_num_threads())
        if resume:  # before another file than the run's is loaded, and found to be of another form
            require_same_run(job, Path(job.config.out or ""), *files_of(job))
            job = as_begun(job, Path(job.config.out or ""))
        built = build_teacher(job, teacher, device, _sharing(job))
        if teacher is None:
            held.callback(built.info.close)
        lines = list[str]()
        job = in_time(sized(job, built, lines.append), built, evaluation, is_local(job))
        ours = is_local(job) or job.teacher.kind not in KINDS
        free = own_process and device.type == "cpu" and ours
        run = open_run(job, built, device, held, resume, console, evaluation, free and not resume)
        path = run.directory.path
        run.recorder.callback = callback and partial(run.heard, callback)
        first = [] if announced else [header(document(job))]
        begins = f"running on {device_name(device)}, recorded in {printable(str(path))}"
        for line in [*first, *lines, *run.notes, begins]:
            run.recorder.note(line)
        again = how_to_resume(job, path, command, in_python=teacher is not None)
        opened(run)
        try:
            with naming_the_rate(job.config.student, run.trainer, run.method):
                return run.go(interrupt)
        except TeacherError as error:
            raise with_advice(error, run, again) from error
        except KeyboardInterrupt:
            kept = "stopped before the first query: nothing is charged, nothing is kept"
            if resume or run.oracle.ledger.requests:
                kept = f"stopped at once, all that was paid is kept; go on with:\n  {again}"
            run.recorder.note(kept)
            raise


def build_teacher(
    job: Job,
    teacher: Teacher | Callable[..., Any] | None,
    device: torch.device,
    meter: Callable[[Teacher], Teacher] | None = None,
) -> Teacher:
    """The job's teacher, or the given one, wrapped by the common keys; ``meter``: of a custom one.

    If its file does not say which images it takes, they are the evaluation's, where these have a
    shape.
    """
    recorded: Recorded | None = "queries" if job.config.record_queries else None
    if teacher is None:
        make = partial(make_teacher, device=device, recorded=recorded, meter=meter)
        try:
            return make(job.teacher, job.teacher_options)
        except ShapeUnknown as unknown:
            if (shape := shape_of(job.config.evaluation)) is None:
                raise
            try:
                built = make(replace(job.teacher, shape=shape), job.teacher_options)
            except UserError:  # not these images, then
                raise unknown from None
        sizes = "x".join(map(str, shape))
        line = f"images {sizes}, as those of the evaluation ({flag('teacher.shape')})"
        built.info = replace(built.info, inferred=(line, *built.info.inferred))
        return built
    return make_teacher(job.teacher, {}, device, recorded, own=teacher)


def _sharing(job: Job) -> Callable[[Teacher], Teacher] | None:
    """What makes a custom teacher share its answers with other runs."""
    if job.teacher.kind in KINDS or job.config.shared_answers is None:
        return None
    from dfme.teachers.asked_once import AskedOnce

    folder = Path(job.config.shared_answers)
    make_folder(folder)

    def shared(teacher: Teacher) -> Teacher:
        if teacher.info.stateful or teacher.info.remote:
            return teacher
        facts = json.dumps(facts_of(job, teacher), sort_keys=True)
        name = f"{hashlib.sha256(facts.encode()).hexdigest()[:16]}.sqlite"
        return AskedOnce(teacher, folder / name)

    return shared


def spared_images(shared: Path) -> int:
    """Images that runs which share answers in a folder had answers to without asking."""
    from dfme.teachers.asked_once import spared

    return spared(shared.glob("*.sqlite"))


def facts_of(job: Job, teacher: Teacher) -> dict[str, Any]:
    """Facts of the teacher, for the run's record."""
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
    """Put the parts together; all that can be wrong is found before the run directory is made or
    touched.

    ``held`` closes what is opened: directory, ledger, journal, recorder. ``choose_threads``: by
    timing steps.
    """
    deferred = DeferredChecks()
    streams = Streams(job.config.seed, device)
    notes = list[str]()
    facts = facts_of(job, teacher)

    def begin(ledger: Ledger) -> None:
        notes.extend([*take_up_threads(ledger, device), *changed_source(ledger.teacher, facts)])

    def open_record() -> OpenRecord:
        directory, state = open_directory(job, resume, held)
        notes.extend([directory.lock.note] if directory.lock.note else [])
        with explain_load_errors(directory.checkpoint) if state else nullcontext():
            oracle = build_oracle(job, teacher, directory, state, deferred, facts, begin)
        return OpenRecord(directory, state, held.enter_context(closing(oracle)))

    # Another teacher than the record's is refused as such, before anything else is judged by it.
    record = open_record() if resume else None
    parts = build_parts(
        with_recorded_net(job, record.state if record else {}),
        teacher,
        device,
        evaluation,
        notes.append,
    )
    if not resume:
        require_room(job, teacher, device)
    data = parts.evaluation
    notes += take_threads(parts.job, parts.nets, teacher.spec) if choose_threads else []
    rehearsed = rehearse(parts, teacher, scored=parts.scored, free=is_local(job))
    record = record or open_record()
    directory = record.directory
    oracle = record.oracle
    settle_images(directory.path, digests_of(job, data, parts.pool))

    mode = oracle.label_mode if data is None else oracle.raw_label_mode
    examination = examination_of(
        data, teacher.spec, mode, device, partial(oracle, purpose="evaluation")
    )
    goal, hold_out = goal_of(job.config, examination, oracle, device)
    method = build_method(
        job,
        build_components(
            parts.job,
            parts.nets,
            oracle,
            streams,
            deferred,
            pool=parts.pool,
            directory=directory.path,
            hold_out=hold_out,
        ),
    )
    if (replay := method.students.replay) is not None:
        held.callback(replay.close)
    weights = parts.nets.weights
    recorder = held.enter_context(
        Recorder(
            directory.path,
            int(job.config.budget),
            document(job)
            | {
                "resolved": {
                    "teacher": facts,
                    "student_arch": parts.nets.arch,
                    "device": device_name(device),
                    **({"student_weights": weights} if weights else {}),
                }
            },
            job.config.wandb,
            bounds=teacher.spec.bounds,
            resume_at=oracle.ledger.spent,
            quiet=not console,
        )
    )
    oracle.report_to(recorder.note)
    if not resume and (inferred := teacher.info.inferred):
        notes.append(f"inferred, since no flag says: {'; '.join(inferred)}")
    run = Run(
        job=job,
        facts=facts,
        directory=directory,
        oracle=oracle,
        owner=_owners_record(job, teacher, directory, held),
        method=method,
        examination=examination,
        recorder=recorder,
        streams=streams,
        deferred=deferred,
        progress=Progress(),
        device=device,
        arch=parts.nets.arch,
        goal=goal,
        notes=notes,
        rehearsed=rehearsed,
    )
    if record.state:
        with explain_load_errors(directory.checkpoint):
            run.load_state_dict(record.state)
    adapter = resolved_adapter(job.teacher.kind, job.teacher_options)
    write_recipe(job, directory, resume, adapter)
    return run


def _owners_record(
    job: Job, teacher: Teacher, directory: RunDirectory, held: ExitStack
) -> OwnersRecord:
    """What the teacher adds to the record, with its queries from here on, if these are recorded."""
    if not job.config.record_queries:
        return OwnersRecord(teacher)
    from dfme.run.recording import record_queries

    queries = record_queries(teacher, directory.queries)
    return OwnersRecord(teacher, held.enter_context(closing(queries)))


def build_oracle(
    job: Job,
    teacher: Teacher,
    directory: RunDirectory,
    state: dict[str, Any],
    deferred: DeferredChecks,
    facts: dict[str, Any] | None = None,
    begin: Callable[[Ledger], None] = lambda ledger: None,
) -> Oracle:
    """The oracle with ledger and journal, new or from a checkpoint; ``facts``: the teacher's.

    ``begin`` is called with the ledger before it is settled. A network of ours on a GPU needs no
    journal, which would make the GPU wait for the host at every step: a resumed run asks again what
    it asked since the checkpoint, and the ledger says so (``lost``). A custom teacher may
    cost money on any device.
    """
    counted = place = None
    state = state["oracle"] if state else {}
    if state:
        validate_like({"ledger": Ledger(1).state_dict()}, state, "oracle")
        counted = state["ledger"]
        place = state["journal"]
        if place is not None:
            validate_like(RecordPosition(0, 0)._asdict(), place, "oracle.journal")
    on_gpu = teacher.info.device.startswith("cuda")
    ledger = Ledger(int(job.config.budget), directory.ledger, counted, facts, job.config.fsync)
    begin(ledger)
    free = on_gpu and job.teacher.kind in KINDS
    journal = None if free else Journal(directory.journal, place, job.config.fsync)
    reader = Reader(job.config.answers, teacher.label_mode, teacher.num_classes, job.config.seed)
    oracle = Oracle(teacher, ledger, journal, deferred, reader=reader)
    if teacher.info.report_uncharged:
        teacher.info.report_uncharged(ledger.record_beside)
    if state:  # the ledger has said by now if this is another teacher
        validate_like(
            {"answered": torch.zeros(teacher.num_classes, dtype=torch.int64)}, state, "oracle"
        )
        oracle.answered = state["answered"]
        oracle.load_teacher_state(state)
    _ = reader.recovery  # which takes seconds, and is there before the first image is asked
    return oracle


def is_local(job: Job) -> bool:
    """True if the teacher is one of the built-in kinds that answer in this process, where nobody is
    paid.
    """
    return job.teacher.kind in KINDS and KINDS[job.teacher.kind].is_local


def white_box(job: Job) -> TorchTeacher:
    """The job's teacher, of kind torch, with its gradients and no levels."""
    config = replace(job.teacher, levels=None)
    return load_torch(TorchOptions(**job.teacher_options), config, choose_device(job.config.device))


def served(
    model: TorchTeacher, record: str, account: str | None, defences: Sequence[str]
) -> tuple[ImageSet, Callable[[Tensor], Tensor]]:
    """A log's images, and the labels that the model answers to any behind these defences."""
    from dfme.teachers.owner.defences.wrapper import Defended
    from dfme.teachers.owner.watch.record import recorded_images

    behind = Defended(model, parse_defences(defences), LabelMode("label"))
    return recorded_images(Path(record), account, model.spec.shape), behind.preview


def files_of(job: Job) -> tuple[dict[str, str], str]:
    """Digests of the files that decide what the job's teacher answers, and the option that names
    them.
    """
    kind = job.teacher.kind
    source = KINDS[kind].file if kind in KINDS else None
    return teacher_files(kind, job.teacher_options), source.option if source else ""
