"""Teachers that are programs on this machine: images in, scores out, whatever runs inside."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dfme.config.imports import blaming
from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.precision import arithmetic
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.teachers.label_modes import as_classes
from dfme.teachers.local.checks import agreed, agreed_classes, as_text, first_line
from dfme.teachers.local.pytorch import Normalise
from dfme.teachers.options import TeacherPrecision

Axes = tuple[int | None, int | None, int | None]

CPU = torch.device("cpu")

BYTES = 256  # levels of a program that takes 8-bit pixels
SUM_TOLERANCE = 2e-3  # how far from one a row of probabilities may sum, besides what the dtype rounds off


@dataclass(frozen=True)
class Program:
    """Facts that a program's file tells before it is asked anything.

    ``run`` takes images (B, C, H, W) of ``dtype`` on ``device``, from ``least`` to ``most`` of them, and
    answers scores (B, K). ``axes`` are C, H and W, None where any size goes. ``source`` names it in messages.
    ``precision``: what PyTorch runs it in, if PyTorch does.
    """

    source: str
    run: Callable[[Tensor], object]
    axes: Axes = (None, None, None)
    dtype: torch.dtype = torch.float32
    least: int = 1
    most: int | None = None
    device: torch.device = CPU
    precision: TeacherPrecision = "auto"


class ProgramTeacher:
    """A program behind the same call as every teacher, answering logits or probabilities.

    A batch that is too small for the program is filled up with copies of its last image, whose answers are
    dropped. Pixels of a program that takes bytes are the levels of ``spec``, from 0 at its lower bound to
    255.
    """

    def __init__(
        self, program: Program, spec: ImageSpec, num_classes: int, mode: LabelMode, normalise: Normalise
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = mode
        self.info = TeacherInfo(str(program.device), program.most)
        self._program = program
        self._normalise = normalise

    def __call__(self, images: Tensor, /) -> Tensor:
        return as_classes(self.raw(images).float(), self.num_classes, self.label_mode)

    def raw(self, images: Tensor) -> Tensor:
        """The program's answer, one row per image. UserError unless it is such a tensor."""
        batch = len(images)
        least = self._program.least
        with torch.no_grad(), arithmetic(self._program.precision, self._program.device):
            x_BCHW = images.detach().to(self._program.device)
            as_bytes = self._program.dtype == torch.uint8
            x_BCHW = self.spec.encode(x_BCHW) if as_bytes else self._normalise(x_BCHW).to(self._program.dtype)
            if batch < least:
                x_BCHW = torch.cat([x_BCHW, x_BCHW[-1:].expand(least - batch, -1, -1, -1)])
            scores_BK = self._program.run(x_BCHW)
        if isinstance(scores_BK, Tensor) and scores_BK.ndim == 1 and scores_BK.is_floating_point():
            scores_BK = scores_BK[:, None]  # a binary model's lone output, without its axis
        got = tuple(scores_BK.shape) if isinstance(scores_BK, Tensor) else f"a {type(scores_BK).__name__}"
        if isinstance(scores_BK, Tensor) and len(got) == 2 and got[0] == len(x_BCHW) and got[1]:
            return scores_BK[:batch]
        raise UserError(f"{self._program.source}: expected scores ({len(x_BCHW)}, classes), got {got}")


def make_program_teacher(
    program: Program, answers: Literal["logits", "probabilities"], config: TeacherConfig
) -> ProgramTeacher:
    """The teacher that a program is; its number of classes is counted in its answer to a random image.

    UserError where the configuration contradicts the program, naming both, where nothing tells the image's
    shape, and where the program's answers are not what ``answers`` says.
    """
    spec = ImageSpec(_shape(program, config), config.bounds or (0.0, 1.0), _levels(program, config))
    if program.dtype == torch.uint8 and (config.mean is not None or config.std is not None):
        raise UserError(f"--teacher.mean: {program.source} takes 8-bit pixels, which cannot be normalised")
    if config.max_batch is not None and (program.most is None or config.max_batch < program.most):
        program = replace(program, most=config.max_batch)
    normalise = Normalise(config.mean, config.std, spec.shape[0], program.device)
    uncounted = ProgramTeacher(program, spec, 0, LabelMode(answers), normalise)
    scores_BK = first_look(program.source, uncounted.raw, spec)
    _require_kind(program.source, scores_BK, answers)
    says = f"the answers of {program.source} are for"
    classes = agreed_classes(config.num_classes, scores_BK.shape[1], says, program.source)
    return ProgramTeacher(program, spec, classes, LabelMode(answers), normalise)


def first_look(source: str, ask: Callable[[Tensor], Tensor], spec: ImageSpec) -> Tensor:
    """Scores (1, K) for one random image, asked twice, so that faults show before any cost.

    UserError where the model fails, answers anything but finite scores, or answers the same image
    differently.
    """
    low, high = spec.bounds
    image_BCHW = torch.rand(1, *spec.shape, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    with blaming(f"{source}: does not take an image of shape {as_text(spec.shape)}", UserError, first_line):
        first_BK = ask(spec.quantise(image_BCHW))
        second_BK = ask(spec.quantise(image_BCHW))
    if not first_BK.is_floating_point():
        raise UserError(f"{source}: expected scores as floating-point numbers, got {first_BK.dtype}")
    if not first_BK.isfinite().all():
        raise UserError(f"{source}: answers NaN or infinite values to a random image")
    if not torch.allclose(first_BK.float(), second_BK.float(), rtol=1e-2, atol=1e-3):
        raise UserError(f"{source}: answers the same image differently each time; save it after eval()")
    return first_BK


def _shape(program: Program, config: TeacherConfig) -> tuple[int, int, int]:
    """The image's C, H, W; what is given must fit what is fixed."""
    given = config.shape
    axes = program.axes
    if given is not None:
        if any(fixed not in (None, size) for size, fixed in zip(given, axes, strict=True)):
            fixed = f"{program.source} takes {as_text(axes)}"
            raise UserError(f"--teacher.shape: got {as_text(given)}, but {fixed}")
        return given
    channels, height, width = axes
    if channels is None or height is None or width is None:
        raise UserError(f"--teacher.shape: {program.source} takes C,H,W = {as_text(axes)}; give all three")
    return channels, height, width


def _levels(program: Program, config: TeacherConfig) -> int | None:
    if program.dtype != torch.uint8:
        return config.levels
    says = f"the pixels of {program.source} are bytes, whose levels are"
    return agreed("levels", "--teacher.levels", config.levels, BYTES, says, program.source)


def _require_kind(source: str, scores_BK: Tensor, answers: str) -> None:
    """UserError if probabilities are taken for logits, which hides most, or the reverse."""
    tolerance = SUM_TOLERANCE + torch.finfo(scores_BK.dtype).eps * scores_BK.shape[1] ** 0.5
    scores_BK = scores_BK.double()
    sums = (scores_BK.sum(1) - 1).abs() <= tolerance if scores_BK.shape[1] > 1 else scores_BK[:, 0] <= 1
    probabilities = bool((scores_BK >= -tolerance).all() and sums.all())
    if answers == "probabilities" and not probabilities:
        raise UserError(f"{source}: its answers are no probabilities; say --teacher.answers logits")
    if answers == "logits" and probabilities and scores_BK.shape[1] > 1:
        raise UserError(f"{source}: its answers sum to one; say --teacher.answers probabilities")
