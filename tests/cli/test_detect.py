"""``run.py detect``: its tables and files, and what it refuses in one line."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from command_line import one_line, run

from dfme.config.detectors import DETECTORS, NEED_FEATURES
from dfme.config.settings import EvaluationConfig, TeacherConfig
from dfme.owner_side import job_of, owner_of
from dfme.teachers.owner.watch import detection
from dfme.teachers.owner.watch.detector import Observation
from dfme.teachers.owner.watch.record import Recording, account_tag

WEIGHTS = Path(__file__).resolve().parents[2] / "teachers/checkpoints/digits.safetensors"
DIGITS = f"--teacher.checkpoint {WEIGHTS}"
SERVICE = (
    "--teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model m --teacher.authorised-by me"
)
QUIET = ("random order", "pairs")
NAMES = [name for name in DETECTORS if name not in NEED_FEATURES]


def write_log(folder: Path, count: int = 40) -> Path:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand((count, 1, 8, 8), generator=rng)
    p = torch.rand((count, 10), generator=rng).double().softmax(1)
    said = list[str]()
    Recording(folder, 30, 10**6, said.append)(account_tag("a"), 1, Observation(images, p, None))
    assert not said
    return next(folder.glob("log-*"))


@pytest.mark.integration
def test_the_tables_are_printed_and_kept_beside_the_figures(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "SESSIONS", 2)
    write_log(here / "log")
    assert run(f"detect log --benign digits {DIGITS} --out found") == 0
    printed = capsys.readouterr().out
    detection_json = json.loads(Path("found/detection.json").read_text())
    assert printed.rpartition("\n\n")[0] in Path("found/detection.md").read_text()
    assert [entry["name"] for entry in detection_json["detectors"]] == NAMES
    assert [*detection_json["left_out"]] == ["mahalanobis", "sequential", "sprt"]
    assert printed.count("since the log has not all distances of features.") == 3
    assert (detection_json["accounts"][0]["account"], detection_json["accounts"][0]["images"]) == (
        account_tag("a"),
        40,
    )
    assert all(
        f"| {account_tag('a')} |     40 |           0 | {name:>10} |" in printed for name in NAMES
    )
    for entry in detection_json["benign"]:
        assert entry["per_10000"] == 10_000 * entry["alarms"] / 1_200
        assert entry["per_10000_upper"] > entry["per_10000"]
    (quiet,) = [
        entry for entry in detection_json["benign"] if (entry["stream"], entry["detector"]) == QUIET
    ]
    assert (quiet["alarms"], quiet["per_10000_upper"]) == (0, pytest.approx(30_000 / 179))
    assert "0 of 2 (< 168)" in printed
    assert "0 %" not in printed.replace("95 %", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"nowhere {DIGITS}", "expected a folder that run.py serve --record wrote"),
        (f"log {DIGITS} --teacher.watch sprt", "expected a log that can feed sprt"),
        (f"log {SERVICE}", "a service is watched where it runs"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_one_line(
    here: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(here / "log")
    assert run(f"detect {words} --benign digits") == 2
    assert said in one_line(capsys)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"\0\xff\n",
        b"[" * 5_000 + b"\n",
        b'{"account": "0123456789abcdef"}\n',
        b"x" * (1 << 20),
        b'"score": "x"',
        *(b'"top": %s' % each for each in (b"10", b"-1", b"9999999999999999999999")),
        b'"fingerprint": "%s"' % (b"0" * 17 + b"x"),
    ],
)
def test_a_damaged_log_is_one_line(
    here: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(here / "log")
    lines = log.read_bytes().splitlines(keepends=True)
    if damage.startswith(b'"'):
        key = damage.partition(b":")[0]
        start = lines[3].index(key)
        stop = min(at for at in (lines[3].find(b",", start), lines[3].find(b"}", start)) if at > 0)
        lines[3] = lines[3][:start] + damage + lines[3][stop:]
    else:
        lines.insert(3, damage)
    log.write_bytes(b"".join(lines))
    assert run(f"detect log --benign digits {DIGITS}") == 2
    line = one_line(capsys)
    assert re.search("expected lines|expected a line|another one", line)
    assert len(line) < 500


def test_a_pipe_in_place_of_a_log_is_not_waited_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(here / "log")
    log.unlink()
    os.mkfifo(log)
    assert run(f"detect log --benign digits {DIGITS}") == 2
    assert "expected a log that can be read" in one_line(capsys)


def test_a_teacher_without_a_network_of_ours_is_watched_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection, "SESSIONS", 1)
    config = TeacherConfig(kind="own:Linear", label_mode="label", defences=("lattice:n=10",))
    job = job_of(config, {"shape": (1, 8, 8)}, "cpu", EvaluationConfig(dataset="digits"))
    seen = owner_of(job).detection([*DETECTORS], tell=lambda line: None)
    assert [detector.name for detector in seen.detectors] == NAMES
    assert [*seen.left_out] == ["mahalanobis", "sequential", "sprt"]
    assert all(stream.per_10000_upper > 0 for stream in seen.benign)
