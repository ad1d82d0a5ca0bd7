"""``run.py drill``: what cannot work is said at once, before anything is loaded or asked."""

import os
import shlex
from pathlib import Path

import pytest
from command_line import one_line, run

from dfme.cli.arguments import Arguments
from dfme.cli.drill import INPUTS, _usual
from dfme.cli.flags import split_flags
from dfme.cli.main import main

V2 = "--teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model m --evaluation.dataset digits"
REFUSED = {
    V2: "--alarm-file: expected one of --alarm-file and --webhook-log: where your alarms go, got "
    "neither",
    f"{V2} --alarm-file a --webhook-log b": "--alarm-file: expected one of --alarm-file and "
    "--webhook-log: where your alarms go, got both",
    f"{V2} --alarm-file folder": "--alarm-file: expected a file, got a folder, a pipe or a device",
    f"{V2} --webhook-log pipe": "--webhook-log: expected a file, got a folder, a pipe or a device",
    f"{V2} --webhook-log a --account x": "--account: takes effect only with --alarm-file",
    f"{V2} --alarm-file a --within 5k": "--within: expected at most the 3,000 images of the budget",
    f"{V2} --alarm-file a --within 0": "--within: expected",
    f"{V2} --alarm-file a --wait -1": "--wait: expected",
    f"{V2} --alarm-file a --evaluation.dataset none": "--evaluation.dataset: expected a data set",
    f"{V2} --alarm-file a --alarmfile b": "--alarmfile: unknown flag; did you mean --alarm-file?",
    f"{V2} --alarm-file a --teacher.watch pairs --teacher.benign digits": "--teacher.watch",
    f"{V2} --alarm-file a --resume": "--resume: expected --out as well",
    "--alarm-file a": "--teacher.kind: expected a service",
    "--alarm-file a --teacher onnx --teacher.model m.onnx": "--teacher: expected a service (v2, "
    "json...) or a client of your own (module:Class): a model in this process raises no alarm",
    "--alarm-file a --teacher own:Linear --teacher.watch pairs --teacher.benign digits "
    "--evaluation.dataset digits": "--teacher.watch: leave it out: a drill is of what stands",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_one_line(
    here: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "folder").mkdir()
    os.mkfifo(here / "pipe")
    before = {path.name for path in here.iterdir()}
    assert run(f"drill {words}") == 2
    assert f"dfme: {REFUSED[words]}" in one_line(capsys)
    left = {path.name for path in here.iterdir()} - {"__pycache__"}  # of the module that it named
    assert left == before


def test_another_host_needs_consent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = V2.replace("127.0.0.1:9", "192.0.2.7")
    assert run(f"drill {words} --alarm-file a --out out") == 2
    assert "--teacher.authorised-by" in one_line(capsys)
    assert not (here / "out").exists()


def test_a_file_that_may_not_be_read_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert run(f"drill {V2} --alarm-file a") == 2
    assert "--alarm-file: expected a file that this user can read, got a" in one_line(capsys)


def test_the_directory_of_another_run_is_none_of_a_drill(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--teacher own:Linear --evaluation.dataset none --budget 40 --out run"
    small = "--method static --method.batch-size 8 --method.latent-size 8 --student.arch cnn_small"
    assert run(f"extract {words} {small}") == 0
    assert run("drill --resume --out run --alarm-file a") == 2
    assert "--out: expected the directory of a drill, got that of another run" in one_line(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--alarm-file a", ("frugal", "procedural", 3_000)),
        ("--recipe dfme --budget 9k", ("dfme", "dfme", 9_000)),
        ("--method static", ("static (default)", "static", 3_000)),
    ],
)
def test_the_cheapest_attack_and_few_queries_are_usual(
    words: str, expected: tuple[str, str, int]
) -> None:
    flags = split_flags(shlex.split(f"{V2} {words}"))
    arguments = Arguments([*_usual(flags), *flags], INPUTS)
    assert (arguments.config.recipe, arguments.method, arguments.config.budget) == expected


def test_the_help_has_what_holds_of_a_drill(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "--help"]) == 0
    text = capsys.readouterr().out
    assert "  --from\n" in text
    assert "default: frugal" in text
    assert "default: 3k" in text
