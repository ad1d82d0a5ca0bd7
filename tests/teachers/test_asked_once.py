"""A teacher of one's own is asked each image once, and what it is asked outside a charge is in the ledger."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dfme.errors import RunError, TeacherError
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
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


def test_each_image_is_asked_once_within_a_batch_and_over_batches(tmp_path: Path) -> None:
    own, x_BCHW = Counted(), torch.rand(6, *SPEC.shape)
    teacher = wrap_callable(own)
    once = AskedOnce(teacher, tmp_path / "asked")
    twice_BCHW = torch.cat([x_BCHW, x_BCHW.flip(0)])
    assert torch.equal(once(twice_BCHW), Counted()(twice_BCHW))
    assert own.asked == 6
    assert torch.equal(once(x_BCHW[2:]), Counted()(x_BCHW[2:]))
    assert own.asked == 6
    once(x_BCHW + 1)
    assert own.asked == 12


def test_runs_that_share_a_file_ask_an_image_once_also_at_the_same_time(tmp_path: Path) -> None:
    x_BCHW = torch.rand(8, *SPEC.shape)
    file = tmp_path / "shared.sqlite"
    own = [Counted(), Counted()]
    ledgers = [Ledger(100), Ledger(100)]
    found: dict[int, Tensor] = {}

    def attack(run: int) -> None:
        oracle = Oracle(AskedOnce(wrap_callable(own[run]), file), ledgers[run])
        found[run] = torch.cat([oracle(part) for part in x_BCHW.split(1)])

    threads = [threading.Thread(target=attack, args=(run,)) for run in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own[0].asked + own[1].asked == 8
    assert torch.equal(found[0], found[1])
    assert [each.spent for each in ledgers] == [8, 8]  # each attacker's budget counts them
    assert spared([file]) == 8


def test_what_is_no_answer_is_not_kept_and_a_failure_keeps_nothing(tmp_path: Path) -> None:
    broken = iter([torch.full((2, 2), float("nan")), ConnectionError("gone")])
    own = Counted()

    def answer(images: Tensor) -> Tensor:
        said = next(broken, None)
        if isinstance(said, Exception):
            raise said
        return own(images) if said is None else said

    teacher = wrap_callable(answer, shape=SPEC.shape, num_classes=2)
    file = tmp_path / "shared.sqlite"
    ledger = Ledger(100)
    oracle = Oracle(AskedOnce(teacher, file), ledger)
    x_BCHW = torch.rand(2, *SPEC.shape)
    for problem in ("none negative", "gone"):
        with pytest.raises(TeacherError, match=problem):
            oracle(x_BCHW)
    assert torch.equal(oracle(x_BCHW), Counted()(x_BCHW))
    assert (own.asked, ledger.spent, spared([file])) == (2, 6, 0)


def test_a_damaged_file_of_answers_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "shared.sqlite"
    file.write_bytes(b"no database, though as long as one would be " * 50)
    with pytest.raises(RunError, match=r"shared\.sqlite: cannot keep the answers .* remove it to ask again"):
        AskedOnce(wrap_callable(Counted()), file)


def test_what_is_asked_outside_a_charge_is_in_the_ledger_before_it_is_asked(tmp_path: Path) -> None:
    own = Counted()
    teacher = wrap_callable(own)
    teacher(torch.rand(3, *SPEC.shape))  # before there is a ledger, as the calibration of a watch is
    ledger = Ledger(10, tmp_path / "ledger.jsonl")
    oracle = Oracle(teacher, ledger)
    teacher.info.report_uncharged(ledger.record_beside)
    oracle(torch.rand(4, *SPEC.shape))
    oracle(torch.rand(2, *SPEC.shape), purpose="evaluation")
    teacher(torch.rand(5, *SPEC.shape))
    ledger.close()
    for totals in (ledger.totals(), audit(tmp_path / "ledger.jsonl")):
        assert (totals.spent, totals.evaluation_queries, totals.benign_queries) == (4, 2, 8)
        assert totals.served == own.asked == 14
    again = Ledger(10, tmp_path / "ledger.jsonl", ledger.state_dict())
    again.record_beside(1)
    assert again.totals().benign_queries == 9  # it goes on from the file
