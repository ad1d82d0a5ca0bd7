"""The owner's side for the command line: the one file of cli/ that imports ``teachers``. No
torch.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfme import teachers
from dfme.audits.audit.model import Metering
from dfme.config.defences import Facts, parse_defences, stated
from dfme.config.detectors import NEED_FEATURES
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, TeacherConfig
from dfme.errors import Problem, UserError
from dfme.files import make_folder
from dfme.run.checks import file_problems, net_problems
from dfme.run.lock import DirectoryLock
from dfme.spec import LABEL_KINDS, LabelMode, Teacher
from dfme.teachers import KINDS as KINDS
from dfme.teachers.options import ServeConfig as ServeConfig
from dfme.teachers.options import TrainDataConfig
from dfme.teachers.options import TrainTeacherConfig as TrainTeacherConfig
from dfme.teachers.options import check_training as check_training
from dfme.teachers.remote.options import ServiceOptions

if TYPE_CHECKING:
    from dfme.teachers.serve.guard import Guard as Guard
    from dfme.teachers.watch.detector import Detector as Detector


def __getattr__(name: str) -> Any:
    """``Guard`` and ``Detector``, which load torch, only where they are asked for."""
    if name == "Guard":
        from dfme.teachers.serve.guard import Guard

        return Guard
    if name == "Detector":
        from dfme.teachers.watch.detector import Detector

        return Detector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """Check a teacher without torch, and print which secrets go where as a command's first line."""
    if said := teachers.check_teacher(config, options):
        print(said, file=sys.stderr, flush=True)


