"""Teachers that are programs on this machine: images in, scores out, whatever runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dfme.compute.device import arithmetic
from dfme.config.imports import blaming
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, flag
from dfme.spec import ImageSpec, TeacherInfo
from dfme.teachers.label_modes import as_classes
from dfme.teachers.local.answer_forms import (
    End,
    ScoreForm,
    by_name,
    check_images,
    choose_output,
    holds_whole_numbers,
    require_class_order,
    require_of_class_1,
    rows,
    settle_form,
)
from dfme.teachers.local.checks import agreed, agreed_classes, as_text, first_line, first_look
from dfme.teachers.local.pytorch import Normalise
from dfme.teachers.options import Answers, TeacherPrecision

Axes = tuple[int | None, int | None, int | None]

CPU = torch.device("cpu")

BYTES = 256  # levels of a program that takes 8-bit pixels
LOOK_SECONDS = 2.0  # after which a program is shown no more check images
LARGEST_BATCH = 250_000_000  # numbers in the images that a program takes at once: 1 GB


@dataclass(frozen=True)
class Program:
    """What a program's file tells before the program runs.

    ``run`` takes images (B, C, H, W) of ``dtype`` on ``device``, from ``least`` to ``most`` of
    them, and the name of the wanted output, None for all. ``axes`` are C, H and W, None where any
    size goes. ``source`` names it in messages. ``precision``: what PyTorch runs it in, if PyTorch
    does. ``ends``: the kind of the last operation of each output, up to where it is known.
    """

    source: str
    run: Callable[[Tensor, str | None], object]
    axes: Axes = (None, None, None)
    dtype: torch.dtype = torch.float32
    least: int = 1
    most: int | None = None
    device: torch.device = CPU
    precision: TeacherPrecision = "auto"
    ends: Sequence[End | None] = ()


class ProgramTeacher:
    """A program behind the same call as every teacher, answering logits or probabilities.

    A batch that is too small for the program is filled up with copies of its last image, whose
    answers are dropped. Pixels of a program that takes bytes are the levels of ``spec``, from 0 at
    its lower bound to 255.
    """

    def __init__(self, call: ProgramCall, num_classes: int, form: ScoreForm) -> None:
        self.spec = call.spec
        self.num_classes = num_classes
        self.label_mode = form.mode
        self.info = TeacherInfo(str(call.program.device), call.program.most)
        self._ask = call
        self._form = form

    def __call__(self, images: Tensor, /) -> Tensor:
        return as_classes(
            self._form.read(self._ask.scores(images)), self.num_classes, self.label_mode
        )


@dataclass(frozen=True)
class ProgramCall:
    """How a program is asked about images of ``spec``; ``output`` names the one with the scores."""

    program: Program
    spec: ImageSpec
    normalise: Normalise
    output: str = ""

    def scores(self, images: Tensor) -> Tensor:
        """The program's scores (B, K). UserError unless there is one row of them for each image."""
        x_BCHW = self._filled(images)
        outputs = by_name(self._run(x_BCHW, self.output))
        return rows(self.program.source, outputs.get(self.output), len(x_BCHW))[: len(images)]

    def every_output(self, images: Tensor) -> tuple[dict[str, object], int]:
        """The program's outputs by name, and the number of images that they are for."""
        x_BCHW = self._filled(images)
        return by_name(self._run(x_BCHW, None)), len(x_BCHW)

    def _filled(self, images: Tensor) -> Tensor:
        program = self.program
        x_BCHW = images.detach().to(program.device)
        as_bytes = program.dtype == torch.uint8
        x_BCHW = self.spec.encode(x_BCHW) if as_bytes else self.normalise(x_BCHW).to(program.dtype)
        lacking = program.least - len(x_BCHW)
        return (
            torch.cat([x_BCHW, x_BCHW[-1:].expand(lacking, -1, -1, -1)]) if lacking > 0 else x_BCHW
        )

    def _run(self, x_BCHW: Tensor, output: str | None) -> object:
        with torch.no_grad(), arithmetic(self.program.precision, self.program.device):
            return self.program.run(x_BCHW, output)


