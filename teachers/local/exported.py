"""Teachers that are programs which PyTorch saved whole: torch.export's .pt2, and TorchScript."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from dfme.config.imports import blaming
from dfme.config.settings import TeacherConfig
from dfme.errors import Ref, UserError, flag, say
from dfme.files import archive_entries, open_file
from dfme.teachers.local.answer_forms import End
from dfme.teachers.local.checks import first_line
from dfme.teachers.local.program import Program, ProgramTeacher, make_program_teacher
from dfme.teachers.options import Pt2Options, require_trust

LOGGER = logging.getLogger("dfme")

ARCHIVES = {
    "archive_format": f"a torch.export program; say {flag('teacher', 'pt2')}",
    "serialized_exported_program.json": f"a torch.export program; say {flag('teacher', 'pt2')}",
    "constants.pkl": f"a TorchScript archive; say {flag('teacher', 'torchscript')}",
    "data.pkl": f"a file of weights; say {flag('teacher.checkpoint')}",
}
"""What a zip archive is, by the name of a file that only such archives hold; the most specific
first.
"""

MAX_CODE = 100_000_000  # bytes to which the compressed code of a program may unpack

UNLIMITED = 2**31  # a batch limit of as many images is none

FARTHEST = 50  # operations that are passed on the way to the one that decides

ENDS: dict[str, End] = {
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "hardsigmoid": "sigmoid",
    "log_sigmoid": "log-sigmoid",
    "log_sigmoid_forward": "log-sigmoid",
    "linear": "unbounded",
    "addmm": "unbounded",
    "mm": "unbounded",
    "matmul": "unbounded",
    "conv2d": "unbounded",
    "convolution": "unbounded",
    "_convolution": "unbounded",
    "relu": "unbounded",
    "relu_": "unbounded",
}

KEEPING = frozenset(
    {
        "squeeze",
        "unsqueeze",
        "view",
        "reshape",
        "flatten",
        "to",
        "_to_copy",
        "clone",
        "contiguous",
        "detach",
        "detach_",
        "alias",
        "mean",
        "adaptive_avg_pool2d",
        "select",
        "slice",
        "dropout",
        "getitem",
    }
)
"""Operations after which a probability is still one, and a logit still a logit."""


def load_pt2(options: Pt2Options, config: TeacherConfig, device: torch.device) -> ProgramTeacher:
    """The teacher in a .pt2 file, answering logits, or probabilities where ``options.answers`` says
    so.

    Loading unpickles whatever the file holds, which can run any code: UserError without
    ``options.trust``. UserError also where the configuration contradicts the program, and for one
    that was exported in training mode.
    """
    require_trust(config, vars(options))
    path = _archive(options.program, "pt2")
    exported = _load_exported(path, device)
    image = _image(exported, path)
    if any(_trains(node) for node in exported.graph.nodes):
        raise UserError(f"{path}: was exported in training mode; export it again after eval()")
    channels, height, width = (size if isinstance(size, int) else None for size in image.shape[1:])
    least, most = _range(exported, image.shape[0])
    module = exported.module()
    program = Program(
        path.name,
        lambda x_BCHW, wanted: module(x_BCHW),
        (channels, height, width),
        image.dtype,
        least,
        most,
        device,
        options.precision,
        ends_of_export(exported),
    )
    return make_program_teacher(program, options.answers, options.output, config)


def load_torchscript(
    options: Pt2Options, config: TeacherConfig, device: torch.device
) -> ProgramTeacher:
    """Teacher in a TorchScript archive: logits, or probabilities if ``options.answers`` says so.

    An archive is a program, whose ``__setstate__`` methods run when it is loaded, and which can
    write any file (``torch.from_file``): UserError without ``options.trust``. It names no image
    shape, so the configuration must.
    """
    require_trust(config, vars(options))
    path = _archive(options.program, "torchscript")
    LOGGER.warning(
        "teacher: PyTorch has deprecated TorchScript; save %s by torch.export (.pt2)", path.name
    )
    failing = blaming(f"{path}: cannot be read as TorchScript", UserError, first_line)
    with failing, warnings.catch_warnings(action="ignore"):  # the line above says it already
        # the user says to trust it
        module = torch.jit.load(str(path), map_location=device).eval()  # noqa: TID251

    def run(x_BCHW: Tensor, wanted: str | None) -> object:
        # otherwise later calls run a fused program, which rounds differently from the first
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return module(x_BCHW)

    program = Program(
        path.name,
        run,
        dtype=_script_dtype(module),
        device=device,
        precision=options.precision,
        ends=ends_of_script(module),
    )
    return make_program_teacher(program, options.answers, options.output, config)


def _script_dtype(module: Any) -> torch.dtype:
    """The type of a TorchScript module's weights, which are constants in a frozen one."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter.dtype  # type: ignore[no-any-return]
    largest: Tensor | None = None
    graph = module.inlined_graph  # its nodes live as long as it does
    for node in graph.findAllNodes("prim::Constant"):
        if not node.hasAttribute("value") or node.kindOf("value") != "t":
            continue
        value: Tensor = node.t("value")
        if value.is_floating_point() and (largest is None or value.numel() > largest.numel()):
            largest = value
    return torch.float32 if largest is None else largest.dtype


