"""Tracking by the real wandb client, without a key and without a network."""

import base64
import hashlib
import http.server
import json
import os
import shlex
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dfme.config.sections import WandbConfig
from dfme.report.wandb_run import WandbRun

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BLOCK, HEADER = 32_768, 7


def read(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a LevelDB log of protocol buffers, after a header of seven
    bytes.

    Each chunk: CRC (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), payload.
    Chunks do not cross blocks of 32 KiB.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def records(path: Path) -> list[Any]:
    """All records of a finished run; the client's other process may still be writing the last of
    them.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        result = list(read(path)) if path.stat().st_size > HEADER else []
        if any(record.HasField("exit") for record in result):
            return result
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def history(run_dir: Path) -> list[dict[str, Any]]:
    """All logged rows in all the offline parts of a run, without the client's own columns."""
    rows = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                row = {
                    ".".join(i.nested_key) or i.key: json.loads(i.value_json)
                    for i in record.history.item
                }
                rows.append({key: value for key, value in row.items() if not key.startswith("_")})
    return rows


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


def start(run_dir: Path, messages: list[str]) -> WandbRun:
    run_dir.mkdir(exist_ok=True)
    config = WandbConfig(mode="offline", project="p", name="n", group="g", tags=("a", "b"))
    return WandbRun(config, run_dir, {"method": {"name": "dfme"}, "seed": 3}, messages.append)


def test_an_offline_run_holds_everything_that_was_logged(tmp_path: Path) -> None:
    messages: list[str] = []
    run = start(tmp_path / "run", messages)
    for queries in (256, 512, 1_024):
        run.log(queries, {"agreement": queries / 2_048, "student_loss": 1.5})
    run.images(1_024, np.full((2, 1, 16, 16), 128, dtype=np.uint8) + np.uint8([[[[0]]], [[[9]]]]))
    student = tmp_path / "run" / "student.safetensors"
    student.write_bytes(b"weights")
    student.with_name("report.html").write_bytes(b"<p>page</p>")
    run.finish({"accuracy": 0.75, "spent_by_purpose": {"student": 1_024}}, student)

    rows = history(tmp_path / "run")
    assert [row["queries"] for row in rows] == [256, 512, 1_024]
    assert [row["agreement"] for row in rows] == [0.125, 0.25, 0.5]
    (log,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    result = records(log)
    axis = {
        r.metric.glob_name or r.metric.name: r.metric.step_metric
        for r in result
        if r.HasField("metric")
    }
    assert axis["*"] == "queries"
    (begun,) = [r.run for r in result if r.HasField("run")]
    assert (begun.project, begun.display_name, begun.run_group, [*begun.tags]) == (
        "p",
        "n",
        "g",
        ["a", "b"],
    )
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["seed"] == 3
    assert settings["method"] == {"name": "dfme"}
    items = [item for r in result if r.HasField("summary") for item in r.summary.update]
    summaries = {
        ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items
    }
    assert summaries["accuracy"] == 0.75
    assert summaries["spent_by_purpose"] == {"student": 1_024}
    for artifact in (r.artifact for r in result if r.HasField("artifact")):
        (entry,) = artifact.manifest.contents
        recorded = (
            tmp_path
            / "run"
            / {"model": "student.safetensors", "report": "report.html"}[artifact.type]
        )
        assert (entry.path, entry.local_path) == (recorded.name, str(recorded)), (
            "no second copy elsewhere"
        )
        assert base64.b64decode(entry.digest) == hashlib.md5(recorded.read_bytes()).digest()
    assert sum(r.HasField("artifact") for r in result) == 2
    assert len(list((tmp_path / "run").glob("wandb/**/*.png"))) == 2
    remaining = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert all("wandb/logs" in str(path) for path in remaining), (
        "nothing outside the run's directory but a log"
    )
    assert not (Path.cwd() / "wandb").exists()
    assert messages == [f"wandb: recorded offline; upload it with:\n  wandb sync {log.parent}"]


def test_a_run_is_called_after_its_directory_and_lies_where_wandb_dir_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far away").mkdir()
    (tmp_path / "digits-dfme-seed3").mkdir()
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "far away"))
    monkeypatch.setenv("WANDB_NOTES", "for the audit")
    messages: list[str] = []
    run = WandbRun(
        WandbConfig(mode="offline"), tmp_path / "digits-dfme-seed3", {"seed": 3}, messages.append
    )
    run.close()
    (log,) = (tmp_path / "far away").glob("wandb/offline-run-*/*.wandb")
    (begun,) = [r.run for r in records(log) if r.HasField("run")]
    assert (begun.display_name, begun.notes) == ("digits-dfme-seed3", "for the audit")
    assert messages == [
        f"wandb: recorded offline; upload it with:\n  wandb sync {shlex.quote(str(log.parent))}"
    ]
    assert not (tmp_path / "digits-dfme-seed3" / "wandb").exists()