def kind_problems(kind: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of a built-in kind that reads from this machine what is not there."""
    file = KINDS[kind].file if kind in KINDS else None
    if file is not None:
        yield from file_problems(
            f"teacher.{file.option}", options.get(file.option), file.remedy, file.folder
        )
    if kind in KINDS:
        yield from net_problems("teacher.arch", options.get("arch"))


def write_adapter(sample: str, path: str) -> str:
    """Write a first adapter of kind json from one sample answer; a line that says what was
    found.
    """
    from dfme.teachers.remote.json_api.sample import write_adapter as write

    return write(sample, path)


def price_problems(kind: str, key: str) -> Iterator[Problem]:
    """Problem of option ``key`` if nobody named a budget, and every image may cost money."""
    if kind in KINDS and issubclass(KINDS[kind].options, ServiceOptions):
        text = f"expected how many images the service may be asked for, such as --{key} 10k"
        yield Problem(
            key,
            f"{text}; no default, since each may cost money (--teacher.price-per-1000 PRICE shows "
            "how much)",
        )


def make(config: TeacherConfig, options: Mapping[str, Any], device: str, **more: Any) -> Teacher:
    """The teacher, on a device as the flag names it; ``more`` goes on to ``make_teacher``."""
    from dfme.compute import choose_device
    from dfme.teachers.build import make_teacher

    return make_teacher(config, options, choose_device(device), **more)


def train(config: TrainTeacherConfig, show: Callable[[dict[str, float]], None]) -> Any:
    """Train a teacher; its path, its card, its seconds."""
    from dfme.teachers.training.train import train_teacher

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
        from dfme.teachers.serve.server import serve as serve_teacher

        made = make(teacher, options, config.device, recorded=bool(config.record))
        return serve_teacher(made, config, tell=tell)


def train_twin(job: Job, run: Path, path: Path, tell: Callable[[str], None]) -> Path:
    """Train a net like the student of ``run`` on the data's train part; UserError without one."""
    from dfme.audits.audit.options import TWIN_EPOCHS
    from dfme.nets import is_own
    from dfme.run.student_file import student_facts

    (arch, spec, _) = student_facts(run)
    of = job.config.evaluation
    data = TrainDataConfig(of.dataset, of.root, of.download, spec.shape)
    arch = "auto" if is_own(arch) else arch
    own: dict[str, Any] = {"seed": job.config.seed, "device": job.config.device, "out": str(path)}
    if not path.exists():
        done = train(
            TrainTeacherConfig(data, arch, TWIN_EPOCHS, 64, lr=0.05, **own), lambda metrics: None
        )
        tell(f"a twin, trained in {done.seconds:.1f} s")
    return path


def own_problems(kind: str, own_teacher: str) -> Iterator[Problem]:
    """A teacher of one's own whose owner has not said that it may be asked whatever is measured."""
    if kind not in KINDS and own_teacher != "local":
        text = (
            f"expected local, since {kind} would be asked thousands of images; say it if "
            "they cost nothing"
        )
        yield Problem("own_teacher", text)


def benign_at_most(images: int, stacks: bool, sessions: int, cells: int) -> int:
    """Most ``benign`` images that an audit asks a teacher of one's own, for so many evaluation
    images.

    With ``stacks`` to bill, and ``sessions`` of each honest stream to measure detectors on, 0
    without any. Each of the ``cells`` calibrates a watch and asks what honest users are answered.
    """
    from dfme.teachers.watch.streams import AGAIN, SESSION

    # corrupted images, and repeats that are moved by a pixel
    measured = (2 * images + round(sessions * SESSION * (1 + AGAIN))) if sessions else 0
    return 3 * images * stacks + measured + (2 * images + 1) * cells


def billing_seconds(stacks: int, images: int, answer: float) -> float:
    """About the seconds of ``bills`` for so many stacks, with ``answer`` seconds of an image; 0 for
    none.

    A row is asked three streams of images, and two sizes of calls are timed in turn with the
    undefended ones.
    """
    from dfme.teachers.utility import ROUNDS_SECONDS

    return (1 + stacks) * (3 * images * answer + 2 * ROUNDS_SECONDS) if stacks else 0.0


def streamed(sessions: int) -> int:
    """Images of the honest streams on which detectors are measured, with so many sessions of
    each.
    """
    from dfme.teachers.watch.streams import SESSION, STREAMS

    return (len(STREAMS) - 1) * sessions * SESSION  # other data is a stream of run.py detect alone


def label_mode_of(stack: Sequence[str]) -> LabelMode | None:
    """Label mode that stands for a row of defences, or None."""
    modes = (text for text in stack if text.partition(":")[0].replace("-", "_") in LABEL_KINDS)
    return next(map(LabelMode.parse, modes), None)


@contextmanager
def benign_meter(
    config: TeacherConfig, options: Mapping[str, Any], folder: Path
) -> Iterator[Metering | None]:
    """A meter for what the owner measures of a teacher of one's own: ledger and journal lie in
    ``folder``.

    Each image is asked once, also after a stop, and recorded as ``benign``. None for a built-in
    kind, which answers on this machine for nothing.
    """
    if config.kind in KINDS:
        yield None
        return
    from dfme.compute import DeferredChecks
    from dfme.run.build import build_oracle, facts_of
    from dfme.run.directory import RunDirectory
    from dfme.teachers.asked_once import AskedOnce

    job = Job(ExtractConfig(budget=1), config, dict(options), "none", None)
    checks = DeferredChecks()
    metered: list[Teacher] = []
    with ExitStack() as held:

        def meter(teacher: Teacher) -> Teacher:
            if not metered:
                make_folder(folder)
                directory = held.enter_context(RunDirectory(folder))
                oracle = build_oracle(job, teacher, directory, {}, checks, facts_of(job, teacher))
                held.enter_context(closing(oracle))
                held.callback(checks.verify)
                kept = folder / "asked.sqlite"
                kept.unlink(
                    missing_ok=True
                )  # the journal gives the answers of a killed session again
                metered.append(AskedOnce(teacher, kept, partial(oracle, purpose="benign")))
            return metered[0]

        yield meter


def bills(
    config: TeacherConfig,
    options: Mapping[str, Any],
    stacks: Sequence[tuple[str, ...]],
    evaluation: EvaluationConfig,
    device: str,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    meter: Metering | None = None,
) -> list[dict[str, Any]]:
    """Cost of stacks of defences or label modes to honest users, ``none`` first, on uncalibrated
    images.

    Milliseconds are not measured behind a ``meter``, where answers come from memory.
    """
    from dfme.compute import choose_device
    from dfme.queries.programs import ProceduralImages
    from dfme.report.facts import wilson_interval
    from dfme.run.build import build_teacher
    from dfme.run.evaluation_images import evaluation_images
    from dfme.teachers import utility
    from dfme.teachers.label_modes import restrict

    def made(stack: Sequence[str]) -> Teacher:
        mode = label_mode_of(stack)
        own = replace(config, defences=() if mode else tuple(stack))
        job = Job(ExtractConfig(evaluation=evaluation), own, dict(options), "none", None)
        teacher = build_teacher(job, None, choose_device(device), meter)
        return restrict(teacher, mode) if mode else teacher

    base, *others = map(
        made, ((), *stacks)
    )  # what does not fit is said before anything is measured
    defences = [defence for stack in stacks for defence in stack]
    halved = any(f"data={evaluation.dataset}" in defence.split(":") for defence in defences)
    if halved and evaluation.limit:
        raise UserError(
            "--evaluation.limit: expected 0, since a gate is calibrated on half of all images"
        )
    data = evaluation_images(
        evaluation, base.spec, base.num_classes, base.info.class_names, tell=tell
    )
    assert data is not None, "without images nothing can be measured"
    found = []
    draw = ProceduralImages(base.spec, ("leaves", "strokes")).draw
    measured = utility.bills([base, *others], data, draw, seed, 1 + halved, timed=meter is None)
    for stack, bill in zip(((), *stacks), measured, strict=True):
        told = (
            {}
            if label_mode_of(stack)
            else _in_words(stated(parse_defences(stack), base.num_classes))
        )
        found.append({"defence": "+".join(stack) or "none", "states": told, **bill})
        for stream in (bill["held_out"], bill["corrupted"]):
            if "accuracy" in stream:
                stream["accuracy_interval"] = wilson_interval(
                    stream["accuracy"], stream["answered"]
                )
        tell(f"measured {len(found)} of {len(stacks) + 1}: {found[-1]['defence']}")
    return found


def detection(
    config: TeacherConfig,
    options: Mapping[str, Any],
    names: Sequence[str],
    evaluation: EvaluationConfig,
    device: str,
    other: str | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    log: Path | None = None,
    meter: Metering | None = None,
    sessions: int | None = None,
) -> dict[str, Any]:
    """Detectors over honest accounts, on images that calibrated none of them, and over a ``log``.

    ``sessions``: of each honest stream, by default as many as ``run.py detect`` has.
    """
    from dfme.audits.audit.detection import share_at_most
    from dfme.teachers.watch.detection import detect

    data = config.benign or evaluation.dataset
    blind = NEED_FEATURES if config.kind != "torch" else ()
    seeing = tuple(name for name in names if name not in blind)
    plain = replace(config, watch=seeing, benign=data, on_alarm="log", defences=(), label_mode=None)
    teacher = make(plain, options, device, meter=meter)
    found = detect(teacher, data, other, seed, tell, log, sessions)
    found["left_out"] |= {
        name: "it looks into a network of kind torch" for name in names if name in blind
    }
    for each in found["benign"]:
        upper = share_at_most(each["alarms"], each["queries"], each["units"])
        each["per_10000"] = 10_000 * each["alarms"] / each["queries"]
        each["per_10000_upper"] = 10_000 * upper
    return found


def _in_words(facts: Facts) -> dict[str, str]:
    return {
        "top_kept": facts.keeps_top,
        "l1_at_most": "no bound" if facts.l1 is None else f"{facts.l1:g}",
        "state": "yes" if facts.stateful else "no",
        "random": "yes" if facts.random else "no",
        "needs": ", ".join(facts.needs) or "nothing",
    }
