"""Whole runs by the command line, of teachers of one's own, which may fail on the way."""

from pathlib import Path

import pytest
from command_line import SMALL, one_line, run, summary
from tables import exhaustive_rows


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        (
            "own:Linear --teacher.scale 3 --teacher.shape 2,7,5 --teacher.label-mode "
            "probabilities:4",
            None,
        ),
        ("own:Linear --teacher.levels 256 --teacher.max-batch 3", "probabilities"),
        ("own:Linear --teacher.mean .5 --teacher.std .25 --teacher.bounds 0,255", "probabilities"),
        ("own:Linear --teacher.label-mode top_k:2 --method static", "top_k:2"),
        ("own:Linear --teacher.label-mode label --method static", "label"),
        ("own:Labels --method static", "label"),
        ("own:Arrays", "probabilities"),
        ("own:make --teacher.scale 2 --teacher.shape 3,8,8", "probabilities"),
    ],
)
def test_teachers_of_one_s_own(flags: str, mode: str | None) -> None:
    assert run(f"--teacher {flags} --budget 75 --out run {SMALL}") == 0
    result = summary()
    assert (result["spent"], result["label_mode"]) == (75, mode or flags.split()[-1])
    least = -(-75 // 3) if "max-batch" in flags else 1
    assert result["requests"] >= least


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "but it raised ConnectionError: the server went away"),
        ("infinity", "got NaN or infinite values"),
        ("twice", "a sum that is 1 away from one"),
        ("nothing", "expected a tensor, an array or a list of numbers, got NoneType"),
        *exhaustive_rows(
            [
                ("ends the process", "but it raised SystemExit: 7"),
                ("one score", "got (16,); if these are labels"),
                ("eight classes", "(16, 4), a row per image and a column per class, got (16, 8)"),
                ("one image less", "(16, 4), a row per image and a column per class, got (15, 4)"),
                ("logits", "if these are logits, start a new run with --teacher.label-mode logits"),
            ]
        ),
    ],
)
def test_a_teacher_that_fails_halfway_can_be_mended(
    capsys: pytest.CaptureFixture[str], fault: str, message: str
) -> None:
    Path("fault.txt").write_text(fault)
    assert run(f"--teacher own:Linear --budget 90 --out run {SMALL}") == 3
    line = one_line(capsys)
    assert message in line
    resume = line.partition("all that was paid is kept: ")[2]
    assert resume.endswith("--resume --out run")
    assert not Path("run/summary.json").exists()
    Path("fault.txt").unlink()
    assert run(resume.partition("run.py ")[2]) == 0
    result = summary()  # the batch that was served but not answered well stays charged
    assert (result["spent"], result["failed"], result["lost"]) == (90, 16, 0)


def test_a_lost_answer_is_not_taken_for_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--teacher own:Lost --teacher.label-mode label --method static --budget 9 --out run"
    assert run(f"{words} {SMALL}") == 3
    assert "labels from -1 to -1 (-1: its scores were NaN)" in one_line(capsys)
