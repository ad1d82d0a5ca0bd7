"""``run.py verify``: is this model a copy of mine? A likelihood, beside models that are surely
none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass

from dfme.audits.verify.evidence import sentences
from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.cli.flags import SUSPECT, asks_to_resume, resumed, tell
from dfme.config.defences import DefencesText, parse_defences
from dfme.config.messages import printable
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job
from dfme.config.values import CONFIG, Basic, Device, Images, Seed, narrowed
from dfme.errors import Problem
from dfme.methods import METHODS
from dfme.owner_side import check_teacher, load_marks
from dfme.run.checks import evaluation_problems, file_problems, fresh_directory_problems


@dataclass(frozen=True, config=CONFIG)
class VerifyConfig:
    """One suspect beside one's own model, and models that are surely no copies of it."""

    model: Basic[str]
    """weights of your own model"""
    references: Basic[tuple[str, ...]] = ()
    """weights of five or more models for the same task that are surely no copies, three or more of
    your model's architecture: A,B,C,D,E"""
    budget: Basic[Images] = 300
    """most images that the suspect is asked"""
    seed: Basic[Seed] = 0
    """seed of the images' corruption, choice and order"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N"""
    out: Basic[str | None] = None
    """directory of the page; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the verification in --out; nothing is asked twice"""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """your held-out images with labels; without a limit at most 1,000 of them are looked at"""
    record: str | None = None
    """log of run.py serve --record with images: those that --watermark marked are asked, not
    mistakes
    """
    watermark: DefencesText = ()
    """the defences as they were served, such as watermark:key_env=NAME:rate=0.005"""
    account: str | None = None
    """tag of the account whose images count, as run.py detect names it; by default all do"""
    marks: Basic[str | None] = None
    """marks.key of run.py mark, with --model the marked one: its marks and controls are asked, at
    most 100 images, not mistakes"""


SUMMARY = (
    "say whether a suspect (run.py verify SUSPECT ..., or --teacher) is as alike as a "
    "copy of your model"
)
INPUTS = CommandInputs(
    VerifyConfig,
    teacher=True,
    recipe=lambda flags: (
        resumed(flags, "config.yaml", "a verification") if asks_to_resume(flags) else None
    ),
)


def run(words: Sequence[str]) -> int:
    """Ask the suspect, and print the page; 5 for one that is more alike than every reference."""
    arguments = arguments_of(words, INPUTS, SUSPECT)
    config = arguments.config
    (teacher, options) = arguments.teacher()
    arguments.finish(_problems(config))
    check_teacher(teacher, options)
    job = Job(
        narrowed(ExtractConfig, config), teacher, options, "static", METHODS["static"].config()
    )
    from dfme.audits.verify.case import ServedLog
    from dfme.audits.verify.marks import KeyFile
    from dfme.audits.verify.session import verify

    paths = [Path(name) for name in (config.model, *config.references)]
    record = config.record and str(Path(config.record).absolute())
    log = ServedLog(record, config.account, config.watermark) if record else None
    marks = KeyFile(Path(config.marks), load_marks(config.marks)) if config.marks else None
    result = verify(job, paths, tell, log, marks)
    files = f"{result['directory']}: verify.md, verify.json"
    print("\n\n".join(map(printable, [*sentences(result), files])))
    return 5 if result["sure"] else 0


def _problems(config: VerifyConfig) -> Iterator[Problem]:
    stack = parse_defences(config.watermark)
    marked = any(part.name == "watermark" and getattr(part, "key_env", None) for part in stack)
    if marked != (config.record is not None):
        yield Problem(
            "watermark", "expected watermark:key_env=NAME, as it was served, beside --record LOG"
        )
    if config.marks is not None:
        yield from file_problems("marks", config.marks)
        if config.record is not None or config.watermark:
            yield Problem("marks", "expected no --record and no --watermark beside it")
    yield from evaluation_problems(config.evaluation, needed=not marked and config.marks is None)
    if config.evaluation.mean is not None:
        yield Problem(
            "evaluation.mean", "leave it out; --teacher.mean normalises within the suspect"
        )
    yield from file_problems("model", config.model)
    yield from reference_problems(config.references)
    yield from fresh_directory_problems(None if config.resume else config.out)


def reference_problems(references: Sequence[str]) -> Iterator[Problem]:
    """Problems with the files of models that are surely no copies."""
    if len(references) < 5:
        yield Problem(
            "references",
            (
                f"expected the weights of five models or more, got {len(references)}; train "
                "them on your own data by run.py train-teacher, with --seed 1, 2, 3 and other "
                "--arch"
            ),
        )
    for path in references:
        yield from file_problems("references", path)


def recognition_problems(
    references: Sequence[str], marks: str | None, kind: str
) -> Iterator[Problem]:
    """Problems with what an audit's copies are to be recognised by; ``kind``: of its teacher."""
    if references and kind != "torch":
        yield Problem(
            "references", "expected none: only copies of a --teacher.checkpoint can be recognised"
        )
    elif references:
        yield from reference_problems(references)
    if marks is not None:
        yield from file_problems("marks", marks)
        if not references:
            yield Problem("marks", "expected --references beside it, as run.py verify takes them")
