"""Help, exit codes, and the process as a whole: how fast it answers, without torch; what is refused, in
one line; the lines on stderr.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import parse, run
from processes import Bench

import dfme
from dfme.cli.main import VERBS, main
from dfme.errors import UserError
from dfme.run.job import PROJECT


@pytest.mark.parametrize("command", VERBS)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: run.py {command}" in capsys.readouterr().out


def test_help_shows_the_options_of_the_teacher_and_method_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("extract --teacher own_teachers:Classifier --method static --help-all") == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "--teacher.weights",
        "where its weights lie",
        "--teacher.retries",
        "--method.student-steps",
    ):
        assert words in text
    assert "--teacher.checkpoint" not in text
    assert "--estimator.directions" not in text


def test_what_a_file_says_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    torch.save({"\x1b[31m\u202e" + "a" * 100_000: torch.ones(1)}, tmp_path / "x.pt")
    assert run(f"check --teacher.checkpoint {tmp_path / 'x.pt'}") == 2
    line = capsys.readouterr().err
    assert line.removesuffix("\n").isprintable()
    assert "its architecture cannot be told" in line
    assert len(line) < 11_000


def test_help_shows_what_matters_first_and_help_all_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sections: list[set[str]] = []
    for word in ("--help", "--help-all"):
        assert run(f"extract {word}") == 0
        lines = capsys.readouterr().out.splitlines()
        sections.append({line.strip() for line in lines if line.startswith("  --")})
    first, everything = sections
    assert len(first) <= 22
    assert len(everything) > 80
    assert {"--config", "--budget", "--teacher.checkpoint", "--method.name"} < first < everything


def test_the_overview_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(f"  {name} " in overview for name in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dfme {dfme.__version__}\n"


def _cpu_seconds(command: list[str], code: int = 0) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == code
    assert "Traceback" not in process.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def importing_torch() -> float:
    """CPU seconds of `import torch`: the measure of this machine, on which a second may be long or
    short.
    """
    return min(_cpu_seconds([sys.executable, "-c", "import torch"]) for _ in range(2))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "code"), [("--help", 0), ("extract --help", 0), ("--student.arch x", 2)]
)
def test_answers_in_half_the_time_of_importing_torch(
    words: str, code: int, importing_torch: float
) -> None:
    command = [sys.executable, str(PROJECT / "run.py"), *words.split()]
    assert min(_cpu_seconds(command, code) for _ in range(2)) < importing_torch / 2


def test_extract_hands_the_job_to_the_builder(fake_build: list[tuple[Any, ...]]) -> None:
    assert main(["--config", "recipe.yaml", "--seed", "3"]) == 0
    assert main(["extract", "--config", "recipe.yaml", "--seed", "3"]) == 0
    expected = (parse("--config recipe.yaml --seed 3"), None, False, True)
    assert fake_build == [expected, expected]


def test_interruption_and_errors_have_their_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dfme.cli import main as cli
    from dfme.errors import TeacherError

    def raising(error: BaseException) -> Any:
        def run(argv: Any) -> int:
            raise error

        return SimpleNamespace(run=run)

    codes: list[tuple[BaseException, int]] = [
        (TeacherError("it\nfailed"), 3),
        (KeyboardInterrupt(), 130),
    ]
    for error, code in codes:
        monkeypatch.setattr(cli, "find", lambda name, error=error: raising(error))
        assert main(["extract"]) == code
    assert capsys.readouterr().err == "dfme: it failed\n"
    monkeypatch.setattr(cli, "find", lambda name: raising(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):
        main(["extract"])


def test_one_of_several_processes_of_torchrun_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE: expected 1 process, got 2" in refused_words(
        "--budget 100 --dry-run", capsys
    )


@pytest.mark.integration
def test_a_closed_pipe_is_quiet() -> None:
    words = f"{sys.executable} {PROJECT / 'run.py'} extract --help | head -n 1"
    process = subprocess.run(
        words, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.stdout, process.stderr) == ("usage: run.py extract [FLAGS]\n", "")


@pytest.mark.integration
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_without_room_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "dfme", "--version"]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        to: dict[str, Any] = {"stdout": full, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.run(words, cwd=PROJECT, env=environment, **to)
    assert (process.returncode, process.stderr.count("\n")) == (1, 1)
    assert "cannot write the output: No space left on device" in process.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    "words", [["-m", "dfme", "--version"], ["-c", "import dfme; dfme.extract"]], ids=" ".join
)
def test_folders_of_the_same_names_where_one_works_are_not_imported(
    words: list[str], tmp_path: Path
) -> None:
    for name in ("teachers", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise SystemExit('somebody else was imported')"
        )
    how: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": str(PROJECT)},
        "cwd": tmp_path,
        "text": True,
    }
    process = subprocess.run([sys.executable, *words], **how, capture_output=True)
    assert (process.returncode, process.stderr) == (0, "")


# Refusals: in one line, before anything is touched

TABLE = Path(__file__).with_name("wrong_words.txt").read_text(encoding="utf-8").splitlines()
WRONG = [line.split(" => ") for line in TABLE if line and not line.startswith("#")]


def is_refused(folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    """Exit code 2, one line with these words, and nothing made."""
    before = sorted(folder.rglob("*"))
    assert run(line) == 2
    out, err = capsys.readouterr()
    for words in message.split(" ... "):
        assert words in err
        err = err[err.index(words) :]
    assert (out, err.count("\n")) == ("", 1)
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_words_are_one_line_and_touch_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    is_refused(here, capsys, line, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("budgt: 3", "budgt: unknown key; did you mean budget?"),
        ("student: {lrr: 3}", "student.lrr: unknown key; did you mean student.lr?"),
        ("student: {lr: fast}", "student.lr: expected a number, got 'fast'"),
        ("student: 3", "student: a group of options; expected one of its own such as student.arch"),
        ("budget: -1", "budget: expected at least 1, got -1"),
        ("seed: [1]", "seed: expected a whole number, got [1]"),
        ("method: dfmee", "got 'dfmee'; did you mean dfme?"),
        ("budget: 1\nbudget: 2", "expected YAML: line 2: key 'budget' stands there twice"),
        ("teacher: {checkpoint: nowhere.pt}", "teacher.checkpoint: expected a file"),
        (
            "student: {final_share: 0.5}",
            "student.final_share: no longer an option: student.rounds 1",
        ),
    ],
)
def test_a_wrong_recipe_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (here / "wrong.yaml").write_text(content)
    is_refused(here, capsys, "--config wrong.yaml", message)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        parse(
            "--bugdet 3 --seed x --student.lr -1 --teacher.checkpoint nowhere.pt --out weights.pt"
        )
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["bugdet", "seed", "student.lr", "teacher.checkpoint", "out"]
    assert all(f"--{key}: " in str(caught.value) for key in keys)


# A command's stderr holds lines of ours and no others, to the end of its process

OURS = re.compile(
    r"about [\d:]+ |\d+ of \d+ cells done|teacher .*, method "
    r"|  budget [\d,]+ queries, device |running on .*, recorded in |the budget of "
    r"[\d,]+ images "
    r"|[\d,]+ / [\d,]+ queries |epoch \d+/|warning: the |teacher .* it answers |(\[1/1\] )?static-\S+: "
)
SMALL = (
    "--student.arch cnn_small --method.student-steps 1 --method.batch-size 20 --evaluation.limit 50"
)
COMPARISON = """\
methods: [static]
seeds: [0]
budgets: [100]
student_steps: 5
rows:
  static:
    method: {name: static, batch_size: 20, student_steps: 1}
teacher:
  kind: torch
  checkpoint: CHECKPOINT
student: {arch: cnn_small}
evaluation: {dataset: digits, limit: 50}
"""


def foreign(err: str) -> list[str]:
    return [line for line in err.splitlines() if not OURS.match(line)]


@pytest.mark.integration
def test_every_line_is_ours(tmp_path: Path) -> None:
    checkpoint = PROJECT / "teachers" / "checkpoints" / "digits.safetensors"
    (tmp_path / "compare.yaml").write_text(COMPARISON.replace("CHECKPOINT", str(checkpoint)))
    bench = Bench(tmp_path)
    for line in (
        f"--budget 100 {SMALL} --out run",
        "train-teacher --arch cnn_small --epochs 1 --out teacher.safetensors",
        "evaluate --student run",
        "report run",
        "compare --config compare.yaml --jobs 1 --out comparison",
    ):
        code, _, err = bench.run(line.split())
        assert (code, foreign(err)) == (0, []), line
