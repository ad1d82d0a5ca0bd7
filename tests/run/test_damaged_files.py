"""Damaged files and full disks: explained in one line, nothing asked."""

import shutil
from pathlib import Path

import pytest
from damage import DAMAGES, file_size_limit
from handmade import make_run
from small_runs import BATCH, BUDGET, Metered, clone, ctrl_c, queries, student
from tables import exhaustive_rows

from dfme.errors import RunError, UserError
from dfme.report.page import write_report


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_explained_and_nothing_is_asked(
    damage: str, cut_short: tuple[Path, int], whole: Path
) -> None:
    """And the refused attempt does no harm: with the file restored."""
    out, served = cut_short
    name, change, message = DAMAGES[damage]
    data, teacher = (out / name).read_bytes(), Metered()
    (out / name).write_bytes(change(data))
    with pytest.raises(UserError, match=message) as caught:
        clone(out, teacher, resume=True)
    assert Path(name).name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert teacher.calls == 0
    (out / name).write_bytes(data)
    clone(out, teacher, resume=True)
    assert served + teacher.served == BUDGET
    assert student(out) == student(whole)


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_a_last_line_torn_by_a_kill_is_no_damage(
    name: str, cut_short: tuple[Path, int], whole: Path
) -> None:
    out, served = cut_short
    teacher = Metered()
    with (out / name).open("ab") as file:
        file.write(b'{"seq":15,"event":"cha')
    clone(out, teacher, resume=True)
    assert served + teacher.served == BUDGET
    assert student(out) == student(whole)
    assert queries(out) == queries(whole)


def test_a_damaged_checkpoint_names_the_one_before_and_that_one_works(
    tmp_path: Path, whole: Path
) -> None:
    out, teachers = tmp_path / "run", [Metered({3: ctrl_c}), Metered({3: ctrl_c}), Metered()]
    for number, teacher in enumerate(teachers[:2]):
        clone(out, teacher, resume=number > 0)
    (out / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(
        RunError, match=r"checkpoint\.previous\.pt is whole: rename it to checkpoint\.pt and resume"
    ):
        clone(out, teachers[2], resume=True)
    (out / "checkpoint.previous.pt").rename(out / "checkpoint.pt")
    clone(out, teachers[2], resume=True)
    assert sum(teacher.served for teacher in teachers) == BUDGET
    assert student(out) == student(whole)


def test_a_journal_that_is_gone_is_paid_again_and_called_lost(
    cut_short: tuple[Path, int], whole: Path
) -> None:
    out, served = cut_short
    shutil.rmtree(out / "journal")
    teacher = Metered()
    result = clone(out, teacher, resume=True)
    assert result.summary["spent"] == BUDGET
    assert served + teacher.served == BUDGET + result.summary["lost"]
    assert result.summary["lost"] == 3 * BATCH  # the answers since the checkpoint
    assert student(out) == student(whole)


STRANGE_LINES = {
    "deep": b'{"seq":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "endless": b" " * (2 << 20),
    "bytes of no text": b"\xff\xfe{}\n",
}


@pytest.mark.parametrize("line", STRANGE_LINES)
def test_a_strange_line_is_named(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    for name in ("ledger.jsonl", "metrics.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(STRANGE_LINES[line] + whole)
        with pytest.raises(RunError, match=f"{name}(, line 1|: expected lines)"):
            write_report(run)
        (run / name).write_bytes(whole)


# No space


@pytest.mark.parametrize(
    ("size", "file"),
    [
        (20, "config.yaml"),
        (86_000, "checkpoint.pt"),
        *exhaustive_rows([(10_000, "000000.bin")]),
    ],
)
def test_no_space_left_is_one_line_and_the_run_goes_on_later(
    size: int, file: str, tmp_path: Path, whole: Path
) -> None:
    out, first, second = tmp_path / "run", Metered(), Metered()
    with (
        file_size_limit(size),
        pytest.raises(RunError, match=f"cannot write .*{file}: .*; nothing recorded") as caught,
    ):
        clone(out, first)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    result = clone(out, second, resume=(out / "config.yaml").exists())
    if (
        file == "000000.bin"
    ):  # an answer that came, and was not kept: it stays charged, and is charged again
        assert first.served + second.served == BUDGET
        assert (result.summary["failed"], result.summary["lost"]) == (BATCH, 0)
        return
    assert first.served + second.served == BUDGET + min(
        result.summary["lost"], first.served and BATCH
    )
    assert student(out) == student(whole)
    assert queries(out) == queries(whole)
