"""Who runs a comparison's cells: which engines there are, GPUs by slot, and lists of commands."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from damage import refused

from dfme.audits.compare.engines import Task
from dfme.audits.compare.engines import pool as processes
from dfme.audits.compare.engines.commands import Commands
from dfme.audits.compare.engines.pool import Local, gpu_of
from dfme.cli.compare import plan_of
from dfme.cli.main import main
from dfme.config.yaml_files import sealed

WORDS = "compare --methods static --seeds 0 --budgets 1k --student-steps 8 --out out".split()

SAYS_ALL = """
import json, os, pathlib, sys, time
print(json.dumps([sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), os.getpid(), os.getcwd()]),
      flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a blank and a quote in its name, where dfme says how it was started."""
    folder = tmp_path / "it's here"
    (folder / "dfme").mkdir(parents=True)
    (folder / "dfme" / "__main__.py").write_text(SAYS_ALL)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(processes, "PROJECT", folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


def engine(
    kind: type[Any], jobs: int, device: str = "cpu", **options: str
) -> tuple[Any, list[str]]:
    """One whose cells are names, and what it tells."""
    messages: list[str] = []

    def task(cell: str) -> Task:
        return Task(("extract", "--out", cell), Path(f"{cell}.log"), Path(cell), device, main)

    config = SimpleNamespace(
        retries=0, engine_options=[f"{name}={text}" for name, text in options.items()]
    )
    plan = SimpleNamespace(jobs=jobs, config=config, engine_options=options, out=Path())
    return kind(plan, task, messages.append), messages


def said(folder: Path, *cells: str) -> list[list[object]]:
    """What each cell's process was started with, once all have said so."""
    deadline = time.monotonic() + 30
    logs = [folder / f"{cell}.log" for cell in cells]
    while not all(log.is_file() and log.read_text().endswith("\n") for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [json.loads(log.read_text()) for log in logs]


def test_the_gpus_go_round_and_a_cell_of_the_cpu_asks_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert [gpu_of(slot, "auto") for slot in range(5)] == ["0", "1", "2", "0", "1"]
    assert [gpu_of(1, device) for device in ("cpu", "cuda", "cuda:2")] == [None, "1", None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-ab")
    assert [gpu_of(slot, "cuda") for slot in range(3)] == ["5", "GPU-ab", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_of(0, "auto") is None


@pytest.mark.integration
def test_four_cells_at_once_have_a_gpu_each(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    local, _ = engine(Local, 4, "auto")
    codes: list[int] = []

    def watch() -> None:
        if len(local.running) == 4:
            said(stand_in, *"abcd")
            (stand_in / "go").touch()

    local.run("abcd", lambda cell, code: bool(codes.append(code)), lambda: False, watch)
    assert [visible for _, visible, _, _ in said(stand_in, *"abcd")] == ["0", "1", "2", "3"]
    assert codes == [0, 0, 0, 0]


@pytest.mark.integration
def test_a_line_of_the_list_runs_anywhere_and_that_of_an_array_in_the_place_of_its_shell(
    stand_in: Path,
) -> None:
    commands, messages = engine(Commands, 2)
    commands.run(["a b", "c"], lambda cell, code: False, lambda: False)
    listed = (stand_in / "commands.txt").read_text().splitlines()
    assert len(listed) == 2
    assert "2 cells to run" in messages[0]
    first = subprocess.Popen(["sh", "-c", listed[0]], cwd="/")
    array = {**os.environ, "SLURM_ARRAY_TASK_ID": "2"}
    second = subprocess.Popen(["bash", str(stand_in / "array.sh")], cwd="/", env=array)
    started = said(stand_in, "a b", "c")
    assert [words[-1] for words, *_ in started] == ["a b", "c"]
    assert started[1][2] == second.pid, "signals for the batch shell are the run's"
    assert {folder for *_, folder in started} == {str(stand_in)}
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == -signal.SIGTERM
    (stand_in / "go").touch()
    assert first.wait(20) == 0
    again = shlex.split(
        next(line for line in messages[0].splitlines() if "xargs" in line).partition("<")[0]
    )
    with (stand_in / "commands.txt").open() as lines:
        assert subprocess.run(again, stdin=lines, cwd="/", timeout=60).returncode == 0
    assert subprocess.run(["sh", str(stand_in / "commands.txt")], timeout=60).returncode == 0
    assert len((stand_in / "c.log").read_text().splitlines()) == 3, "a shell runs all of the file"


def test_the_array_asks_for_what_a_cell_needs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    def header(device: str, **options: str) -> set[str]:
        engine(Commands, 1, device, **options)[0].run(
            ["a", "b"], lambda cell, code: False, lambda: False
        )
        lines = (here / "array.sh").read_text().splitlines()
        return {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}

    always = {
        "--requeue",
        "--signal=B:TERM@120",
        "--cpus-per-task=3",
        "--output=/dev/null",
        "--array=1-2",
    }
    assert header("cpu") == always
    assert header("auto") == always | {"--gres=gpu:1"}
    typed = header("cuda", partition="a100", time="4:00:00", **{"gpus-per-task": "2"})
    assert typed == always | {"--partition=a100", "--time=4:00:00", "--gpus-per-task=2"}


# What cannot be


def test_what_an_engine_cannot_be_told_is_said_in_a_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, package in (("ray", "ray"), ("slurm", "submitit")):
        monkeypatch.setitem(sys.modules, package, None)
        assert main([*WORDS, "--engine", name]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f'{name} needs {package}, which is not installed: pip install "dfme[{name}]"' in line
    assert not (here / "out").exists()


def test_a_file_does_not_say_which_host_runs_it(here: Path) -> None:
    """It may be a stranger's; a comparison's own record may name the engine, and never where that
    is.
    """
    content = (
        "rows: {static: {method: {name: static}}}\n"
        "teacher: {checkpoint: teachers/checkpoints/digits.safetensors}\n"
    )

    elsewhere, record = "engine_options: [address=evil:6379]\n", Path("out/comparison.yaml")
    Path("c.yaml").write_text(content + elsewhere)
    refused("say --engine-options", plan_of, ["--config", "c.yaml", "--out", "out"])
    Path("out").mkdir()
    record.write_text(sealed(content + "engine: commands\n"))
    plan = plan_of(["--resume", "--out", "out"])
    assert (plan.config.engine, plan.config.retries, plan.jobs) == ("commands", 3, 1)
    record.write_text(sealed(content + elsewhere))
    refused("say --engine-options", plan_of, ["--resume", "--out", "out"])
