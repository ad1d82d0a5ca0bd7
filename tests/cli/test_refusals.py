"""What the command line refuses: in one line, before anything is touched."""

from pathlib import Path

import pytest
from command_line import parse, run

from dfme.errors import UserError

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
