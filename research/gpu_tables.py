"""Tables of ``gpu_day.sh``: ``table.md`` and ``table.json`` of a step, ``day.md`` and ``day.json``
of all.

They are made of what the commands left, their logs and JSON files. Nothing is measured here.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from dfme.files import write_text
from dfme.report.markdown import table

FIGURES = (
    "spent",
    "student_steps",
    "agreement",
    "accuracy",
    "wall_seconds",
    "queries_per_second",
    "device",
)
WRITTEN = ("compare/comparison", "measured/gradients", "audit/comparison", "audit/defences")
"""Tables that the commands write themselves, as Markdown and JSON."""


class Part(NamedTuple):
    """A table of a step: its title, its text, and the same as data."""

    title: str
    text: str
    data: Any


def commands(folder: Path) -> list[dict[str, Any]]:
    """What a step ran, in order: exit code (124: out of time; 137: killed), seconds, and words."""
    file = folder / "commands.tsv"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    rows = [line.split("\t", 2) for line in text.splitlines()]
    return [
        {"code": int(code), "seconds": int(seconds), "words": words}
        for code, seconds, words in rows
    ]


def difference(first: Path, other: Path) -> float:
    """Largest difference of two students' weights: 0 where they are the same, bit for bit."""
    if first.read_bytes() == other.read_bytes():
        return 0.0
    weights, others = load_file(first), load_file(other)
    pairs = [(weights[name].astype(float), others[name].astype(float)) for name in weights]
    return max(float(np.abs(left - right).max(initial=0)) for left, right in pairs)


def runs(folder: Path) -> Iterator[Part]:
    """The single runs of a step that have ended, and how far their students are from the first
    one's.
    """
    ended = sorted(folder.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    if not ended:
        return
    students = [path.with_name("student.safetensors") for path in ended]
    found = []
    for path, student in zip(ended, students, strict=True):
        summary = json.loads(path.read_text(encoding="utf-8"))
        found.append({"run": path.parent.name, **{name: summary.get(name) for name in FIGURES}})
        if folder.name == "students":
            found[-1]["largest difference"] = difference(students[0], student)
    lines = [[_shown(value) for value in row.values()] for row in found]
    yield Part("Runs", table([*found[0]], lines), found)


def logs(folder: Path) -> Iterator[Part]:
    """The last table of each log of ``research.bench``, and pytest's last line."""
    for path in sorted(folder.glob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("| case |")]
        if starts:
            block = [line for line in lines[starts[-1] :] if line.startswith("|")]
            heads, _, *rows = (
                [cell.strip() for cell in line.strip("|").split("|")] for line in block
            )
            machine = lines[starts[-1] - 2]
            data = {
                "machine": machine,
                "rows": [dict(zip(heads, row, strict=True)) for row in rows],
            }
            yield Part(path.stem, "\n".join([machine, "", *block]), data)
        elif path.stem == "pytest" and lines:
            yield Part("pytest", lines[-1].strip("= "), lines[-1].strip("= "))


def phases(folder: Path) -> Iterator[Part]:
    """Seconds of each phase of an audit that has begun, of all its sessions together."""
    file = folder / "audit" / "phases.json"
    if file.is_file():
        seconds: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
        lines = [[phase, _shown(value)] for phase, value in seconds.items()]
        yield Part("Seconds by phase", table(["phase", "seconds"], lines), seconds)


def written(folder: Path) -> Iterator[Part]:
    """Tables that the commands wrote, and the sentences of an audit that has ended."""
    for name in WRITTEN:
        text, data = (folder / f"{name}{suffix}" for suffix in (".md", ".json"))
        if text.is_file() and data.is_file():
            yield Part(
                name, text.read_text(encoding="utf-8"), json.loads(data.read_text(encoding="utf-8"))
            )
    if (file := folder / "audit" / "audit.json").is_file():
        sentences = json.loads(file.read_text(encoding="utf-8"))["headline"]["sentences"]
        yield Part("audit", "\n".join(f"- {sentence}" for sentence in sentences), sentences)


def tabulate(folder: Path) -> dict[str, Any]:
    """Write a step's table, and return its record."""
    parts = [part for source in (runs, logs, phases, written) for part in source(folder)]
    state = "finished" if (folder / "finished").exists() else "unfinished"
    machine = (folder / "machine.txt").read_text(encoding="utf-8").strip().replace("\n", "; ")
    ran = commands(folder)
    seconds = sum(each["seconds"] for each in ran)
    record = {"step": folder.name, "state": state, "seconds": seconds, "machine": machine}
    body = [
        f"# {folder.name}: {state}",
        machine,
        *(f"## {part.title}\n\n{part.text}" for part in parts),
    ]
    listed = [
        f"    {each['words']}    # exit code {each['code']}, {each['seconds']} s" for each in ran
    ]
    write_text(folder / "table.md", "\n\n".join([*body, "## Commands", "\n".join(listed)]) + "\n")
    whole = {**record, "commands": ran, "tables": {part.title: part.data for part in parts}}
    write_text(folder / "table.json", json.dumps(whole, indent=1) + "\n")
    return record


def main(words: Sequence[str]) -> None:
    """``OUT STEP ...``: tables of the steps of a day that were begun, and of the day."""
    out = Path(words[0])
    done = [tabulate(out / step) for step in words[1:] if (out / step).is_dir()]
    text = table([*done[0]], [[str(value) for value in record.values()] for record in done])
    write_text(out / "day.md", f"# One day with a GPU\n\n{text}\n")
    write_text(out / "day.json", json.dumps(done, indent=1) + "\n")


def _shown(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else "-" if value is None else str(value)


if __name__ == "__main__":
    main(sys.argv[1:])
