"""What a person sees in a terminal, on real pseudo-terminals of many widths: nothing is cut, nothing is wrapped."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from dfme.cli.extract import parse_extract
from dfme.report.console import Console, end_table, header, teacher_name
from dfme.report.terminal import StatusLine, columns, wrapped
from dfme.run.job import document

METRICS = {"agreement": 0.8524, "cost": 12.3, "student_loss": 0.6977, "generator_loss": -0.728}
ORDER = ["agreement 85.24%", "cost 12.30", "left", "queries/s", "student loss 0.6977", "generator loss -0.728"]


@contextmanager
def terminal(width: int) -> Iterator[tuple[TextIO, list[str]]]:
    """A terminal's stream, and what was written there once it is left, which must fit into the kernel's buffer."""
    seen: list[str] = []
    master, slave = pty.openpty()
    resize(slave, width)
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield stream, seen
        stream.flush()
        os.set_blocking(master, False)
        data = b""
        with suppress(BlockingIOError):
            while more := os.read(master, 1 << 16):
                data += more
        seen.append(data.decode().replace("\r\n", "\n"))
    os.close(master)


def resize(terminal_file: int, width: int) -> None:
    fcntl.ioctl(terminal_file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))


def lines(text: str) -> list[str]:
    """Everything that was drawn as a line, each anew."""
    return [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]


@pytest.mark.parametrize("width", [40, 60, 79, 80, 81, 100, 120, 200])
def test_a_bar_fits_and_leaves_out_what_does_not_whole_and_in_order(width: int) -> None:
    """0.6.0 ended in ``| 1,792/20,000 [00:01 < 00:16, 1074.16 queries/s] agreement 44.01%  stud`` of 80 letters."""
    with terminal(width) as (stream, seen):
        console = Console(300_000, stream, clock=iter(range(100)).__next__)
        console.start(0)
        console.evaluation(135_040, METRICS)
        console.close()
    drawn = lines(seen[0])
    assert all(len(line) < width for line in drawn)
    first, *parts = drawn[-1].partition("45%  ")[2].split("  ")
    assert first == "135,040/300,000 queries"
    shown = [re.sub(r"^\S+(?: s)? (left|queries/s)$", r"\1", part) for part in parts]
    assert shown == ORDER[: len(shown)]
    assert len(shown) == {40: 0, 60: 2, 79: 3, 80: 3, 81: 3, 100: 4, 120: 4, 200: 6}[width], drawn[-1]


def test_a_terminal_that_becomes_narrow_on_the_way_is_not_overrun() -> None:
    with terminal(120) as (stream, seen):
        line = StatusLine(stream)
        line.show(0.5, ["half", "of everything"], ["and what is said beside it"])
        resize(stream.fileno(), 40)
        line.show(0.5, ["half", "of everything"], ["and what is said beside it"])
        line.note("seen " * 20)
    after = seen[0].split("\r")[2:]
    assert max(len(part) for part in "\n".join(after).split("\n")) < 40


def test_what_is_said_meanwhile_stands_above_the_line_and_is_broken_between_words() -> None:
    long = "the differences are mostly hidden by the answers' rounding; choose --estimator.space lattice, or auto"
    command = "  python run.py --resume --out " + "x" * 100
    with terminal(60) as (stream, seen):
        console = Console(1_000, stream)
        console.start(0)
        console.note(long)
        console.note(f"stopped; go on with:\n{command}")
        console.close()
    text = seen[0]
    assert " ".join(line.strip() for line in textwrap.wrap(long, 60)) in " ".join(lines(text))
    assert all(len(line) < 60 or line == command for line in lines(text))
    assert f"\n{command}\n" in text, "to be copied as it is"
    assert text.endswith("0/1,000 queries\n"), "the line is below what was said"


def test_on_no_terminal_there_is_no_line_and_plain_ones_are_of_a_sensible_length() -> None:
    stream = io.StringIO()
    console = Console(300_000, stream, clock=iter(range(100)).__next__)
    console.start(0)
    console.evaluation(135_040, METRICS)
    (line,) = stream.getvalue().splitlines()
    assert len(line) <= 100
    assert line.startswith("135,040 / 300,000 queries (45%)  agreement 85.24%  cost 12.30")
    assert columns(stream) is None
    assert wrapped("word " * 50, None) == "word " * 50


def test_the_end_table_has_hanging_lines_and_keeps_its_figures(tmp_path: Path) -> None:
    summary: dict[str, Any] = {
        "budget": 300_000, "spent": 300_000, "spent_by_purpose": {"generator": 85_504, "student": 214_496},
        "evaluation_queries": 359, "teacher_accuracy": 0.99, "accuracy": 0.98, "agreement": 0.98,
        "wall_seconds": 43.5, "queries_per_second": 6_893.0,
    }  # fmt: skip
    narrow, wide = end_table(summary, tmp_path, 60), end_table(summary, tmp_path)
    assert max(map(len, wide.splitlines())) > 80 > 60 >= max(map(len, narrow.splitlines()))
    assert narrow.split() == wide.split()
    hanging = [line for line in narrow.splitlines() if line.startswith(" ")]
    assert [line[:18].strip() for line in hanging] == [""] * len(hanging)
    assert hanging[0][18] != " "


# The first thing a person sees


def said_first(words: str) -> str:
    return header(document(parse_extract(words.split())))


def test_the_first_line_says_who_is_asked_how_and_at_what_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    text = said_first("--budget 12k --teacher.price-per-1000 2.5 --device cpu --method.name static")
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for part in ("teacher digits.safetensors (embedded digits)", "method static", "budget 12,000 queries (30.00 at"):
        assert part in flat
    assert "device cpu" in flat
    assert "wandb" not in flat
    assert "wandb offline" in said_first("--wandb.mode offline"), "nobody's recipe tracks a run in silence"


@pytest.mark.parametrize(
    ("teacher", "name"),
    [
        ({"kind": "torch", "checkpoint": "/nets/resnet.pt"}, "resnet.pt"),
        ({"kind": "torch", "checkpoint": "teachers/mine.pt"}, "mine.pt"),
        ({"kind": "torch", "checkpoint": "teachers/checkpoints/shapes.safetensors"}, "(embedded shapes)"),
        ({"kind": "v2", "url": "http://127.0.0.1:8080/x?key=1", "model": "digits"}, "127.0.0.1:8080, model digits"),
        ({"kind": "json", "url": None, "adapter": "a/shop.yaml"}, "shop.yaml"),
        ({"kind": "onnx", "model": "m/net.onnx"}, "net.onnx"),
        ({"kind": "my_module:MyTeacher", "checkpoint": "x.pt", "url": "http://a"}, "my_module:MyTeacher"),
        ({"kind": "torch", "checkpoint": "a\x1b[2Jb.pt"}, "a?[2Jb.pt"),
    ],
)
def test_a_teacher_has_a_name(teacher: dict[str, Any], name: str) -> None:
    shown = teacher_name(teacher)
    assert shown == name or (name.startswith("(") and shown.endswith(name))
    assert "key=1" not in shown


@pytest.mark.integration
def test_the_first_line_comes_before_anything_heavy_is_loaded() -> None:
    """0.6.0 said nothing until torch and the teacher were there."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.stderr.isatty = lambda: True\n"
        "from dfme.cli.main import main\n"
        "try: main(['--budget', '1k'])\n"
        "except ImportError: print('torch')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "torch\n"
    assert done.stderr.startswith("teacher digits.safetensors (embedded digits), method")
