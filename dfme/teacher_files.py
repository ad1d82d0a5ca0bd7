"""What the built-in kinds of teacher read from this machine. No torch here."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The option that names a file, or a folder, which must be there, and what to do where it is not."""

    option: str
    remedy: str
    folder: bool = False


BUILT_IN_FILES: dict[str, Place] = {
    "torch": Place("checkpoint", "; give --teacher.checkpoint, or make one with run.py train-teacher"),
    "json": Place("adapter", "; configs/adapters has examples"),
    "onnx": Place("model", "; export one with torch.onnx.export"),
    "pt2": Place("program", "; save one with torch.export.save"),
    "torchscript": Place("program", "; TorchScript archives are written by torch.jit.save"),
    "hf": Place("folder", "; save one with the model's and the image processor's save_pretrained", folder=True),
    "timm": Place("folder", "; save one with timm.models.save_for_hf", folder=True),
}
"""The option of a kind that names what it reads; other kinds of service have none."""
