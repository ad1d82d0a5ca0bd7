"""What the built-in kinds of teacher read from this machine. No torch here."""

from __future__ import annotations

from typing import NamedTuple


class TeacherFile(NamedTuple):
    """The option that names a file, or a folder, which must be there, and what to do where it is not."""

    option: str
    remedy: str
    folder: bool = False


BUILT_IN_FILES: dict[str, TeacherFile] = {
    "torch": TeacherFile("checkpoint", "; give --teacher.checkpoint, or make one with run.py train-teacher"),
    "json": TeacherFile("adapter", "; configs/adapters has examples"),
    "onnx": TeacherFile("model", "; export one with torch.onnx.export"),
    "pt2": TeacherFile("program", "; save one with torch.export.save"),
    "torchscript": TeacherFile("program", "; TorchScript archives are written by torch.jit.save"),
    "hf": TeacherFile("folder", "; save one with the model's and the image processor's save_pretrained", folder=True),
    "timm": TeacherFile("folder", "; save one with timm.models.save_for_hf", folder=True),
}
"""The option of a kind that names what it reads; other kinds of service have none."""
