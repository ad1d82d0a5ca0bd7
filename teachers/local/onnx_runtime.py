"""A teacher that is an ONNX model, run by onnxruntime."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dfme.config.messages import did_you_mean
from dfme.config.settings import TeacherConfig
from dfme.errors import OptionError, UserError, flag, say
from dfme.teachers.local.checks import first_line, import_extra
from dfme.teachers.local.onnx_graph import ends_of
from dfme.teachers.local.program import Axes, Program, ProgramTeacher, make_program_teacher
from dfme.teachers.options import OnnxOptions

LOGGER = logging.getLogger("dfme")

DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(double)": torch.float64,
    "tensor(uint8)": torch.uint8,
}

# older onnxruntimes read a model's weights from any file that the model names
OLDEST = (1, 24)
CHANNELS = ((1, 3), (2, 4))  # by which the order of the axes is recognised, the most usual first
CUDA = "CUDAExecutionProvider"

RANGES = {
    "NominalRange_0_255": (0.0, 255.0),
    "Normalized_0_1": (0.0, 1.0),
    "Normalized_1_1": (-1.0, 1.0),
    "NominalRange_16_235": (16.0, 235.0),
}
"""Lowest and highest pixel by what ONNX's metadata of images say."""


def load_onnx(options: OnnxOptions, config: TeacherConfig, device: torch.device) -> ProgramTeacher:
    """The teacher in an .onnx file, answering logits, or probabilities where ``options.answers``
    says so.

    UserError where the configuration contradicts the model, naming both. A batch size that the
    model fixes is its ``max_batch``. Images lie on the CPU; on a CUDA ``device`` the model runs
    there where onnxruntime can.
    """
    runtime = import_extra("onnxruntime")
    path = Path(options.model).expanduser()
    session = _open(runtime, path, device)
    image = _image_input(session.get_inputs(), options.input, path)
    others = (entry for entry in session.get_inputs() if entry.name != image.name)
    if needed := ", ".join(entry.name for entry in others if not entry.type.startswith("optional")):
        raise UserError(
            f"{path}: beside {image.name} it needs {needed}; export it with those as constants"
        )
    outputs = {output.name: output.type for output in session.get_outputs()}
    _require_scores(outputs, options.output, path)
    batch, axes = _batch_and_axes(image, path)
    nchw = _is_nchw(options.layout, config.shape, axes)

    metadata = session.get_modelmeta().custom_metadata_map
    flipped = metadata.get("Image.BitmapPixelFormat") == "Bgr8"

    def run(x_BCHW: Tensor, wanted: str | None) -> dict[str, object]:
        x_BCHW = x_BCHW.flip(1) if flipped else x_BCHW
        x = x_BCHW if nchw else x_BCHW.permute(0, 2, 3, 1)
        tensors = [name for name, kind in outputs.items() if kind.startswith("tensor(")]
        names = [wanted] if wanted else tensors
        arrays = session.run(names, {image.name: x.contiguous().numpy()})
        answers = {name: _as_tensor(array) for name, array in zip(names, arrays, strict=True)}
        return answers if wanted else {**outputs, **answers}

    chw = axes if nchw else (axes[2], axes[0], axes[1])
    ends = ends_of(path)
    program = Program(
        path.name,
        run,
        chw,
        DTYPES[image.type],
        batch or 1,
        batch,
        ends=[ends.get(name) for name in outputs],
    )
    scaled, notes = _scaled(config, metadata, DTYPES[image.type])
    teacher = make_program_teacher(program, options.answers, options.output, scaled)
    notes += ["channels are put in the order BGR, as its metadata say"] if flipped else []
    teacher.info = replace(teacher.info, inferred=(*teacher.info.inferred, *notes))
    return teacher


def _scaled(
    config: TeacherConfig, metadata: Mapping[str, str], dtype: torch.dtype
) -> tuple[TeacherConfig, list[str]]:
    """The configuration with the scale of pixels that the metadata name, unless it has one; a
    line.
    """
    named = RANGES.get(metadata.get("Image.NominalPixelRange", ""))
    if named is None or config.mean is not None or config.std is not None or dtype == torch.uint8:
        return config, []
    low, high = config.bounds or (0.0, 1.0)
    if named == (low, high):
        return config, []
    std = (high - low) / (named[1] - named[0])
    line = (
        f"pixels from {named[0]:g} to {named[1]:g}, as its metadata say ({flag('teacher.mean')}, "
        f"{flag('teacher.std')})"
    )
    return replace(config, mean=(low - named[0] * std,), std=(std,)), [line]


