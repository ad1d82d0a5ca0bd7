"""Whatever stops a run, it says what to do, loses nothing that was paid, and goes on only as
itself.
"""

import hashlib
import json
import os
import shlex
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import only_line, refused_words
from processes import Bench
from small_runs import (
    BATCH,
    BUDGET,
    SMALL,
    Metered,
    clone,
    ctrl_c,
    lasting,
    queries,
    resumes_as,
    student,
)
from tables import all_hold, exhaustive

import dfme
from dfme.cli.main import main
from dfme.config.yaml_files import RELEASE, SEAL, load_yaml
from dfme.errors import UserError
from dfme.oracle.ledger import audit
from dfme.run.directory import RunDirectory

pytestmark = pytest.mark.full("generator")

# Stops


def test_a_second_ctrl_c_stops_at_once_and_the_batch_in_flight_stays_charged(
    tmp_path: Path,
) -> None:
    out, first, second = tmp_path / "run", Metered({8: lambda: (ctrl_c(), ctrl_c())}), Metered()
    with pytest.raises(KeyboardInterrupt):
        clone(out, first)
    assert first.served == 7 * BATCH
    result = clone(out, second, resume=True)
    assert first.served + second.served == BUDGET - BATCH
    assert (result.summary["spent"], result.summary["failed"], result.summary["lost"]) == (
        BUDGET,
        BATCH,
        0,
    )


def test_handlers_and_global_random_state_are_as_before(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    state = torch.get_rng_state()
    clone(tmp_path / "run", Metered({2: ctrl_c}))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert torch.equal(torch.get_rng_state(), state)


def test_wall_time_adds_up_over_the_sessions_and_leaves_out_the_pause(tmp_path: Path) -> None:
    seconds, began = 0.01, time.monotonic()
    first = clone(tmp_path / "run", Metered({6: ctrl_c}, seconds))
    middle = time.monotonic()
    time.sleep(0.4)
    second = clone(tmp_path / "run", Metered(seconds=seconds), resume=True)
    elapsed, wall = time.monotonic() - began - 0.4, second.summary["wall_seconds"]
    assert 10 * seconds <= first.summary["wall_seconds"] <= middle - began
    assert first.summary["wall_seconds"] + 10 * seconds <= wall <= elapsed
    assert second.summary["queries_per_second"] == pytest.approx(BUDGET / wall, rel=0.01)


# Budgets


@pytest.mark.parametrize("budget", [1, 257, *exhaustive(255, 256, 1_000, 1_792, 3_584)])
def test_the_budget_is_spent_to_the_last_image_by_the_teachers_own_count(
    budget: int, tmp_path: Path
) -> None:
    teacher, out = Metered(), tmp_path / "run"
    images = {"shape": (1, 8, 8), "num_classes": 10}
    result = dfme.extract(
        teacher, **images, budget=budget, recipe="paper", out=out, evaluation="none"
    )
    assert teacher.served == result.summary["spent"] == audit(out / "ledger.jsonl").spent == budget
    assert queries(out)[-1] == budget


@pytest.mark.parametrize("stops", [{}, {8: ctrl_c}], ids=["finished", "stopped"])
def test_a_larger_budget_goes_on_and_a_smaller_one_is_refused(
    stops: dict[int, Any], tmp_path: Path
) -> None:
    out, first, second = tmp_path / "run", Metered(stops), Metered()
    assert clone(out, first).finished is not bool(stops)
    with pytest.raises(UserError, match="other values of budget"):
        clone(out, second, BUDGET - 1, resume=True)
    assert second.served == 0
    result = clone(out, second, BUDGET + 77, resume=True)
    served, totals = first.served + second.served, audit(out / "ledger.jsonl")
    assert served == result.summary["spent"] == result.summary["budget"] == totals.budget
    assert served == BUDGET + 77
    assert queries(out) == sorted(set(queries(out)))


def test_a_run_of_planned_steps_keeps_its_budget_and_says_what_to_do_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = {"student": {"lr": 0.01, "steps": 8, "replay_batch": 8}}
    clone(tmp_path / "run", Metered(), **planned)
    clone(tmp_path / "run", Metered(), resume=True, progress=True, **planned)
    assert "--student.steps are planned" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"values of budget .* retrain"):
        clone(tmp_path / "run", Metered(), BUDGET + 77, resume=True, **planned)


# What a resumed run may not be, and what a finished one is