def test_a_resumed_run_goes_on_under_the_same_id(tmp_path: Path) -> None:
    messages: list[str] = []
    for queries in (100, 200):
        run = start(tmp_path / "run", messages)
        run.log(queries, {"agreement": 0.5})
        run.close()
        time.sleep(1.1)  # the client names a part by the second in which it began
    parts = sorted((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    assert len({part.name for part in parts}) == 1
    assert (
        parts[0].name
        == f"run-{json.loads((tmp_path / 'run' / 'wandb.json').read_text())['id']}.wandb"
    )
    assert [row["queries"] for row in history(tmp_path / "run")] == [100, 200]
    assert messages[-1].split()[-2:] == [str(part.parent) for part in parts], (
        "both parts, in the order of time"
    )


def in_a_process_of_its_own(tmp_path: Path, **variables: str) -> tuple[float, str]:
    """Seconds of a whole process that tracks online, and what it said. Its input is a closed
    pipe.
    """
    code = (
        "import pathlib, sys; from dfme.report.wandb_run import WandbRun\nfrom "
        "dfme.config.settings import "
        f"WandbConfig\nrun = WandbRun(WandbConfig(mode='online'), pathlib.Path({str(tmp_path)!r}), "
        f"{{}}, "
        f"print)\nrun.log(7, {{'agreement': 0.5}}); run.close()"
    )
    environment = {**os.environ, **variables}
    environment.pop("WANDB_ERROR_REPORTING")
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    before = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, timeout=120, check=True, **pipes
    )
    return time.monotonic() - before, process.stdout


class Server(http.server.BaseHTTPRequestHandler):
    """Answers that it is there, and refuses or swallows everything else."""

    patience = 0.0

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        time.sleep(self.patience)
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("obstacle", ["no key", "refuses", "hangs"])
def test_without_an_answer_the_run_is_kept_offline_within_seconds(
    tmp_path: Path, obstacle: str
) -> None:
    handler = type("Patient", (Server,), {"patience": 60.0 if obstacle == "hangs" else 0.0})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {} if obstacle == "no key" else {"WANDB_API_KEY": "0" * 40}
        seconds, messages = in_a_process_of_its_own(
            tmp_path, WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}", **variables
        )
        server.shutdown()
    assert seconds < 40
    assert "tracking goes on offline" in messages
    assert ("no API key" in messages) == (obstacle == "no key")
    assert messages.splitlines()[-1].startswith("  wandb sync /")
    assert [row["queries"] for row in history(tmp_path)] == [7]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("WANDB_MODE", "foo", "'online', 'offline'"),
        ("WANDB_RUN_ID", "a/b", "Run ID cannot contain"),
        ("WANDB__SERVICE_WAIT", "text", "a valid number"),
        ("WANDB_BASE_URL", "localhost", "a valid URL"),
        ("WANDB_SILENT", "perhaps", "a valid boolean"),
    ],
)
def test_an_invalid_variable_is_named_in_one_line(
    name: str, value: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    lines: list[str] = []
    WandbRun(WandbConfig(mode="offline"), tmp_path, {}, lines.append).close()
    (line,) = lines
    assert line.startswith(f"wandb: variable {name}={value}: ")
    assert expected in line
    assert line.endswith("; the run goes on without it, recorded in metrics.jsonl")


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "file" / "below"))
    lines: list[str] = []
    WandbRun(WandbConfig(mode="offline"), tmp_path / "run", {}, lines.append).close(exit_code=0)
    assert "WANDB_DIR=" in lines[0]
    assert "expected a folder that can be written to" in lines[0]
    assert list((tmp_path / "run").glob("wandb/offline-run-*"))
