"""A teacher of one's counted is asked each image once, and what it is asked outside a charge is in the
ledger.
"""

import hashlib
import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from refusals import refusal
from torch import Tensor

from dfme.errors import RunError, TeacherError
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
from dfme.teachers import asked_once
from dfme.teachers.asked_once import AskedOnce, spared
from dfme.teachers.custom import wrap_callable

SPEC = ImageSpec((1, 2, 2))


class Counted:
    """Scores by arithmetic, and a count of the images that were asked."""

    shape, num_classes = (1, 2, 2), 2

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return torch.stack([1 - images.mean((1, 2, 3)), images.mean((1, 2, 3))], 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shared.sqlite"


def test_each_image_is_asked_once_within_a_batch_and_over_batches(tmp_path: Path) -> None:
    counted, x_BCHW = Counted(), torch.rand(6, *SPEC.shape)
    once = AskedOnce(wrap_callable(counted), tmp_path / "asked")
    twice_BCHW = torch.cat([x_BCHW, x_BCHW.flip(0)])
    assert torch.equal(once(twice_BCHW), Counted()(twice_BCHW))
    assert counted.asked == 6
    assert torch.equal(once(x_BCHW[2:]), Counted()(x_BCHW[2:]))
    assert counted.asked == 6
    once(x_BCHW + 1)
    assert counted.asked == 12


def test_runs_that_share_a_file_ask_an_image_once_also_at_the_same_time(file: Path) -> None:
    x_BCHW = torch.rand(8, *SPEC.shape)
    counted = [Counted(), Counted()]
    ledgers = [Ledger(100), Ledger(100)]

    def attack(run: int) -> Tensor:
        oracle = Oracle(AskedOnce(wrap_callable(counted[run]), file), ledgers[run])
        return torch.cat([oracle(part) for part in x_BCHW.split(1)])

    with ThreadPoolExecutor(2) as pool:
        answers = [*pool.map(attack, range(2))]
    assert counted[0].asked + counted[1].asked == 8
    assert torch.equal(*answers)
    assert [ledger.spent for ledger in ledgers] == [8, 8]  # each attacker's budget counts them
    assert spared([file]) == 8


def test_what_is_no_answer_is_not_kept_and_a_failure_keeps_nothing(file: Path) -> None:
    broken = iter([torch.full((2, 2), float("nan")), ConnectionError("gone")])
    counted = Counted()

    def answer(images: Tensor) -> Tensor:
        answer_or_error = next(broken, None)
        if isinstance(answer_or_error, Exception):
            raise answer_or_error
        return counted(images) if answer_or_error is None else answer_or_error

    teacher = wrap_callable(answer, shape=SPEC.shape, num_classes=2)
    ledger = Ledger(100)
    oracle = Oracle(AskedOnce(teacher, file), ledger)
    x_BCHW = torch.rand(2, *SPEC.shape)
    for problem in ("none negative", "gone"):
        refusal(problem, oracle, x_BCHW, error=TeacherError)
    assert torch.equal(oracle(x_BCHW), Counted()(x_BCHW))
    assert (counted.asked, ledger.spent, spared([file])) == (2, 6, 0)


def test_a_damaged_file_of_answers_is_refused_by_its_name(file: Path) -> None:
    file.write_bytes(b"no database, though as long as one would be " * 50)
    refusal(
        r"shared\.sqlite: cannot keep the answers .* remove it to ask again",
        AskedOnce,
        wrap_callable(Counted()),
        file,
        error=RunError,
    )


@pytest.mark.parametrize("ending", ["", "-journal", "-wal"])
def test_nothing_is_written_through_a_link(tmp_path: Path, ending: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"")
    Path(f"{tmp_path}/shared.sqlite{ending}").symlink_to(precious)
    refusal(
        r"got a link.*nothing is written",
        AskedOnce,
        wrap_callable(Counted()),
        tmp_path / "shared.sqlite",
        error=RunError,
    )
    assert precious.read_bytes() == b""


def test_nothing_is_written_into_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".evaluation").symlink_to(tmp_path / "elsewhere")
    refusal(
        "got a link",
        AskedOnce,
        wrap_callable(Counted()),
        tmp_path / ".evaluation" / "shared.sqlite",
        error=RunError,
    )
    assert not any((tmp_path / "elsewhere").iterdir())


