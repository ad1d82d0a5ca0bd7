"""Services that raise alarms and are drilled, and the words of a drill."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import in_this_process
from torch import Tensor

from dfme.data.recorded_queries import QueryForm, QueryRecord, RecordedQueries

STAGED = '''
"""A client of a service whose owner's alarms go to a file, as a scenario says."""

import json
from pathlib import Path

import torch

import dfme


class Staged:
    """``rings``: numbers of images at which a line goes to alarms.jsonl; ``refuses``: the last
    image that is answered; ``account``: of the lines; ``fails``: an image at which the service is
    lost; ``seen``: a file of what was asked.
    """

    shape = (1, 8, 8)
    num_classes = 10

    def __init__(self, rings: str = "", refuses: int = 10**9, fails: int = 10**9, account: str = "eve"):
        self._rings = [int(number) for number in rings.split("/") if number]
        self._refuses, self._fails, self._account, self._asked = refuses, fails, account, 0
        self._weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))

    def __call__(self, images):
        if self._asked + len(images) > self._refuses:
            raise dfme.Refused("the gateway answers you no more", "403", retry=False)
        if self._asked + len(images) > self._fails:
            raise ConnectionError("gone")
        first, self._asked = self._asked + 1, self._asked + len(images)
        for number in self._rings:
            if first <= number <= self._asked:
                entry = {"account": self._account, "detector": "labels", "image": number}
                with Path("alarms.jsonl").open("a") as file:
                    file.write(json.dumps(entry) + "\\n")
        with Path("seen.f32").open("ab") as file:
            file.write(images.numpy().tobytes())
        return (3 * (images - 0.5).flatten(1) @ self._weight).softmax(dim=1)
'''
EVALUATED = 359
"""Images of the digits' test part, which a drill asks first."""
BATCH = 50
"""Images that the recipe frugal asks at once."""
SMALL = "--student.arch cnn_small --student.steps 20 --wait 0.05".split()


def drill(*words: str) -> tuple[int, str, str]:
    """``run.py drill`` in this process: exit code, standard output, standard error."""
    return in_this_process(["drill", *words])


def staged(*words: str, channel: str = "alarm_file", budget: int = 300) -> tuple[int, str, str]:
    """A small live drill of ``Staged``, in the directory where it is, into ``out``."""
    teacher = ["--teacher", "staged_client:Staged", "--evaluation.dataset", "digits"]
    asked = ["--budget", str(budget), "--out", "out", f"--{channel}", "alarms.jsonl"]
    return drill(*teacher, *SMALL, *asked, *words)


def outcome(out: str | Path = "out") -> dict[str, Any]:
    """What drill.json holds."""
    return json.loads(Path(out, "drill.json").read_text())  # type: ignore[no-any-return]


def agreement_by(run: str | Path, images: int) -> float | None:
    """The agreement in a run's last record up to so many queries; the constant answer's before
    the first.
    """
    records = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    scored = [record for record in records if "agreement" in record]
    by_then = [record["agreement"] for record in scored if record["queries"] <= images]
    value = by_then[-1] if by_then else scored[0]["constant_agreement"]
    return float(value)


def recorded_run(
    folder: Path,
    images: Tensor,
    curve: Sequence[tuple[int, float]] = ((100, 0.3), (200, 0.7)),
    levels: int | None = None,
    classes: int = 10,
) -> Path:
    """A run's directory with these queries, and the curve of its copy."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("recipe: frugal\nmethod: {name: procedural}\n")
    lines = [
        {"queries": queries, "agreement": agreement, "constant_agreement": 0.1}
        for queries, agreement in curve
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shape = (images.shape[1], images.shape[2], images.shape[3])
    record = QueryRecord(
        folder / "queries", QueryForm(shape, (0.0, 1.0), levels, classes, distance=False)
    )
    record.append(images, torch.full((len(images), classes), 1 / classes), None)
    record.close()
    assert len(RecordedQueries(folder / "queries")) == len(images)
    return folder


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with the module of ``Staged``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "staged_client", raising=False)
    (tmp_path / "staged_client.py").write_text(STAGED)
    return tmp_path
