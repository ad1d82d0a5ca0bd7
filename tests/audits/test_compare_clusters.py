"""A comparison on Ray and through submitit, disturbed on the way."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COMPARISON = """
seeds: [0]
budgets: [3k]
student_steps: 60
rows:
  static: {method: {name: static, batch_size: 32}}
  adam: {method: {name: static, batch_size: 32}, student: {optimizer: adam, lr: 0.001}}
  dfme: {method: {name: dfme, batch_size: 32}}
teacher: {kind: "plain:Meter", log: served.log}
student: {arch: cnn_small}
evaluation: {dataset: digits, points: 2}
device: cpu
"""
PLAIN = """
from small_runs import narrow_generators, no_pictures, no_rehearsal

held = [each() for each in (narrow_generators, no_pictures, no_rehearsal)]
for each in held:
    each.__enter__()

from meter import Meter
"""
"""The teacher, which leaves out what takes a small run's time: no test here looks at it."""
CELLS = [f"{row}-probabilities-3k-seed0" for row in ("static", "adam", "dfme")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A folder with what ``--engine local`` comes to, in ``whole``."""
    made = Bench(tmp_path_factory.mktemp("c") / "bench")
    (made.folder / "c.yaml").write_text(COMPARISON)
    (made.folder / "plain.py").write_text(PLAIN)
    code, _, err = made.run(["compare", "--config", "c.yaml", "--out", "whole", "--jobs", "2"])
    assert code == 0, err
    return made


def compare(bench: Bench, out: str, *flags: str) -> subprocess.Popen[str]:
    return bench.start(["compare", "--config", "c.yaml", "--out", out, *flags])


def holder(folder: Path) -> int:
    """The process at work in a run's directory; 0 if there is none."""
    text = (folder / ".lock").read_text()
    return int(json.loads(text)["pid"]) if text.endswith("}") else 0


def in_the_middle(bench: Bench, out: str, besides: int = 0) -> tuple[str, int]:
    """A cell that runs, and the process that does."""
    deadline = time.monotonic() + 300  # workers of Ray take minutes to start beside other work
    while time.monotonic() < deadline:
        for cell in CELLS:
            folder = bench.folder / out / "cells" / cell
            ledger = folder / "ledger.jsonl"
            charges = ledger.read_bytes().count(b"\n") if ledger.is_file() else 0
            if charges > 25 and not (folder / "summary.json").exists():
                pid = holder(folder)
                if pid not in (0, besides):
                    return cell, pid
        time.sleep(0.01)
    raise AssertionError("no cell got there")


def same(bench: Bench, out: str) -> None:
    """Every student bitwise, and the table but for its seconds, as ``whole`` has them."""

    def tables(name: str) -> Any:
        made = json.loads((bench.folder / name / "comparison.json").read_text())["tables"]
        return [[{**row, "seconds": None} for row in table["rows"]] for table in made]

    for cell in CELLS:
        assert bench.student(f"{out}/cells/{cell}") == bench.student(f"whole/cells/{cell}"), cell
        assert bench.summary(f"{out}/cells/{cell}")["spent"] == 3000
    assert tables(out) == tables("whole")


def processes_of(word: str) -> list[str]:
    """Command lines of processes that have the word in theirs."""
    found = subprocess.check_output(["ps", "-eo", "pid,args"], text=True).splitlines()
    return [line for line in found if word in line and str(os.getpid()) != line.split()[0]]


def test_ray_on_this_machine_with_a_worker_killed(bench: Bench) -> None:
    pytest.importorskip("ray")
    process = compare(bench, "ray", "--engine", "ray", "--engine-options", "num_cpus=1")
    cell, pid = in_the_middle(bench, "ray")
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err.count(f"{cell}: lost with its worker") == 1
    assert err.count("is gone on with (retry") == 1
    same(bench, "ray")


@pytest.fixture
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """A cluster of two on this machine, and its second node."""
    utils = pytest.importorskip("ray.cluster_utils")
    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = utils.Cluster(
        initialize_head=True, head_node_args={**small, "include_dashboard": False}
    )
    try:
        yield cluster, cluster.add_node(**small)
    finally:
        cluster.shutdown()


def test_ray_on_two_nodes_with_one_of_them_removed(
    bench: Bench, two_nodes: tuple[Any, Any]
) -> None:
    cluster, second = two_nodes
    process = compare(
        bench, "nodes", "--engine", "ray", "--engine-options", f"address={cluster.address}"
    )
    _, pid = in_the_middle(bench, "nodes")
    in_the_middle(bench, "nodes", besides=pid)
    cluster.remove_node(second, allow_graceful=False)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err.count("lost with its worker") == 1, err
    same(bench, "nodes")


def test_submitit_with_its_preemption_signal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    cache = bench.folder / "cache"
    monkeypatch.setitem(bench.environment, "XDG_CACHE_HOME", str(cache))
    words = ["--engine", "slurm", "--jobs", "2", "--engine-options", "cluster=local,time=20"]
    process = compare(bench, "slurm", *words)
    cell, pid = in_the_middle(bench, "slurm")
    (folder,) = (cache / "dfme").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    os.kill(pid, signal.SIGUSR2)
    wait_until(lambda: holder(bench.folder / "slurm" / "cells" / cell) not in (0, pid))
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "lost" not in err, "requeued by submitit, not begun anew by us"
    assert str(folder) in err
    same(bench, "slurm")
    assert [bench.summary(f"slurm/cells/{name}")["lost"] for name in CELLS] == [0, 0, 0]


@pytest.mark.parametrize(
    "words", [("ray",), ("slurm", "--engine-options", "cluster=local,time=20")]
)
def test_stopped_and_gone_on_with(bench: Bench, words: tuple[str, ...]) -> None:
    """Ctrl-C stops the workers after their step, and leaves no process behind."""
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[words[0]])
    out = f"stopped_{words[0]}"
    process = compare(bench, out, "--engine", *words)
    in_the_middle(bench, out)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert f"--resume --out {out}" in err
    wait_until(lambda: not processes_of(f"{out}/cells"))
    code, _, err = bench.run(
        ["compare", "--resume", "--out", out, "--engine", "local", "--jobs", "2"]
    )
    assert code == 0, err
    same(bench, out)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
