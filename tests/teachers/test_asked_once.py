"""A teacher of one's own is asked each image once, and what it is asked outside a charge is in the ledger."""

from pathlib import Path

import torch
from torch import Tensor

from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec
from dfme.teachers.custom import wrap_callable
from dfme.teachers.label_modes import AskedOnce

SPEC = ImageSpec((1, 2, 2))


class Counted:
    """Scores by arithmetic, and a count of the images that were asked."""

    shape, num_classes = (1, 2, 2), 2

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return torch.stack([1 - images.mean((1, 2, 3)), images.mean((1, 2, 3))], 1)


def test_each_image_is_asked_once_within_a_batch_and_over_batches() -> None:
    own, x_BCHW = Counted(), torch.rand(6, *SPEC.shape)
    teacher = wrap_callable(own)
    once = AskedOnce(teacher, teacher)
    twice_BCHW = torch.cat([x_BCHW, x_BCHW.flip(0)])
    assert torch.equal(once(twice_BCHW), Counted()(twice_BCHW))
    assert own.asked == 6
    assert torch.equal(once(x_BCHW[2:]), Counted()(x_BCHW[2:]))
    assert own.asked == 6
    once(x_BCHW + 1)
    assert own.asked == 12


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