def make_program_teacher(
    program: Program, answers: Answers, output: str | None, config: TeacherConfig
) -> ProgramTeacher:
    """The teacher that a program is; its classes are counted in its answers to check images.

    UserError where the configuration contradicts the program, naming both, where nothing tells the
    image's shape, and where its output or the form of its answers can be read in two ways.
    """
    spec = ImageSpec(_shape(program, config), config.bounds or (0.0, 1.0), _levels(program, config))
    if program.dtype == torch.uint8 and (config.mean is not None or config.std is not None):
        raise OptionError(
            "teacher.mean", f"{program.source} takes 8-bit pixels, which cannot be normalised"
        )
    if config.max_batch is not None and (program.most is None or config.max_batch < program.most):
        program = replace(program, most=config.max_batch)
    _require_room(program, spec)
    call = ProgramCall(
        program, spec, Normalise(config.mean, config.std, spec.shape[0], program.device)
    )
    call, end, beside_label = _with_output(call, output, config.num_classes)
    first_look(program.source, call.scores, spec)
    scores_NK = _look(call)
    require_class_order(program.source, scores_NK)
    if beside_label and output is None:
        require_of_class_1(program.source, scores_NK, call.output)
    form = settle_form(program.source, scores_NK, answers, end)
    classes = agreed_classes(
        config.num_classes,
        scores_NK.shape[1],
        f"the answers of {program.source} are for",
        program.source,
    )
    teacher = ProgramTeacher(call, classes, form)
    notes = [f"answers are {form} ({flag('teacher.answers')})"] if answers == "auto" else []
    if output is None and call.output not in ("0", "output"):
        notes.append(f"output {call.output} ({flag('teacher.output')})")
    teacher.info = replace(teacher.info, inferred=tuple(notes))
    return teacher


def _with_output(
    call: ProgramCall, wanted: str | None, classes: int | None
) -> tuple[ProgramCall, End | None, bool]:
    """The program asked for one output, that output's last operation, and if labels are beside
    it.
    """
    source = call.program.source
    x_BCHW = next(check_images(call.spec))
    shape = as_text(call.spec.shape)
    with blaming(f"{source}: does not take an image of shape {shape}", UserError, first_line):
        outputs, batch = call.every_output(x_BCHW)
    name = choose_output(source, outputs, batch, wanted, classes)
    ends = call.program.ends
    end = ends[list(outputs).index(name)] if len(ends) == len(outputs) else None
    others = [value for key, value in outputs.items() if key != name]
    return replace(call, output=name), end, any(map(holds_whole_numbers, others))


def _look(call: ProgramCall) -> Tensor:
    """Scores of check images, of fewer where the program is slow."""
    images = list(check_images(call.spec))
    at_once = min(call.program.least, call.program.most or call.program.least)
    scores = list[Tensor]()
    began = time.perf_counter()
    while images and (not scores or time.perf_counter() - began < LOOK_SECONDS):
        scores.append(call.scores(torch.cat(images[:at_once])))
        images = images[at_once:]
    scores_NK = torch.cat(scores)
    # some programs divide by the deviation of an image, which is zero for a plain colour
    known_N = scores_NK.isfinite().all(1)
    return scores_NK[known_N] if known_N.any() else scores_NK


def _require_room(program: Program, spec: ImageSpec) -> None:
    """UserError for a batch too large for memory: a file can state any size."""
    needed = program.least * spec.numel
    if needed > LARGEST_BATCH:
        raise UserError(
            f"{program.source}: takes {program.least:,} images of {as_text(spec.shape)} at once, "
            f"{4 * needed / 1e9:,.0f} GB; export it with a batch of any size"
        )


def _shape(program: Program, config: TeacherConfig) -> tuple[int, int, int]:
    """The image's C, H, W; a flagged shape must fit the sizes that the program fixes."""
    flagged = config.shape
    axes = program.axes
    if flagged is not None:
        if any(fixed not in (None, size) for size, fixed in zip(flagged, axes, strict=True)):
            fixed = f"{program.source} takes {as_text(axes)}"
            raise OptionError("teacher.shape", f"got {as_text(flagged)}, but {fixed}")
        return flagged
    channels, height, width = axes
    if channels is None or height is None or width is None:
        raise OptionError(
            "teacher.shape", f"{program.source} takes C,H,W = {as_text(axes)}; give all three"
        )
    return channels, height, width


def _levels(program: Program, config: TeacherConfig) -> int | None:
    if program.dtype != torch.uint8:
        return config.levels
    return agreed(
        "levels",
        "teacher.levels",
        config.levels,
        BYTES,
        f"the pixels of {program.source} are bytes, whose levels are",
        program.source,
    )