def test_another_configuration_is_refused_by_the_names_of_its_keys(
    cut_short: tuple[Path, int], whole: Path
) -> None:
    out, served = cut_short
    teacher = Metered()
    other = {"method_options": {"batch_size": 10, "latent_size": 16}, "seed": 5}
    with pytest.raises(UserError, match=r"seed, method\.batch_size .*config\.yaml"):
        clone(out, teacher, resume=True, **other)
    with pytest.raises(UserError, match=r"teacher\.kind"):
        clone(out, teacher=lambda images: images, resume=True)  # type: ignore[arg-type]
    resumes_as(whole, out, served + teacher.served)


def test_a_finished_run_gives_its_result_again_and_says_so(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*"))
    result = resumes_as(whole, whole, BUDGET, progress=True)
    out, err = capsys.readouterr()
    assert result.summary == json.loads((whole / "summary.json").read_text())
    assert (err.count("\n"), "nothing was asked" in err, "agreement" in out) == (1, True, True)
    assert sorted((path, path.stat().st_mtime_ns) for path in whole.rglob("*")) == before


@pytest.mark.parametrize("name", ["summary.json", "student.safetensors"])
def test_a_result_that_cannot_be_read_is_written_again_without_asking(
    name: str, whole: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    (out / name).write_bytes(b"{")
    assert resumes_as(whole, out, BUDGET).summary == json.loads((out / "summary.json").read_text())
    assert lasting(out) == lasting(whole)


# The command line, and --resume auto: one line that begins a run and goes on with it


def test_the_command_line_refuses_and_repeats(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SMALL, "--out", "run", "--resume", "auto"]
    Path("run").mkdir()
    for name in (".lock", "config.yaml.tmp"):  # as a process killed at its beginning leaves it
        Path("run", name).write_text("budg")
    assert main(line) == 0
    assert audit(Path("run/ledger.jsonl")).spent == 100
    before = files()
    capsys.readouterr()
    for words, message in (
        ([*SMALL, "--out", "run"], "--out: 'run' exists"),
        (["--resume", "--out", "run", "--seed", "5"], "other values of seed (see run/config.yaml)"),
        ([*line, "--method.latent-size", "17"], "other values of method.latent_size"),
        (["--resume", "--out", "run", "--budget", "99"], "other values of budget"),
        (["--resume", "--out", "run2"], "'run2' has no config.yaml"),
        ([*line, "--dry-run"], "--dry-run: expected no --resume"),
        ([*SMALL, "--out", "run", "--resume", "maybe"], "expected true or false or auto"),
        ([*SMALL, "--resume", "auto"], "--resume: expected --out as well"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert message in err
        assert (err.splitlines()[-1][:5], out) == ("dfme:", "")
    for again in (line, ["--out", "run", "--resume=auto"], ["--resume", "--out", "run"]):
        assert main(again) == 0
        assert "nothing was asked" in capsys.readouterr().err
    assert files() == before
    assert "resume: false" in Path("run/config.yaml").read_text(), "its recipe starts a new one"
    assert main(["--resume", "--out", "run", "--budget", "150"]) == 0
    assert audit(Path("run/ledger.jsonl")).spent == 150


def files() -> dict[str, bytes]:
    paths = (path for path in Path("run").rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in paths}


def test_what_is_no_run_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    Path("run/thesis.tex").touch()
    assert "no run in it" in refused_words([*SMALL, "--out", "run", "--resume", "auto"], capsys)
    assert [path.name for path in Path("run").iterdir()] == ["thesis.tex"]


def test_from_python_one_call_begins_goes_on_and_is_finished(tmp_path: Path, whole: Path) -> None:
    teachers = [Metered({3: ctrl_c}), Metered(), Metered()]
    out = tmp_path / "run"
    ends = [clone(out, teacher, resume="auto").finished for teacher in teachers]
    assert ends == [False, True, True]
    assert (teachers[0].served + teachers[1].served, teachers[2].served) == (BUDGET, 0)
    assert student(out) == student(whole)
    with pytest.raises(UserError, match=r"expected out=\.\.\. as well"):
        clone(None, teachers[2], resume="auto")  # type: ignore[arg-type]


def test_a_directory_in_use_is_said_to_be_so_before_it_is_said_to_be_full(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_config("seed: 0")
        for opened in (RunDirectory.create, RunDirectory.open_for_resume):
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
                opened(tmp_path)
    with pytest.raises(UserError, match="files"):
        RunDirectory.create(tmp_path)


# config.yaml is the run's own record: one that was changed is not resumed from


def is_refused(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    config, before = Path("run/config.yaml"), files()
    written = config.read_text()
    assert changed != written
    config.write_text(changed)
    try:
        assert "run/config.yaml: expected the file as the run wrote it" in only_line(
            "--resume --out run --budget 200", capsys
        )
    finally:
        config.write_text(written)
    assert files() == before


def test_a_changed_config_is_refused_in_one_line_and_what_was_written_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value, an order, a blank, a line more, a line less."""
    assert main([*SMALL, "--out", "run"]) == 0
    capsys.readouterr()
    text = Path("run/config.yaml").read_text()
    assert load_yaml(Path("run/config.yaml"), own=True) == load_yaml(Path("run/config.yaml"))
    *above, last = text.splitlines(keepends=True)
    digest = hashlib.sha256("".join(above).encode()).hexdigest()
    assert last == f"{SEAL}{digest}\n"
    edited = "".join(above).replace("lr: 0.1\n", "lr: 0.2\n", 1)
    cases = [
        edited + last,
        text.replace("lr: 0.1", "lr:  0.1", 1),
        text + "seed: 7\n",
        text + "\n",
        "".join([above[1], above[0], *above[2:]]) + last,
        "".join(above[:-1]) + last,
        edited,
        "".join(above),
        text[:-2],
        text[:-1],
        "".join(above) + last.upper(),
        text.replace("\n", "\r\n"),
    ]
    all_hold(is_refused, [(case, capsys) for case in cases])
    assert main(["--config", "run/config.yaml", "--out", "new"]) == 0, (
        "a recipe for whoever names it"
    )
    assert main(["--resume", "--out", "run", "--budget", "200"]) == 0
    assert main(["--resume", "--out", "run", "--budget", "300"]) == 0, "and it was written anew"


@pytest.mark.parametrize(("line", "release"), [("# dfme 9.9, ", "9.9"), ("# ", "before 0.13")])
def test_a_run_of_another_release_is_refused_by_its_name(
    line: str, release: str, whole: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, here / "run")
    config = here / "run/config.yaml"
    config.write_text(config.read_text().replace(f"# dfme {RELEASE}, ", line))
    assert f"expected a file of dfme {RELEASE}, got one of dfme {release}" in only_line(
        "--resume --out run", capsys
    )


# Processes

SIGNALLED = (
    "--method.name dfme --method.batch-size 64 --budget 2500 --evaluation.dataset digits".split()
)


@pytest.mark.exhaustive
def test_a_signal_keeps_a_run_for_the_command(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.here(bench.flags("whole", *SIGNALLED))
    for number in (signal.SIGINT, signal.SIGTERM):
        out = f"a run {number}"
        process = bench.start(bench.flags(out, *SIGNALLED))
        ledger = tmp_path / out / "ledger.jsonl"
        while process.poll() is None and (
            not ledger.exists() or ledger.read_bytes().count(b'"charge"') < 20
        ):
            time.sleep(0.005)
        process.send_signal(number)
        output, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "stopping after the step in progress" in err
        assert "Traceback" not in err
        command = shlex.split(output.strip().splitlines()[-1])
        bench.here(command[command.index("--resume") :])
        assert bench.student(out) == bench.student("whole")
        assert bench.served(out) == bench.served("whole") == 2_500 + 359


@pytest.mark.integration
def test_two_at_once_run_once_and_a_killed_one_ends_as_if_never_killed(tmp_path: Path) -> None:
    bench, whole = Bench(tmp_path / "bench"), Bench(tmp_path / "whole")
    small = [*SMALL, "--budget", "2000", "--checkpoint-seconds", "0"]
    words = bench.flags("run", *small, "--resume", "auto")
    pair = [bench.start(words) for _ in range(2)]
    while all(process.poll() is None for process in pair):
        time.sleep(0.01)
    while not (bench.folder / "run/checkpoint.pt").exists():
        time.sleep(0.01)
    for process in pair:
        process.send_signal(signal.SIGKILL)
    errors = [process.communicate()[1] for process in pair]
    assert sorted(process.returncode for process in pair) == [-signal.SIGKILL, 2], errors
    assert sum("in use by process" in text for text in errors) == 1
    bench.here(words)
    assert "nothing was asked now" in bench.here(words)
    whole.here(whole.flags("run", *small))
    record = audit(bench.folder / "run/ledger.jsonl")
    assert record.spent + record.lost == bench.served("run")
    assert bench.student("run") == whole.student("run")
