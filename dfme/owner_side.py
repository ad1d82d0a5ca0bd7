"""The door to the owner's side for commands, audits and ``dfme.Guard``. No torch until it is
needed.

The other door is ``dfme/run/build.py``, which makes a run's teacher.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, TeacherConfig
from dfme.data.images import Split
from dfme.errors import DfmeError, Problem, Ref, ShapeUnknown, UserError, flag, say
from dfme.files import make_folder, sha256_of
from dfme.run.checks import file_problems, net_problems
from dfme.run.directory import DirectoryLock
from dfme.spec import ImageSpec, Teacher
from dfme.teachers import KINDS as KINDS
from dfme.teachers import RECORDED_THERE
from dfme.teachers.options import ServeConfig as ServeConfig
from dfme.teachers.options import ServiceOptions
from dfme.teachers.options import TrainTeacherConfig as TrainTeacherConfig
from dfme.teachers.options import check_training as check_training
from dfme.teachers.owner import label_mode_of as label_mode_of
from dfme.teachers.owner.checks import check_teacher as check_teacher_options

if TYPE_CHECKING:
    from dfme.data import ImageSet
    from dfme.teachers.owner.guard.guard import Guard as Guard
    from dfme.teachers.owner.marking.key import MarkKey as MarkKey
    from dfme.teachers.owner.marking.options import MarkConfig as MarkConfig
    from dfme.teachers.owner.marking.options import MarkTools as MarkTools
    from dfme.teachers.owner.marking.result import MarkResult as MarkResult
    from dfme.teachers.owner.marking.subject import Subject
    from dfme.teachers.owner.measuring import Measuring, Metering
    from dfme.teachers.owner.utility import Draw
    from dfme.teachers.owner.watch.detector import Detector as Detector


def __getattr__(name: str) -> Any:
    """``Guard`` and ``Detector``, which load torch, and what one command has, only where they are
    asked for.
    """
    if name == "Guard":
        from dfme.teachers.owner.guard.guard import Guard

        return Guard
    if name == "Detector":
        from dfme.teachers.owner.watch.detector import Detector

        return Detector
    if name == "MarkConfig":
        from dfme.teachers.owner.marking.options import MarkConfig

        return MarkConfig
    if name == "MarkTools":
        from dfme.teachers.owner.marking.options import MarkTools

        return MarkTools
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Is a teacher as it is described possible?


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """Check a teacher without torch, and print which secrets go where as a command's first line."""
    if line := check_teacher_options(config, options):
        print(line, file=sys.stderr, flush=True)


