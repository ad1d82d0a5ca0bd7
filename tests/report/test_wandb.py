"""Tracking by the real wandb client, without a key and without a network; its files are read by other means."""

from __future__ import annotations

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

from dfme.config.settings import WandbConfig
from dfme.report.wandb_run import WandbRun, answers, has_key

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BLOCK, HEADER = 32_768, 7


def read(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: a LevelDB log of protocol buffers, after a header of seven bytes.

    Each chunk: CRC (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last), payload. Chunks do not
    cross blocks of 32 KiB.
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
    """All records of a finished run; the client's other process may still be writing the last of them."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = list(read(path)) if path.stat().st_size > HEADER else []
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def history(run_dir: Path) -> list[dict[str, Any]]:
    """All logged rows in all the offline parts of a run, without the client's own columns."""
    rows = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
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


def start(run_dir: Path, said: list[str], mode: Any = "offline") -> WandbRun:
    run_dir.mkdir(exist_ok=True)
    config = WandbConfig(mode=mode, project="p", name="n", group="g", tags=("a", "b"))
    return WandbRun(config, run_dir, {"method": {"name": "dfme"}, "seed": 3}, said.append)


def test_an_offline_run_holds_everything_that_was_logged(tmp_path: Path) -> None:
    said: list[str] = []
    run = start(tmp_path / "run", said)
    for queries in (256, 512, 1_024):
        run.log(queries, {"agreement": queries / 2_048, "student_loss": 1.5})
    run.image(1_024, np.full((16, 16, 3), 128, dtype=np.uint8), "after 1,024 queries")
    student = tmp_path / "run" / "student.safetensors"
    student.write_bytes(b"weights")
    student.with_name("report.html").write_bytes(b"<p>page</p>")
    run.finish({"accuracy": 0.75, "spent_by_purpose": {"student": 1_024}}, student)

    rows = history(tmp_path / "run")
    assert [row["queries"] for row in rows] == [256, 512, 1_024]
    assert [row["agreement"] for row in rows] == [0.125, 0.25, 0.5]
    (log,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    found = records(log)
    axis = {r.metric.glob_name or r.metric.name: r.metric.step_metric for r in found if r.HasField("metric")}
    assert axis["*"] == "queries"
    (begun,) = [r.run for r in found if r.HasField("run")]
    assert (begun.project, begun.display_name, begun.run_group, list(begun.tags)) == ("p", "n", "g", ["a", "b"])
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["seed"] == 3
    assert settings["method"] == {"name": "dfme"}
    summaries = {
        ".".join(item.nested_key) or item.key: json.loads(item.value_json)
        for r in found
        if r.HasField("summary")
        for item in r.summary.update
    }
    assert summaries["accuracy"] == 0.75
    assert summaries["spent_by_purpose"] == {"student": 1_024}
    held = {}
    for artifact in (r.artifact for r in found if r.HasField("artifact")):
        (entry,) = artifact.manifest.contents
        held[artifact.type, entry.path] = entry.size, entry.local_path, base64.b64decode(entry.digest)
    assert held == {
        (kind, file): (len(content), str(tmp_path / "run" / file), hashlib.md5(content).digest())
        for kind, file, content in (
            ("model", "student.safetensors", b"weights"), ("report", "report.html", b"<p>page</p>"))
    }  # fmt: skip
    assert len(list((tmp_path / "run").glob("wandb/**/*.png"))) == 1
    assert said == [f"wandb: recorded offline; upload it with:\n  wandb sync {log.parent}"]


def test_a_run_is_called_after_its_directory_and_lies_where_wandb_dir_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.6.0 gave no name, so that wandb made one up; and overruled WANDB_DIR."""
    (tmp_path / "far away").mkdir()
    (tmp_path / "digits-dfme-seed3").mkdir()
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "far away"))
    monkeypatch.setenv("WANDB_NOTES", "for the audit")
    said: list[str] = []
    run = WandbRun(WandbConfig(mode="offline"), tmp_path / "digits-dfme-seed3", {"seed": 3}, said.append)
    run.close()
    (log,) = (tmp_path / "far away").glob("wandb/offline-run-*/*.wandb")
    (begun,) = [r.run for r in records(log) if r.HasField("run")]
    assert (begun.display_name, begun.notes) == ("digits-dfme-seed3", "for the audit")
    assert said == [f"wandb: recorded offline; upload it with:\n  wandb sync {shlex.quote(str(log.parent))}"]
    assert not (tmp_path / "digits-dfme-seed3" / "wandb").exists()


def test_a_resumed_run_goes_on_under_the_same_id(tmp_path: Path) -> None:
    said: list[str] = []
    for queries in (100, 200):
        run = start(tmp_path / "run", said)
        run.log(queries, {"agreement": 0.5})
        run.close()
        time.sleep(1.1)  # the client names a part by the second in which it began
    parts = sorted((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    assert len({part.name for part in parts}) == 1
    assert parts[0].name == f"run-{json.loads((tmp_path / 'run' / 'wandb.json').read_text())['id']}.wandb"
    assert [row["queries"] for row in history(tmp_path / "run")] == [100, 200]
    assert said[-1].split()[-2:] == [str(part.parent) for part in parts], "both parts, in the order of time"


def test_nothing_is_left_outside_the_run_directory_but_the_clients_log(tmp_path: Path) -> None:
    run = start(tmp_path / "run", [])
    run.image(1, np.zeros((8, 8, 3), dtype=np.uint8), "x")
    run.finish({}, tmp_path / "none")
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert all("wandb/logs" in str(path) for path in left)
    assert not (Path.cwd() / "wandb").exists()


def test_what_wandb_raises_is_said_once_and_ends_tracking_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run = start(tmp_path / "run", said)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full\nand more")

    monkeypatch.setattr(run._run, "log", fail)
    for queries in range(5):
        run.log(queries, {"agreement": 0.5})
    run.finish({}, tmp_path / "none")
    assert said == ["wandb: OSError: disk full; the run goes on without it, recorded in metrics.jsonl"]
    assert not run.active


def test_online_without_a_key_falls_back_at_once_and_asks_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    before = time.monotonic()
    run = start(tmp_path / "run", said, mode="online")
    run.log(5, {"agreement": 0.5})
    run.close()
    assert time.monotonic() - before < 8
    assert len(said) == 2
    assert "no API key" in said[0]
    assert "offline" in said[0]
    assert [row["queries"] for row in history(tmp_path / "run")] == [5]


def in_a_process_of_its_own(tmp_path: Path, server: str) -> tuple[float, str]:
    """Seconds of a whole process that tracks online, and what it said. Its input is a closed pipe."""
    code = (
        "import pathlib, sys; from dfme.report.wandb_run import WandbRun\n"
        "from dfme.config.settings import WandbConfig\n"
        f"run = WandbRun(WandbConfig(mode='online'), pathlib.Path({str(tmp_path)!r}), {{}}, print)\n"
        "run.log(7, {'agreement': 0.5}); run.close()"
    )
    environment = {**os.environ, "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server}
    environment.pop("WANDB_ERROR_REPORTING")
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return time.monotonic() - before, done.stdout


def test_online_without_a_network_falls_back_within_seconds(tmp_path: Path) -> None:
    seconds, said = in_a_process_of_its_own(tmp_path, "http://127.0.0.1:9")
    assert seconds < 15
    assert said.count("\n") == 3
    assert "does not answer; tracking goes on offline\n" in said
    assert said.splitlines()[-1].startswith("  wandb sync /")
    assert [row["queries"] for row in history(tmp_path)] == [7]


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


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_server_that_refuses_or_hangs_costs_seconds_and_the_run_is_kept_offline(
    tmp_path: Path, patience: float
) -> None:
    handler = type("Patient", (Server,), {"patience": patience})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        seconds, said = in_a_process_of_its_own(tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert seconds < 30
    assert "tracking goes on offline" in said
    assert [row["queries"] for row in history(tmp_path)] == [7]


def test_an_address_that_never_answers_is_waited_for_no_longer_than_told() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = time.monotonic()
        assert not answers(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.5)
        assert time.monotonic() - before < 2


def test_keys_are_looked_for_where_the_client_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_key("https://api.wandb.ai")
    (tmp_path / "home" / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    (tmp_path / "home" / "netrc").chmod(0o600)
    assert has_key("https://api.wandb.ai")
    assert not has_key("https://wandb.example.org")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert has_key("https://wandb.example.org")
