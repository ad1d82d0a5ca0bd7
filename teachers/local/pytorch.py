"""A teacher that is a PyTorch network on this machine."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from dfme.compute.device import arithmetic
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, flag, say
from dfme.nets import RESNETS, builder, check_net
from dfme.nets.files import Guess, differences, infer_net, on_meta_device
from dfme.nets.state_files import State, first_words, some
from dfme.nets.torchvision_nets import TRANSFORMING, current_names
from dfme.spec import ImageSpec, Shape, TeacherInfo
from dfme.teachers.label_modes import LOGITS, as_classes
from dfme.teachers.local.checks import agreed, agreed_classes, flagged_scale
from dfme.teachers.local.names import network_part
from dfme.teachers.local.weights import SCALING, Card, load_into, read_checkpoint
from dfme.teachers.options import TeacherPrecision, TorchOptions

LOGGER = logging.getLogger("dfme")

SAYS = "the weights are for"


class Normalise:
    """(x - mean) / std, with one number per channel or one for all; the identity without either.

    UserError for any other count, for a deviation that is not positive, and for one given without
    the other.
    """

    def __init__(
        self,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        channels: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if (mean is None) != (std is None):
            raise UserError(f"mean and std: expected both or neither, got mean={mean}, std={std}")
        self._constants: tuple[Tensor, Tensor] | None = None
        if mean is None or std is None:
            return
        if not {len(mean), len(std)} <= {1, channels}:
            raise UserError(
                f"mean and std: expected {channels} numbers each, got mean={mean}, std={std}"
            )
        if min(std) <= 0:
            raise UserError(f"std: expected positive numbers, got {std}")
        mean_C11, std_C11 = (
            torch.tensor(values, device=device).view(-1, 1, 1) for values in (mean, std)
        )
        self._constants = (mean_C11, std_C11)

    def __call__(self, x_BCHW: Tensor) -> Tensor:
        if self._constants is None:
            return x_BCHW
        mean_C11, std_C11 = self._constants
        return (x_BCHW - mean_C11) / std_C11


class TorchTeacher:
    """A network from images to logits, behind the same call as every teacher.

    It moves the network to ``device``, on CUDA channels-last, and keeps it in eval mode; answers
    lie there, without autograd, in fp32. ``precision`` is what they are computed in, whatever the
    caller multiplies in (``LocalOptions``). A network with one output is a binary classifier that
    gives the logit of class 1.
    """

    arch: str | None = None
    """Its architecture's name, where it was loaded from a file."""

    def __init__(
        self,
        module: nn.Module,
        spec: ImageSpec,
        num_classes: int,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        device: torch.device | str = "cpu",
        max_batch: int | None = None,
        precision: TeacherPrecision = "auto",
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = LOGITS
        self.device = torch.device(device)
        self.precision = precision
        self.network = module.to(self.device).eval()
        # only weights of convolutions have the four axes that this format is about
        if self.device.type == "cuda":
            self.network.to(memory_format=torch.channels_last)
        self._normalise = Normalise(mean, std, spec.shape[0], self.device)
        self.info = TeacherInfo(str(self.device), max_batch, network=self.network)

    def __call__(self, images: Tensor, /) -> Tensor:
        with torch.no_grad(), arithmetic(self.precision, self.device):
            logits_BK = self.logits(images)
            return logits_BK.float() if self.precision == "bf16" else logits_BK

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """The network's scores (B, K), normalised, with autograd: for the owner alone."""
        if self.network.training:
            self.network.eval()
        return as_classes(
            self.network(self._normalise(x_BCHW.to(self.device))), self.num_classes, LOGITS
        )


def load_torch(options: TorchOptions, config: TeacherConfig, device: torch.device) -> TorchTeacher:
    """The teacher in a weights file, answering logits.

    Architecture, image shape and classes come from the configuration, the file's metadata or the
    weights themselves; UserError where two of them disagree, naming both, or where none says.
    ``mean``, ``std`` and ``bounds`` of the configuration replace the file's; without any, nothing
    is normalised and pixels lie within 0 and 1.
    """
    if options.arch is not None:
        check_net(options.arch)
    weights = read_checkpoint(options.checkpoint, options.entry)
    card = weights.card
    state, guess, which = _guessed(options.checkpoint, weights.state, options.arch or card.arch)
    arch = options.arch or card.arch or (guess.arch if guess else None)
    if arch is None:
        raise UserError(
            say(
                "{}: its architecture cannot be told from its {} tensors, whose names begin with "
                "{}; give {teacher.arch}",
                options.checkpoint,
                len(state),
                some(first_words(state)),
            )
        )
    # a file with our card was written by us, who leave the input as it is
    _require_transform(arch, options.transform_input, ours=card.arch is not None)
    outputs = card.num_classes or (guess.num_classes if guess else None)
    num_classes = agreed_classes(config.num_classes, outputs, SAYS, "the weights")
    shape = _shape(arch, config, card, guess, state)
    if guess and guess.num_classes == 1:
        counts = [1]
    else:  # of two classes, one output where the weights are for a lone one
        counts = [2, 1] if num_classes == 2 and guess is None else [num_classes]
    builds = [partial(_empty_net, arch, shape, count) for count in counts]
    module, part = _loaded(options.checkpoint, arch, builds, guess, state)
    if options.transform_input is not None:
        module.transform_input = options.transform_input  # type: ignore[assignment]
    mean, std = flagged_scale(config) or (card.mean, card.std)
    spec = ImageSpec(shape, config.bounds or card.bounds or (0.0, 1.0), config.levels)
    teacher = TorchTeacher(
        module, spec, num_classes, mean, std, device, config.max_batch, options.precision
    )
    teacher.arch = arch
    if note := weights.note or which or part:
        LOGGER.warning("teacher: %s", note)
    if note := _unused(weights.unused, options, config):
        LOGGER.warning("teacher: %s: %s", options.checkpoint, note)
    teacher.info = replace(
        teacher.info,
        class_names=card.class_names,
        inferred=tuple(_inferred(teacher, arch, options, config, card)),
    )
    return teacher


def _loaded(
    path: str,
    arch: str,
    builds: Sequence[Callable[[], nn.Module]],
    guess: Guess | None,
    state: State,
) -> tuple[nn.Module, str]:
    """The first network that the weights fit, loaded, and which part of the file it is."""
    # no memory for a network of the size that a file claims, before it is known to fit
    outlines = [(on_meta_device(build) or build()).state_dict() for build in builds]
    which = ""
    source = f"{path} as {arch}: the weights"
    if guess is None or guess.arch != arch:
        state, which = _fitting(path, state, arch, outlines)
    if guess and guess.arch != arch:
        source = f"{path} as {arch} (they look like {guess.arch}): the weights"
    problems = [differences(outline, state) for outline in outlines]
    if all(problems):
        raise UserError(f"{source} do not fit the network: {problems[0]}")
    module = builds[problems.index("")]()
    load_into(module, state, source=source)
    return module, which


def _inferred(
    teacher: TorchTeacher, arch: str, options: TorchOptions, config: TeacherConfig, card: Card
) -> Iterator[str]:
    """Lines on what was inferred, since neither a flag nor the file's card says it."""
    if not (options.arch or card.arch):
        yield f"architecture {arch} ({flag('teacher.arch')})"
    if not (config.num_classes or card.num_classes):
        yield f"{teacher.num_classes} classes ({flag('teacher.num_classes')})"
    if not (config.shape or card.shape):
        yield f"images {'x'.join(map(str, teacher.spec.shape))} ({flag('teacher.shape')})"
    if stated := ", ".join(_stated(card, config)):
        yield f"{stated} as the file's metadata say"
    if card.arch is None and config.mean is None:
        yield (
            f"no normalisation: the network gets the pixels as they are ({flag('teacher.mean')}, "
            f"{flag('teacher.std')})"
        )


def _stated(card: Card, config: TeacherConfig) -> Iterator[str]:
    """The scaling of pixels that the file's metadata state and no flag replaces."""
    changes = any(card.mean or ()) or any(number != 1 for number in card.std or ())
    if flagged_scale(config) is None and changes:
        yield f"mean {_joined(card.mean)} ({flag('teacher.mean')})"
        yield f"std {_joined(card.std)} ({flag('teacher.std')})"
    if config.bounds is None and card.bounds not in (None, (0.0, 1.0)):
        yield f"bounds {_joined(card.bounds)} ({flag('teacher.bounds')})"


def _joined(numbers: Sequence[float] | None) -> str:
    return ",".join(f"{number:g}" for number in numbers or ()) or "none"


def _unused(names: Sequence[str], options: TorchOptions, config: TeacherConfig) -> str:
    """A line on metadata of others that are not used and that no flag replaces; maybe empty."""
    idle = [name for name in names if getattr(config, name, None) is None]
    if options.arch is not None and "arch" in idle:
        idle.remove("arch")
    if not idle:
        return ""
    wanted = [flag(f"teacher.{name}") for name in idle if name in SCALING]
    remedy = f"; if the network needs them, give {' and '.join(wanted)}" if wanted else ""
    return f"not used of its metadata, which dfme did not write: {', '.join(idle)}{remedy}"


def _guessed(path: str, state: State, arch: str | None) -> tuple[State, Guess | None, str]:
    """The part of a file that is a network (of ``arch``, if given), its guess, and a line on it."""

    def is_it(part: State) -> bool:
        guess = infer_net(part)
        return guess is not None and arch in (None, guess.arch)

    with _naming(path):
        part, which = network_part(state, is_it)
    if part is None:
        return state, infer_net(state), ""
    return part, infer_net(part), which


def _fitting(
    path: str, state: State, arch: str, outlines: list[dict[str, Tensor]]
) -> tuple[State, str]:
    """The part of a file that fits the network, or all of it, and a line on which it is."""

    def fits(part: State) -> bool:
        current = current_names(arch, part)
        return any(not differences(outline, current) for outline in outlines)

    with _naming(path):
        part, which = network_part(state, fits)
    return current_names(arch, state if part is None else part), which


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Put the file before what is wrong with it."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message, about=path) from error


def _require_transform(arch: str, transform_input: bool | None, ours: bool) -> None:
    """UserError where it is unknown what a network does to its input, or said of another one."""
    key = "teacher.transform_input"
    if arch not in TRANSFORMING and transform_input is not None:
        raise OptionError(key, f"expected for {' or '.join(TRANSFORMING)} alone, got it for {arch}")
    if arch in TRANSFORMING and transform_input is None and not ours:
        raise OptionError(
            key,
            f"weights of {arch} do not tell whether it scales its input again; say true if it was "
            "made from torchvision's weights (weights=...), false if with weights=None",
        )


def _empty_net(arch: str, shape: tuple[int, int, int], outputs: int) -> nn.Module:
    """The network to load into; the caller's random state is as it was."""
    check_net(arch)
    with torch.random.fork_rng(devices=[]):
        return builder(arch)(shape, outputs)


def _shape(
    arch: str, config: TeacherConfig, card: Card, guess: Guess | None, state: State
) -> Shape:
    """The image's C, H, W, by flag, by the card or by the weights."""
    flagged = config.shape
    stated = card.shape
    # a flagged shape is taken as it is here; the weights are held against it later
    if stated is None and (guess or flagged is None):
        depths = (weight.shape[1] for weight in state.values() if weight.ndim == 4)
        channels = guess.channels if guess else next(depths, None)
        usual = (32, 32) if arch in RESNETS else None  # whose weights are nearly always for it
        size = flagged[1:] if flagged else usual
        stated = (channels, *size) if channels and size else None
    return agreed(
        "image shape",
        "teacher.shape",
        flagged,
        stated,
        SAYS,
        f"the weights of {arch}, which fit images of many sizes",
    )