def _require_scores(outputs: Mapping[str, str], wanted: str | None, path: Path) -> None:
    """UserError where the wanted output, or every one, holds no scores."""
    scores = [name for name, kind in outputs.items() if kind in DTYPES]
    there = ", ".join(scores) or "none of that kind"
    if wanted is not None and wanted in outputs and wanted not in scores:
        raise UserError(
            f"{path}: output {wanted} holds no scores but {outputs[wanted]}; there is {there}"
        )
    if not scores:
        kinds = ", ".join(f"{name} {kind}" for name, kind in outputs.items())
        zipped = "; convert it with zipmap off" if "map(" in kinds else ""
        raise UserError(f"{path}: expected an output of floating-point scores, got {kinds}{zipped}")


def _as_tensor(array: object) -> object:
    """An array of numbers as a tensor; anything else by its type."""
    try:
        return torch.as_tensor(array)
    except (TypeError, RuntimeError):
        return f"{getattr(array, 'dtype', type(array).__name__)}"


def _open(runtime: ModuleType, path: Path, device: torch.device) -> Any:
    """An onnxruntime session. UserError where the file is no model that this onnxruntime runs."""
    version = tuple(int(part) for part in re.findall(r"\d+", runtime.__version__)[:2])
    if version < OLDEST:
        raise UserError(
            say(
                "{teacher:onnx}: expected onnxruntime {} or later; pip install -U onnxruntime",
                ".".join(map(str, OLDEST)),
            )
        )
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected an .onnx model")
    try:
        return runtime.InferenceSession(
            str(path), _settings(runtime), providers=_providers(runtime, device)
        )
    except Exception as error:  # its exceptions share no base of their own
        raise UserError(f"{path}: {_reason(error, runtime.__version__)}") from error


def _settings(runtime: ModuleType) -> Any:
    """Reproducible session with torch's number of threads, not spinning; only errors raise."""
    settings = runtime.SessionOptions()
    settings.log_severity_level = 4
    settings.use_deterministic_compute = True
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def _providers(runtime: ModuleType, device: torch.device) -> list[Any]:
    """Where the model may run, best first; on CUDA in IEEE fp32, by algorithms that no timing
    picks.
    """
    if device.type != "cuda":
        return ["CPUExecutionProvider"]
    if CUDA not in runtime.get_available_providers():
        LOGGER.warning(
            "teacher: onnxruntime has no CUDA and takes the CPU; pip install onnxruntime-gpu"
        )
        return ["CPUExecutionProvider"]
    exact = {"device_id": device.index or 0, "use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    return [(CUDA, exact), "CPUExecutionProvider"]


def _reason(error: Exception, version: str) -> str:
    """Reason that onnxruntime gives, without its own source code's whereabouts."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?", "", text)
    text = re.sub(r"^/onnxruntime_src/.*?\) (?=[A-Z])", "", text)
    return f"onnxruntime {version} cannot run it: {first_line(ValueError(text))}"


def _image_input(inputs: Sequence[Any], name: str | None, path: Path) -> Any:
    """The input of this name, or the first."""
    if name is None:
        return inputs[0]
    by_name = {entry.name: entry for entry in inputs}
    if name not in by_name:
        hint = did_you_mean(name, by_name)
        raise OptionError("teacher.input", f"{path} has {', '.join(by_name)}, got {name!r}{hint}")
    return by_name[name]


def _batch_and_axes(image: Any, path: Path) -> tuple[int | None, Axes]:
    """The batch, and the three sizes of an image in the model's own order, None for those that are
    free.

    UserError for an input that is no image.
    """
    if image.type not in DTYPES or len(image.shape) != 4:
        expected = f"expected images, four axes of {', '.join(kind[7:-1] for kind in DTYPES)}"
        raise UserError(f"{path}: its input {image.name} is {image.type} {image.shape}; {expected}")
    batch, *axes = (size if isinstance(size, int) and size > 0 else None for size in image.shape)
    return batch, (axes[0], axes[1], axes[2])


def _is_nchw(layout: str, flagged: tuple[int, int, int] | None, axes: Axes) -> bool:
    """True if channels come first: by the option or the sizes; if both fit, as usual in ONNX."""
    if layout != "auto":
        return layout == "nchw"
    first = (axes[0], axes[1], axes[2])
    last = (axes[2], axes[0], axes[1])
    if flagged is not None:
        return _fits(flagged, first) or not _fits(flagged, last)
    return next(
        (first[0] in usual for usual in CHANNELS if first[0] in usual or last[0] in usual), True
    )


def _fits(shape: tuple[int, int, int], order: Axes) -> bool:
    return all(size in (None, wanted) for wanted, size in zip(shape, order, strict=True))
