"""``run.py export``: which student becomes a file of which kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.config.values import CONFIG
from dfme.run.checks import file_problems


@dataclass(frozen=True, config=CONFIG)
class ExportConfig:
    """One export of a student."""

    student: str
    """a run directory, or the student.safetensors of one"""
    format: Literal["onnx", "pt2"] = "onnx"
    """onnx, or pt2 (torch.export)"""
    out: str | None = None
    """the file written, which must not exist; by default student.onnx or student.pt2 beside the
    student
    """


SUMMARY = "write a student as a program for other software: ONNX, or torch.export's .pt2"
INPUTS = CommandInputs(ExportConfig)


def run(words: Sequence[str]) -> int:
    """Export, and print what the file takes and answers."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    student = Path(config.student)
    weights = student / "student.safetensors" if student.is_dir() else student
    arguments.finish(file_problems("student", str(weights)))
    from dfme.report.terminal import aligned
    from dfme.run.student_file import export

    out = Path(config.out) if config.out else weights.with_suffix(f".{config.format}")
    print(aligned(export(weights, config.format, out).items()))
    return 0
