"""The student's file: weights with all that is needed to use them without the run that made them.

``export`` makes it a program that other software runs: ONNX, or torch.export's .pt2.
"""

import importlib
import io
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dfme.compute.device import ieee_fp32
from dfme.config.imports import find_target
from dfme.config.yaml_files import load_yaml
from dfme.errors import DfmeError, OptionError, Ref, UserError, say
from dfme.files import replacing
from dfme.nets import build_net, find_net, is_own
from dfme.nets.files import on_meta_device, save_module, state_dict_problems
from dfme.spec import ImageSpec

if TYPE_CHECKING:
    from dfme.nets.input_form import InputForm, Origin

UNREADABLE = (  # what reading a file that is no student's can raise
    UserError,
    SafetensorError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
NO_STUDENT = "expected the student.safetensors of a run, but it is not"


def save_student(path: Path, net: nn.Module, arch: str, spec: ImageSpec, num_classes: int) -> None:
    """Write weights as safetensors, whole or not at all, with architecture, image spec, classes."""
    save_module(path, net, described(arch, spec, num_classes) | published_metadata(net))


def described(arch: str, spec: ImageSpec, num_classes: int) -> dict[str, str]:
    """The metadata of a student's file."""
    return {
        "arch": arch,
        "shape": json.dumps(spec.shape),
        "bounds": json.dumps(spec.bounds),
        "levels": json.dumps(spec.levels),
        "num_classes": str(num_classes),
    }


WEIGHTS = "weights"
"""The key of what is said, as JSON, of the public weights that a student started from."""

MAX_SEEN = 4_096  # pixels of a side that a backbone sees


def published_metadata(net: nn.Module) -> dict[str, str]:
    """The metadata with which a student's backbone is built again; none of another net."""
    if not hasattr(net, "origin"):
        return {}
    from dfme.nets.input_form import Origin, published_facts

    origin = net.origin
    facts = published_facts(net)
    if facts is None or not isinstance(origin, Origin):
        return {}
    return {WEIGHTS: json.dumps(facts | {"config": origin.config}, sort_keys=True)}


def student_weights(net: nn.Module) -> dict[str, Any]:
    """The entry of summary.json on the public weights that a student started from, if any."""
    if not hasattr(net, "origin"):
        return {}
    from dfme.nets.input_form import published_facts

    facts = published_facts(net)
    return {} if facts is None else {"student_weights": facts}


def _published(text: str) -> tuple["Origin", "InputForm"]:
    """The public weights and the form of images in a student's metadata. UserError for nonsense."""
    facts = json.loads(text)
    height, width = (int(side) for side in facts["size"])
    mean, std = (tuple(float(value) for value in facts[name]) for name in ("mean", "std"))
    fine = 0 < height <= MAX_SEEN and 0 < width <= MAX_SEEN
    scale = (*mean, *std, *(1 / value for value in std))
    if not fine or len(mean) != 3 or len(std) != 3 or not all(map(math.isfinite, scale)):
        raise UserError(f"its backbone's images make no sense: {text[:100]}")
    from dfme.nets.input_form import InputForm, Origin

    names = ("arch", "name", "digest", "config")
    return Origin(*(str(facts[name]) for name in names)), InputForm((height, width), mean, std)


def _build(facts: Mapping[str, str], spec: ImageSpec, num_classes: int, own: Any) -> nn.Module:
    """The network of a student's file, with fresh weights."""
    if WEIGHTS not in facts or own is not None:
        return build_net(facts["arch"], spec.shape, num_classes, own)
    from dfme.nets.public import empty_net

    origin, form = _published(facts[WEIGHTS])
    return empty_net(origin, spec, num_classes, form)


def student_facts(path: str | Path) -> tuple[str, ImageSpec, int]:
    """Architecture, images and classes of a student by its file or its run directory; no network is
    made.

    Raises UserError for a file that is missing, damaged, or not a student's.
    """
    path = _weights(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the student.safetensors of a run")
    try:
        facts = _metadata(path)
        shape, bounds = (tuple(json.loads(facts[name])) for name in ("shape", "bounds"))
        spec = ImageSpec(shape, bounds, json.loads(facts["levels"]))
        return facts["arch"], spec, int(facts["num_classes"])
    except UNREADABLE as error:
        raise UserError(f"{path}: {NO_STUDENT}: {error}") from error


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def load_student(path: str | Path, arch: Callable[..., Any] | str | None = None) -> nn.Module:
    """A student from its file or run, in eval mode, on the CPU: images within bounds to logits.

    Its ``spec`` (ImageSpec), ``num_classes`` and ``arch`` are attributes. ``arch`` makes a custom
    network, or is its ``module:Net``: what the file alone names is not imported. Raises
    UserError for a file that is missing, damaged, or not a student's.
    """
    path, (name, spec, num_classes) = _weights(path), student_facts(path)
    if is_own(name) and arch is None:
        raise UserError(
            f"{path}: its network is {name}, and no file alone has a module imported: in Python, "
            "say "
            "dfme.load_student(path, arch=Net); to a command, the run's config.yaml beside the "
            "file says it"
        )
    try:
        with safe_open(path, framework="pt") as file:
            # no mapping
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        network = find_target(arch, "arch") if isinstance(arch, str) else arch
        build = partial(_build, _metadata(path), spec, num_classes, network)
        if network is None and (outline := on_meta_device(build)) is not None:
            # no memory for the size that a file claims, before it is known to fit
            _require_fit(outline, name, state)
        with torch.random.fork_rng(devices=[]):
            net = build()
        _require_fit(net, name, state)
    except UNREADABLE as error:
        what = NO_STUDENT if arch is None else f"its network is {name}"
        raise UserError(f"{path}: {what}: {error}") from error
    net.load_state_dict(state, strict=False)
    net.spec = spec  # type: ignore[assignment]
    net.num_classes = num_classes  # type: ignore[assignment]
    net.arch = name  # type: ignore[assignment]
    return net.eval()


def load_student_of_run(weights: Path) -> nn.Module:
    """The student of a file; a user's network is the one named in config.yaml beside it."""
    config = weights.parent / "config.yaml"
    (name, _, _) = student_facts(weights)
    named = (
        load_yaml(config, own=True).get("student") if is_own(name) and config.is_file() else None
    )
    return load_student(
        weights, find_net(str(named.get("arch"))) if isinstance(named, dict) else None
    )


def _weights(path: str | Path) -> Path:
    return Path(path) / "student.safetensors" if Path(path).is_dir() else Path(path)


def _require_fit(net: nn.Module, arch: str, state: dict[str, Tensor]) -> None:
    if problems := state_dict_problems(net, state):
        raise UserError(f"its weights do not fit {arch}: {problems}")


IMAGES = 64  # random ones, on which the file is compared with the student


def export(student: Path, form: Literal["onnx", "pt2"], out: Path) -> dict[str, str]:
    """Write the student to ``out``, for any batch size, once checked against it; rows to show.

    Raises UserError for no student, a package that is missing, or a file that exists already, and
    DfmeError for a network that cannot be exported, or that answers something else then.
    """
    if out.exists() or not out.absolute().parent.is_dir():
        raise OptionError("out", "expected a new file in a folder that exists", got=repr(str(out)))
    try:
        for package in ("onnx", "onnxscript") if form == "onnx" else ():
            importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            say("{format:onnx}: needs the package {}; pip install onnx onnxscript", package)
        ) from error
    net = load_student_of_run(student)
    spec = net.spec
    classes = net.num_classes
    assert isinstance(spec, ImageSpec)
    low, high = spec.bounds
    random = torch.rand(IMAGES, *spec.shape, generator=torch.Generator().manual_seed(0))
    images_BCHW = random * (high - low) + low
    shape = ", ".join(map(str, spec.shape))
    within = f"within {low:g} and {high:g}"
    rows = {
        "file": str(out),
        "input": f"images: float32 (any number, {shape}) {within}",
        "output": f"scores: float32 (any number, {classes}), before softmax",
    }
    data = _program(
        net,
        form,
        images_BCHW[:2],
        described(str(net.arch), spec, int(str(classes))) | published_metadata(net) | rows,
    )
    with torch.no_grad(), ieee_fp32():
        verified = _verified(net, data, form, images_BCHW)
    with replacing(out) as file:
        file.write(data)
    return rows | {"verified": verified}


def _program(net: nn.Module, form: str, example: Tensor, metadata: dict[str, str]) -> bytes:
    try:
        program = torch.export.export(
            net, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
        if form == "pt2":
            held = io.BytesIO()
            torch.export.save(program, held, extra_files=metadata)
            return held.getvalue()
        names: dict[str, Any] = {"input_names": ["images"], "output_names": ["scores"]}
        onnx = torch.onnx.export(program, dynamo=True, verbose=False, **names)
        assert onnx is not None
        onnx.model.metadata_props.update(metadata)
        data: bytes = onnx.model_proto.SerializeToString()
    except Exception as error:  # an operator that a form lacks can raise anything at all
        raise DfmeError(
            say(
                "{}: cannot export {}: {}",
                Ref("format", form),
                net.arch,
                " ".join(str(error).split())[:300],
            )
        ) from error
    return data


def _verified(net: nn.Module, data: bytes, form: str, images_BCHW: Tensor) -> str:
    """Distance of the program's scores to the student's, for one and many images. DfmeError if
    far.
    """
    if form == "pt2":
        by = "torch.export"
        # its own bytes, not a file
        program = torch.export.load(io.BytesIO(data)).module()  # noqa: TID251
    else:
        try:
            runtime = importlib.import_module("onnxruntime")
        except ImportError:
            return "no, onnxruntime is not installed: pip install onnxruntime"
        by = "onnxruntime"
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    worst = 0.0
    for x_BCHW in (images_BCHW[:1], images_BCHW):
        wanted = net(x_BCHW)
        inputs = {"images": x_BCHW.numpy()}
        got = program(x_BCHW) if form == "pt2" else torch.from_numpy(session.run(None, inputs)[0])
        worst = max(worst, (wanted - got).abs().max().item())
        if got.shape != wanted.shape or not torch.allclose(got, wanted, rtol=1e-3, atol=1e-4):
            raise DfmeError(
                say(
                    "{}: the scores differ from the student's by up to {:.3g}; not written",
                    Ref("format", form),
                    worst,
                )
            )
    return f"by {by} on {len(images_BCHW)} random images: scores differ by {worst:.1g} at most"