def _archive(name: str, kind: str) -> Path:
    """The path of an archive of this kind. UserError for another file, with what it seems to be."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            say("{}: no such file; expected a program for {}", path, Ref("teacher", kind))
        )
    try:
        with open_file(path) as file:
            entries = archive_entries(file, path.stat().st_size, MAX_CODE)
        inside = {entry.rpartition("/")[2] for entry in entries}
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: is no archive, or is cut short: {first_line(error)}") from error
    content = next(
        (what for entry, what in ARCHIVES.items() if entry in inside), "an archive of another kind"
    )
    if not content.endswith(flag("teacher", kind)):
        raise UserError(
            say("{}: expected a program for {}, but it is {}", path, Ref("teacher", kind), content)
        )
    return path


def _load_exported(path: Path, device: torch.device) -> ExportedProgram:
    with blaming(f"{path}: cannot be read as a torch.export program", UserError, first_line):
        with _silent("torch.export", "torch.export.pt2_archive._package"), path.open("rb") as file:
            exported = torch.export.load(file)  # noqa: TID251 (the user says to trust it)
        if device.type == "cpu":
            return exported
        from torch.export.passes import move_to_device_pass

        return move_to_device_pass(exported, device)


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Switch these loggers off: they print a traceback for what is raised as well."""
    with ExitStack() as undo:
        for logger in map(logging.getLogger, names):
            undo.callback(setattr, logger, "disabled", logger.disabled)
            logger.disabled = True
        yield


def _image(exported: ExportedProgram, path: Path) -> Tensor:
    """The program's input, without its values. UserError for anything but one tensor (B, C, H,
    W).
    """
    names = exported.graph_signature.user_inputs
    inputs = (
        node for node in exported.graph.nodes if node.op == "placeholder" and node.name in names
    )
    values = [node.meta["val"] for node in inputs]
    if len(values) == 1 and isinstance(values[0], Tensor) and values[0].ndim == 4:
        return values[0]
    shapes = [str(tuple(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in values]
    takes = ", ".join(shapes) or "nothing"
    raise UserError(f"{path}: expected one input, images (B, C, H, W), but it takes {takes}")


def _range(exported: ExportedProgram, batch: Any) -> tuple[int, int | None]:
    """The least and most images in one call, None for no most; a batch size that was fixed is
    both.
    """
    if isinstance(batch, int):
        return batch, batch
    limits = exported.range_constraints.get(batch.node.expr)
    if limits is None:
        return 1, None
    return max(int(limits.lower), 1), int(limits.upper) if limits.upper < UNLIMITED else None


def _trains(node: fx.Node) -> bool:
    """True if an operation (dropout, batch normalisation) was recorded in training mode."""
    schema = getattr(node.target, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    values = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | dict(
        node.kwargs
    )
    return values.get("train") is True or values.get("training") is True


# The last operation of each output


def ends_of_export(exported: ExportedProgram) -> list[End | None]:
    """The kind of the last operation of each output, in their order."""
    named = {node.name: node for node in exported.graph.nodes}
    outputs = [name for name in exported.graph_signature.user_outputs if isinstance(name, str)]
    return [_end(named.get(name), _fx_kind, lambda node: node.args[0]) for name in outputs]


def ends_of_script(module: Any) -> list[End | None]:
    """The same of a TorchScript module; none where its graph branches or cannot be read."""
    try:
        outputs = list(module.inlined_graph.outputs())
        node = outputs[0].node() if len(outputs) == 1 else None
        if node is not None and node.kind() in ("prim::TupleConstruct", "prim::ListConstruct"):
            outputs = list(node.inputs())
        return [
            _end(value.node(), _script_kind, lambda node: next(node.inputs()).node())
            for value in outputs
        ]
    except (RuntimeError, AttributeError):
        return []


def _end(node: Any, kind_of: Callable[[Any], str], before: Callable[[Any], Any]) -> End | None:
    """The kind of the operation that decides the range of a value."""
    with suppress(IndexError, StopIteration):
        for _ in range(FARTHEST):
            kind = kind_of(node)
            if kind not in KEEPING:
                return ENDS.get(kind)
            node = before(node)
    return None


def _fx_kind(node: Any) -> str:
    """Name of a node's operation without library and overload; empty for another node."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).partition("::")[2]
    return getattr(node.target, "__name__", "")


def _script_kind(node: Any) -> str:
    library, _, name = str(node.kind()).partition("::")
    return name if library == "aten" else ""
