"""A student as a program that other software runs: ONNX, or torch.export's .pt2."""

import importlib
import io
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dfme.errors import DfmeError, OptionError, Ref, UserError, say
from dfme.files import replacing
from dfme.precision import ieee_fp32
from dfme.run.student_file import described, load_student_of_run
from dfme.spec import ImageSpec

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
        net, form, images_BCHW[:2], described(str(net.arch), spec, int(str(classes))) | rows
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