STRANGE = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM spared; END",
    "view": "CREATE VIEW v AS SELECT 1",
    "answers": (
        "DROP TABLE answers; CREATE VIEW answers AS SELECT x'00' AS image, 1 AS answer, 2 AS digest"
    ),
    "index": "CREATE INDEX i ON answers (answer)",
    "other": "CREATE TABLE other (a)",
    "default": "DROP TABLE spared; CREATE TABLE spared (images INTEGER DEFAULT 7)",
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_file_with_more_than_our_tables_is_refused(file: Path, what: str) -> None:
    counted = Counted()
    once = AskedOnce(wrap_callable(counted), file)
    with closing(sqlite3.connect(file)) as database:
        database.executescript(STRANGE[what])
    refusal(
        "expected the answers that runs of this version share, got",
        once,
        torch.rand(2, *SPEC.shape),
        error=RunError,
    )
    refusal("remove it to ask again", spared, [file], error=RunError)
    assert counted.asked == 0


def test_an_answer_of_another_image_is_refused(file: Path) -> None:
    once = AskedOnce(wrap_callable(Counted()), file)
    x_BCHW = torch.rand(2, *SPEC.shape)
    expected = once(x_BCHW)
    codes = [hashlib.sha256(image.tobytes()).digest() for image in x_BCHW.numpy()]
    with closing(sqlite3.connect(file)) as database, database:
        rows = dict(database.execute("SELECT image, answer FROM answers"))
        assert rows[codes[0]] == expected[0].numpy().tobytes()
        wrong = (rows[codes[1]], codes[0])
        database.execute("UPDATE answers SET answer = ? WHERE image = ?", wrong)
    assert torch.equal(once(x_BCHW[1:]), expected[1:])
    refusal("not the one that was kept for its image", once, x_BCHW[:1], error=RunError)


def test_answers_of_another_form_are_refused(file: Path) -> None:
    x_BCHW = torch.rand(2, *SPEC.shape)
    AskedOnce(wrap_callable(Counted()), file)(x_BCHW)
    three = wrap_callable(lambda images: torch.eye(3)[:2], shape=SPEC.shape, num_classes=3)
    with pytest.raises(RunError, match="not of the form probabilities with 3 classes"):
        AskedOnce(three, file)(x_BCHW)


def test_a_held_file_is_said_and_given_up(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert (asked_once.SAID_AFTER, asked_once.GIVEN_UP_AFTER) == (2.0, 60.0)
    monkeypatch.setattr(asked_once, "SAID_AFTER", 0.05)
    monkeypatch.setattr(asked_once, "GIVEN_UP_AFTER", 0.2)
    monkeypatch.setattr(logging.getLogger("dfme"), "propagate", True)
    once = AskedOnce(wrap_callable(Counted()), file)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    refusal(
        r"held by another process for .* resume this run",
        once,
        torch.rand(1, *SPEC.shape),
        error=RunError,
    )
    assert 0.2 < time.monotonic() - started < 20
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for another run, which asks the same teacher: it holds {file}"
    ]
    holder.execute("ROLLBACK")
    holder.close()
    once(torch.rand(1, *SPEC.shape))


def test_a_slow_teacher_is_asked_in_parts_so_that_others_are_let_in(tmp_path: Path) -> None:
    counted = Counted()
    once = AskedOnce(wrap_callable(counted), tmp_path / "shared.sqlite")
    x_BCHW = torch.rand(7, *SPEC.shape)
    once(x_BCHW[:1])
    once._seconds_per_image = asked_once.HELD / 2
    assert torch.equal(once(x_BCHW), Counted()(x_BCHW))
    assert counted.asked == 7


def test_what_is_asked_outside_a_charge_is_in_the_ledger_before_it_is_asked(tmp_path: Path) -> None:
    counted = Counted()
    teacher = wrap_callable(counted)
    teacher(
        torch.rand(3, *SPEC.shape)
    )  # before there is a ledger, as the calibration of a watch is
    ledger = Ledger(10, tmp_path / "ledger.jsonl")
    oracle = Oracle(teacher, ledger)
    teacher.info.report_uncharged(ledger.record_beside)
    oracle(torch.rand(4, *SPEC.shape))
    oracle(torch.rand(2, *SPEC.shape), purpose="evaluation")
    teacher(torch.rand(5, *SPEC.shape))
    ledger.close()
    for totals in (ledger.totals(), audit(tmp_path / "ledger.jsonl")):
        assert (totals.spent, totals.evaluation_queries, totals.benign_queries) == (4, 2, 8)
        assert totals.served == counted.asked == 14
    again = Ledger(10, tmp_path / "ledger.jsonl", ledger.state_dict())
    again.record_beside(1)
    assert again.totals().benign_queries == 9  # it goes on from the file