def kind_problems(kind: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of a built-in kind that reads from this machine what is not there."""
    if kind not in KINDS:
        return
    file = KINDS[kind].file
    if file is not None:
        key = f"teacher.{file.option}"
        yield from file_problems(key, options.get(file.option), file.remedy, file.folder)
    yield from net_problems("teacher.arch", options.get("arch"))


def price_problems(kind: str, key: str) -> Iterator[Problem]:
    """Problem of option ``key`` if nobody named a budget, and every image may cost money."""
    if kind in KINDS and issubclass(KINDS[kind].options, ServiceOptions):
        text = f"expected how many images the service may be asked for, such as {flag(key, '10k')}"
        price = flag("teacher.price_per_1000", "PRICE")
        cost = f"{text}; no default, since each may cost money ({price} shows how much)"
        yield Problem(key, cost)


def recording_problems(kind: str, recorded: bool) -> Iterator[Problem]:
    """A service whose queries would be recorded here."""
    if recorded and kind in KINDS and not KINDS[kind].is_local:
        yield Problem("record_queries", say(RECORDED_THERE, Ref("record")))


def custom_problems(kind: str, own_teacher: str) -> Iterator[Problem]:
    """A custom teacher of which nobody has said that it costs nothing to ask."""
    if kind not in KINDS and own_teacher != "local":
        text = (
            f"expected local, since {kind} would be asked thousands of images; say it if "
            "they cost nothing"
        )
        yield Problem("own_teacher", text)


# What commands let the owner's side do


def make(config: TeacherConfig, options: Mapping[str, Any], device: str, **more: Any) -> Teacher:
    """The teacher, on a device as the flag names it; ``more`` goes on to ``make_teacher``."""
    from dfme.compute.device import choose_device
    from dfme.teachers.build import make_teacher

    return make_teacher(config, options, choose_device(device), **more)


def account_tags(options: Mapping[str, Any]) -> frozenset[str]:
    """What alarms may call a client that asks with these options of a service; none without a key.

    Behind ``serve`` that is the tag of its key, behind a guard that of the header with the key, and
    where accounts are not told apart, the tag of everybody.
    """
    name = options.get("api_key_env")
    key = os.environ.get(str(name), "").strip() if name else ""
    if not key:
        return frozenset()
    from dfme.teachers.owner.watch.record import account_tag

    return frozenset(map(account_tag, (key, f"bearer {key}", "")))


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter of kind json from one sample answer; a line that says what it has."""
    from dfme.teachers.remote.json_api.sample import write_adapter as write

    return write(sample, path)


def train(config: TrainTeacherConfig, show: Callable[[dict[str, float]], None]) -> Any:
    """Train a teacher; its path, its card, its seconds."""
    from dfme.teachers.owner.training.train import train_teacher

    return train_teacher(config, show)


def serve(
    config: ServeConfig,
    teacher: TeacherConfig,
    options: Mapping[str, Any],
    tell: Callable[[str], None],
) -> str:
    """Serve until interrupted; a last line. UserError where another server records into the
    folder.
    """
    with ExitStack() as held:
        if config.record:
            make_folder(Path(config.record))
            held.callback(DirectoryLock(Path(config.record), "record").close)
        from dfme.teachers.owner.serve.server import serve as serve_teacher

        served = make(teacher, options, config.device, recorded="log" if config.record else None)
        return serve_teacher(served, config, tell=tell)


def mark(
    config: "MarkConfig",
    teacher: TeacherConfig,
    options: Mapping[str, Any],
    tools: "MarkTools",
) -> "tuple[Path, MarkResult]":
    """Mark a model of kind torch: the directory, and what it came to. One that was interrupted goes
    on; one that is done is read.
    """
    from dfme.run.directory import RunDirectory
    from dfme.run.job import resume_command
    from dfme.teachers.owner.marking.session import finished
    from dfme.teachers.owner.marking.session import mark as mark_model

    job = job_of(teacher, options, config.device, config.evaluation)
    if config.resume:
        directory = RunDirectory(Path(config.out or ""))
    else:
        subject = _subject(job, tools.tell)
        directory = RunDirectory.create(Path(config.out or RunDirectory.free_name(MARKED)))
    with directory:
        result = finished(directory.path)
        if result is not None:
            _require_same(directory.config, config, options, result)
            return directory.path, result
        try:
            if config.resume:
                subject = _subject(job, tools.tell)
            else:
                directory.write_config(_settings(config, job))
            again = resume_command(directory.path, job, "mark")
            return directory.path, mark_model(subject, config, directory.path, tools, again)
        except DfmeError:
            directory.is_new_run = not (directory.path / "state").exists()
            raise


MARKED = Path("runs/marked")


def _require_same(
    file: Path, config: "MarkConfig", options: Mapping[str, Any], result: "MarkResult"
) -> None:
    """UserError for other options, or another model, than a marking that is done was of."""
    from dfme.config.yaml_files import load_yaml
    from dfme.run.job import plain
    from dfme.teachers.owner.marking.options import DECISIVE

    record = load_yaml(file, own=True)
    names = [name for name in DECISIVE if record.get(name) != plain(getattr(config, name), name)]
    model = Path(options["checkpoint"]).expanduser()
    if model.is_file() and sha256_of(model) != result.original_sha256:
        names.append("original")
    if names:
        said = ", ".join(names)
        raise UserError(
            say("{resume}: this marking is done, of another {}; expected the same", said)
        )


def _settings(config: "MarkConfig", job: Job) -> str:
    """config.yaml of a marking."""
    from dfme.config.yaml_files import dump_yaml
    from dfme.methods import METHODS
    from dfme.run.job import document, plain

    options = {name: value for name, value in vars(config).items() if name not in ("out", "resume")}
    settings = {name: plain(value, name) for name, value in options.items()}
    known = replace(job, method="static", method_config=METHODS["static"].config())
    return dump_yaml({**settings, "teacher": document(known)["teacher"]})


def _subject(job: Job, tell: Callable[[str], None]) -> "Subject":
    """The model that is marked, and its owner's images within 0 and 1."""
    from dfme.run.build import white_box
    from dfme.run.scores import evaluation_images, shape_of
    from dfme.teachers.owner.marking.subject import subject_of

    evaluation = job.config.evaluation
    try:
        model = white_box(job)
    except ShapeUnknown:
        if (shape := shape_of(evaluation)) is None:
            raise
        model = white_box(replace(job, teacher=replace(job.teacher, shape=shape)))
    parts = list["ImageSet"]()
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        data = evaluation_images(
            evaluation,
            ImageSpec(model.spec.shape),
            model.num_classes,
            model.info.class_names,
            tell=tell,
            split=split,
        )
        assert data is not None, "the command wants a data set"
        parts.append(data)
    return subject_of(model, job.teacher, job.teacher_options, *parts)


def load_marks(path: str) -> "MarkKey":
    """The key of a mark. UserError, in one line, for a file that is none."""
    from dfme.teachers.owner.marking.key import load_key

    return load_key(path)


# What the owner measures


def owner_of(job: Job, evaluation: EvaluationConfig | None = None) -> "Measuring":
    """The owner of a job's teacher, who measures on these evaluation images, or the job's."""
    from dfme.teachers.owner.measuring import Measuring

    if evaluation is not None:
        job = replace(job, config=replace(job.config, evaluation=evaluation))
    return Measuring(job, _Tools(job))


def job_of(
    teacher: TeacherConfig,
    options: Mapping[str, Any],
    device: str,
    evaluation: EvaluationConfig | None = None,
) -> Job:
    """A job of no method, for what is measured of its teacher."""
    config = ExtractConfig(budget=1, device=device, evaluation=evaluation or EvaluationConfig())
    return Job(config, teacher, dict(options), "none", None)


class _Tools:
    """The ``Tools`` of the owner: the teacher, the images and the ledger of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def teacher(self, config: TeacherConfig, meter: "Metering | None", /) -> Teacher:
        from dfme.compute.device import choose_device
        from dfme.run.build import build_teacher

        job = replace(self._job, teacher=config)
        return build_teacher(job, None, choose_device(job.config.device), meter)

    def images(self, teacher: Teacher, tell: Callable[[str], None], /) -> "ImageSet":
        from dfme.run.scores import evaluation_images

        config = self._job.config.evaluation
        names = teacher.info.class_names
        data = evaluation_images(config, teacher.spec, teacher.num_classes, names, tell=tell)
        assert data is not None, "without images nothing can be measured"
        return data

    def attack(self, spec: ImageSpec, /) -> "Draw":
        from dfme.queries.programs import ProceduralImages

        return ProceduralImages(spec, ("leaves", "strokes")).draw

    @contextmanager
    def meter(self, folder: Path, /) -> "Iterator[Metering]":
        """Each image is asked once, also after a stop, and recorded as ``benign``."""
        from dfme.compute.modules import DeferredChecks
        from dfme.run.build import build_oracle, facts_of
        from dfme.run.directory import RunDirectory
        from dfme.teachers.asked_once import AskedOnce

        job = job_of(self._job.teacher, self._job.teacher_options, "auto")
        checks = DeferredChecks()
        metered: list[Teacher] = []
        with ExitStack() as held:

            def meter(teacher: Teacher) -> Teacher:
                if not metered:
                    make_folder(folder)
                    directory = held.enter_context(RunDirectory(folder))
                    facts = facts_of(job, teacher)
                    oracle = build_oracle(job, teacher, directory, {}, checks, facts)
                    held.enter_context(closing(oracle))
                    held.callback(checks.verify)
                    answers = folder / "asked.sqlite"
                    # the journal gives the answers of a killed session again
                    answers.unlink(missing_ok=True)
                    metered.append(AskedOnce(teacher, answers, partial(oracle, purpose="benign")))
                return metered[0]

            yield meter
