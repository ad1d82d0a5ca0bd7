"""``run.py mark``: teach one's own model a secret rule that copies of it learn, too."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from shutil import get_terminal_size

from dfme import owner_side
from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.cli.flags import SUSPECT, asks_to_resume, resumed, tell
from dfme.config.messages import printable
from dfme.config.settings import TeacherConfig
from dfme.data import has_train_part
from dfme.errors import Problem, say
from dfme.owner_side import MarkConfig, MarkTools
from dfme.report.terminal import aligned
from dfme.run.checks import evaluation_problems, fresh_directory_problems

SUMMARY = "teach your own model a secret mark that copies of it repeat (run.py mark MODEL ...)"
INPUTS = CommandInputs(
    MarkConfig,
    teacher=True,
    recipe=lambda flags: (
        resumed(flags, "config.yaml", "a marking") if asks_to_resume(flags) else None
    ),
)
NOTHING_TO_USE = 4
"""The exit code where the mark does not hold, or costs too much."""
FILES = ("model.safetensors", "marks.key", "marks.png", "mark.md", "mark.json")
IDLE = ("label_mode", "defences", "watch", "price_per_1000")
"""Common keys of a teacher that change no weights."""


def run(words: Sequence[str]) -> int:
    """Mark, and print what it costs and whether it holds; 4 where there is nothing to use."""
    arguments = arguments_of(words, INPUTS, SUSPECT)
    config = arguments.config
    teacher, options = arguments.teacher()
    arguments.finish([*_problems(config), *_teacher_problems(teacher)])
    if config.seed is not None and not config.resume:
        tell(f"seed {config.seed} is no secret: who has your images and the seed knows the rule")
    with closing(FootLine()) as line:
        directory, result = owner_side.mark(config, teacher, options, mark_tools(line))
    holds = result.outcome == "holds"
    names = FILES if holds else FILES[-2:]
    rows = [*result.rows(), ("files", f"{directory}: {', '.join(names)}")]
    print("\n\n".join([aligned(rows), *map(printable, result.text)]))
    return 0 if holds else NOTHING_TO_USE


class FootLine:
    """How far it is, on stderr; on a terminal it is written over the last one."""

    def __init__(self) -> None:
        self._open = False

    def show(self, line: str) -> None:
        self._open = sys.stderr.isatty()
        width = get_terminal_size().columns - 1  # one that is cut does not scroll
        sys.stderr.write(f"\r{line[:width]:<{width}}" if self._open else f"{line}\n")
        sys.stderr.flush()

    def tell(self, line: str) -> None:
        """A line that stays."""
        self.close()
        tell(line)

    def close(self) -> None:
        """Whatever is written next begins a line."""
        if self._open:
            tell("")
        self._open = False


def mark_tools(line: FootLine) -> MarkTools:
    """How copies are trained, what is evidence of one, and where lines go."""
    from dfme.audits.verify.evidence import SURE, MarkEvidence
    from dfme.report.console import duration
    from dfme.students.replay import augment

    def weigh(
        marks: int, repeated: int, controls: int, anyway: int, p_reference: float
    ) -> tuple[float, float]:
        seen = MarkEvidence(marks, repeated, controls, anyway, p_reference)
        return seen.p_null, seen.evidence.e_value

    return MarkTools(
        augment=lambda x_BCHW, rng: augment(x_BCHW, "affine", rng),
        weigh=weigh,
        sure=SURE,
        show=line.show,
        tell=line.tell,
        duration=duration,
    )


def _problems(config: MarkConfig) -> Iterator[Problem]:
    evaluation = config.evaluation
    problems = [*evaluation_problems(evaluation, needed=True)]
    yield from problems
    if evaluation.mean is not None:
        yield Problem(
            "evaluation.mean", say("leave it out; {teacher.mean} normalises within the model")
        )
    if not problems and not has_train_part(evaluation.dataset):
        yield Problem(
            "evaluation.dataset",
            "expected images to teach with as well: a folder with train/CLASS/ and test/CLASS/, or "
            "an .npz with train_images, train_labels, test_images and test_labels",
            evaluation.dataset,
        )
    yield from fresh_directory_problems(None if config.resume else config.out)


def _teacher_problems(teacher: TeacherConfig) -> Iterator[Problem]:
    if teacher.kind != "torch":
        yield Problem(
            "teacher",
            say("expected torch: weights that can be trained, by {teacher.checkpoint}"),
            teacher.kind,
        )
    usual = TeacherConfig()
    for name in IDLE:
        if getattr(teacher, name) != getattr(usual, name):
            yield Problem(f"teacher.{name}", "leave it out: the mark is in the model itself")
