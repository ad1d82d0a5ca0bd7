"""Whatever stops a run, it says what to do, loses nothing that was paid, and ends as if undisturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_runs
import torch
from processes import Bench
from small_runs import BATCH, BUDGET, Metered, clone, ctrl_c, queries, student
from tiers import exhaustive

import dfme
from dfme.cli.main import main
from dfme.errors import UserError
from dfme.oracle.ledger import audit
from dfme.run.directory import RunDirectory


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


# Stops


def test_ctrl_c_ends_the_step_in_progress_and_the_rest_comes_later(tmp_path: Path, whole: Path) -> None:
    out, first, second = tmp_path / "run", Metered({3: ctrl_c}), Metered()
    result = clone(out, first)
    assert not result.finished
    assert first.served == result.summary["spent"] == 100
    assert (out / "checkpoint.pt").exists()
    assert not (out / "summary.json").exists()
    result = clone(out, second, resume=True)
    assert result.finished
    assert first.served + second.served == result.summary["spent"] == BUDGET
    assert student(out) == student(whole)
    assert queries(out) == queries(whole) == [100, 200, 300, 400]


def test_a_second_ctrl_c_stops_at_once_and_the_batch_in_flight_stays_charged(tmp_path: Path) -> None:
    out, first, second = tmp_path / "run", Metered({8: lambda: (ctrl_c(), ctrl_c())}), Metered()
    with pytest.raises(KeyboardInterrupt):
        clone(out, first)
    assert first.served == 7 * BATCH
    result = clone(out, second, resume=True)
    assert first.served + second.served == BUDGET - BATCH
    assert (result.summary["spent"], result.summary["failed"], result.summary["lost"]) == (BUDGET, BATCH, 0)


def test_a_teacher_that_breaks_down_before_it_serves_costs_nothing(cut_short: tuple[Path, int], whole: Path) -> None:
    out, served = cut_short
    teacher = Metered()
    result = clone(out, teacher, resume=True)
    ledger = audit(out / "ledger.jsonl")
    assert (result.summary["spent"], ledger.spent, ledger.lost) == (BUDGET, BUDGET, 0)
    assert served + teacher.served == BUDGET
    assert student(out) == student(whole)


def test_handlers_and_global_random_state_are_as_before(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    state = torch.get_rng_state()
    clone(tmp_path / "run", Metered({2: ctrl_c}))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.equal(torch.get_rng_state(), state)


def test_wall_time_adds_up_over_the_sessions_and_leaves_out_the_pause(tmp_path: Path) -> None:
    seconds, began = 0.03, time.monotonic()
    first = clone(tmp_path / "run", Metered({6: ctrl_c}, seconds))
    middle = time.monotonic()
    time.sleep(1.0)
    second = clone(tmp_path / "run", Metered(seconds=seconds), resume=True)
    elapsed = time.monotonic() - began - 1.0
    assert 10 * seconds <= first.summary["wall_seconds"] <= middle - began
    assert first.summary["wall_seconds"] + 10 * seconds <= second.summary["wall_seconds"] <= elapsed
    assert second.summary["queries_per_second"] == pytest.approx(BUDGET / second.summary["wall_seconds"], rel=0.01)


# Budgets


@pytest.mark.parametrize("budget", [1, 257, 1_792, *exhaustive(255, 256, 1_000, 3_584)])
def test_the_budget_is_spent_to_the_last_image_by_the_teachers_own_count(budget: int, tmp_path: Path) -> None:
    teacher = Metered()
    images = {"shape": (1, 8, 8), "num_classes": 10}
    result = dfme.extract(teacher, **images, budget=budget, recipe="paper", out=tmp_path / "run", evaluation="none")
    assert teacher.served == result.summary["spent"] == budget
    assert audit(tmp_path / "run" / "ledger.jsonl").spent == budget
    assert queries(tmp_path / "run")[-1] == budget


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_larger_budget_goes_on_and_a_smaller_one_is_refused(interrupted: bool, tmp_path: Path) -> None:
    out, first, second = tmp_path / "run", Metered({8: ctrl_c} if interrupted else {}), Metered()
    assert clone(out, first).finished is not interrupted
    with pytest.raises(UserError, match="this run was started with other values of budget"):
        clone(out, second, BUDGET - 1, resume=True)
    assert second.served == 0
    result = clone(out, second, BUDGET + 77, resume=True)
    assert first.served + second.served == result.summary["spent"] == result.summary["budget"] == BUDGET + 77
    assert queries(out) == sorted(set(queries(out)))
    assert audit(out / "ledger.jsonl").budget == BUDGET + 77


def test_a_run_of_planned_steps_keeps_its_budget_and_says_what_to_do_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = {"student": {"lr": 0.01, "steps": 8, "replay_batch": 8}}
    clone(tmp_path / "run", Metered(), **planned)
    clone(tmp_path / "run", Metered(), resume=True, progress=True, **planned)
    assert "to go on, since --student.steps are planned" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"other values of budget .* start a new run, or train again .* retrain"):
        clone(tmp_path / "run", Metered(), BUDGET + 77, resume=True, **planned)


def test_a_larger_budget_after_a_kill_first_repeats_what_was_paid(cut_short: tuple[Path, int]) -> None:
    out, served = cut_short
    teacher = Metered()
    result = clone(out, teacher, BUDGET + 1, resume=True)
    assert served + teacher.served == result.summary["spent"] == BUDGET + 1


# What a resumed run may not be


def test_another_configuration_is_refused_by_the_names_of_its_keys(cut_short: tuple[Path, int], whole: Path) -> None:
    out, _ = cut_short
    teacher = Metered()
    other = {"method_options": {"batch_size": 10, "latent_size": 16}, "seed": 5}
    with pytest.raises(UserError, match=r"other values of seed, method\.batch_size \(see .*config\.yaml\)") as caught:
        clone(out, teacher, resume=True, **other)
    assert caught.value.exit_code == 2
    assert teacher.served == 0
    with pytest.raises(UserError, match=r"other values of teacher\.kind"):
        clone(out, teacher=lambda images: images, resume=True)  # type: ignore[arg-type]
    clone(out, teacher, resume=True)
    assert student(out) == student(whole)


def test_a_finished_run_gives_its_result_again_and_says_so(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher, before = Metered(), sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*"))
    result = clone(whole, teacher, resume=True, progress=True)
    shown = capsys.readouterr()
    assert teacher.calls == 0
    assert result.finished
    assert result.summary == json.loads((whole / "summary.json").read_text())
    assert shown.err.count("\n") == 1
    assert "finished before with all of its 400 queries, nothing was asked now" in shown.err
    assert "agreement" in shown.out
    assert sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*")) == before


@pytest.mark.parametrize("name", ["summary.json", "student.safetensors"])
def test_a_result_that_cannot_be_read_is_written_again_without_asking(name: str, whole: Path, tmp_path: Path) -> None:
    out, teacher = tmp_path / "run", Metered()
    shutil.copytree(whole, out)
    (out / name).write_bytes(b"{")
    result = clone(out, teacher, resume=True)
    assert teacher.calls == 0
    assert student(out) == student(whole)
    assert result.summary == json.loads((out / "summary.json").read_text())
    assert result.summary["agreement"] == json.loads((whole / "summary.json").read_text())["agreement"]


def test_a_directory_with_files_is_not_written_to(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (whole, tmp_path):
        with pytest.raises(UserError, match="exists; give another"):
            clone(out, Metered())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_directory_in_use_is_refused_and_named(cut_short: tuple[Path, int]) -> None:
    out, _ = cut_short
    teacher = Metered()
    with RunDirectory.open_for_resume(out), pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        clone(out, teacher, resume=True)
    assert teacher.calls == 0
    assert clone(out, teacher, resume=True).finished


def test_a_run_killed_before_its_first_file_was_whole_is_no_obstacle(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / "config.yaml.tmp").write_text("budget: 20")
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        clone(out, Metered(), resume=True)
    clone(out, Metered())
    assert student(out) == student(whole)


def test_the_recipe_of_a_resumed_run_starts_a_new_one(cut_short: tuple[Path, int]) -> None:
    out, _ = cut_short
    clone(out, Metered(), resume=True)
    assert "resume: false" in (out / "config.yaml").read_text()


# The same as a person meets it


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Bench(tmp_path)


SMALL = ["--method.name", "static", "--method.batch-size", "100", "--budget", "1000", "--evaluation.dataset", "none"]


def test_the_command_line_refuses_and_repeats(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench.flags("run", *SMALL)) == 0
    served = bench.served("run")
    capsys.readouterr()
    for words, message in (
        (bench.flags("run", *SMALL), "--out: 'run' exists"),
        (["--resume", "--out", "run", "--seed", "5"], "other values of seed (see run/config.yaml)"),
        (["--resume", "--out", "run", "--budget", "999"], "other values of budget"),
        (["--resume", "--out", "run2"], "'run2' has no config.yaml"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert message in err
        assert (err.count("\n"), out) == (1, "")
    assert main(["--resume", "--out", "run"]) == 0
    assert "nothing was asked now" in capsys.readouterr().err
    assert bench.served("run") == served == 1000
    assert main(["--resume", "--out", "run", "--budget", "1500"]) == 0
    assert bench.served("run") == bench.summary("run")["spent"] == 1500


def wait_for_requests(process: subprocess.Popen[str], ledger: Path, requests: int) -> None:
    while process.poll() is None and (not ledger.exists() or ledger.read_bytes().count(b'"charge"') < requests):
        time.sleep(0.005)


SIGNALLED = ["--method.name", "dfme", "--method.batch-size", "64", "--budget", "5000", "--evaluation.dataset", "digits"]


@pytest.fixture(scope="module")
def unsignalled(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("unsignalled") / "bench")
    assert made.run(made.flags("whole", *SIGNALLED))[0] == 0
    return made


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_a_run_for_the_command(number: signal.Signals, bench: Bench, unsignalled: Bench) -> None:
    process = bench.start(bench.flags("a run", *SIGNALLED))
    wait_for_requests(process, bench.folder / "a run" / "ledger.jsonl", 20)

    # Meanwhile nobody else may work on that run.
    if number == signal.SIGINT:
        process.send_signal(signal.SIGSTOP)
        code, out, err = bench.run(["--resume", "--out", "a run"])
        process.send_signal(signal.SIGCONT)
        assert (code, out) == (2, "")
        holder = f"in use by process {process.pid}; wait for it to end, stop it, or choose another --out"
        assert err == f"dfme: --out a run: {holder}\n"

    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping after the step in progress" in err and "Traceback" not in err  # noqa: PT018
    assert (bench.folder / "a run" / "checkpoint.pt").exists()
    said, command = out.strip().split("\n")
    assert said.startswith("stopped and kept after ")
    paths = {**bench.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    again = subprocess.run(command, shell=True, cwd=bench.folder, env=paths, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert bench.student("a run") == unsignalled.student("whole")
    assert bench.served("a run") == unsignalled.served("whole") == 5_000 + 359


@pytest.mark.integration
def test_a_resumed_run_is_the_same_run_in_wandb(tmp_path: Path) -> None:
    out = tmp_path / "run"
    clone(out, Metered({3: ctrl_c}), wandb={"mode": "offline"})
    identity = json.loads((out / "wandb.json").read_text())["id"]
    clone(out, Metered(), resume=True, wandb={"mode": "offline"})
    assert json.loads((out / "wandb.json").read_text())["id"] == identity
    parts = list(out.glob("wandb/offline-run-*"))
    assert len(parts) == 2
    # Two parts of the same second get a number behind the id.
    assert all(f"-{identity}" in part.name for part in parts), parts
