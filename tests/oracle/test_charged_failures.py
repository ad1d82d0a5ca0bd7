"""A teacher of one's own that fails, resumed again and again."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from damage import file_size_limit
from small_runs import BATCH, Metered, clone
from tables import exhaustive_rows
from torch import Tensor

from dfme.errors import BudgetExhausted, DfmeError, RunError, TeacherError, Unanswered, UserError
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode, TeacherInfo

BUDGET, CLASSES = 48, 500


def raising(error: BaseException) -> Callable[[Tensor], Tensor]:
    def act(scores: Tensor) -> Tensor:
        raise error

    return act


FAULTS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "NaN": (lambda p: p * torch.nan, "unusable answer"),
    "one row less": (lambda p: p[1:], "unusable answer"),
    "no numbers": (lambda p: "scores", "unusable answer"),
    "meta": (lambda p: p.to("meta"), "unusable answer"),
    "raises": (raising(ValueError("no\nroute")), "raised ValueError"),
    "ends the process": (raising(SystemExit(7)), "raised SystemExit"),
    "cancelled": (raising(asyncio.CancelledError()), "raised CancelledError"),
    "out of memory": (raising(MemoryError()), "raised MemoryError"),
    "Ctrl-C": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "a budget of its own": (raising(BudgetExhausted("of another meter")), "raised BudgetExhausted"),
    "a user's error": (raising(UserError("--teacher.x: no")), "UserError"),
    "its own word": (raising(TeacherError("gone", "gone")), "gone"),
    "unanswered": (raising(Unanswered("time-out", "timeout")), "timeout"),
    "a full disk": (lambda p: p, "answer not kept"),
}


class Server:
    """Counts what it is asked, and then does what ``act`` does to its answer."""

    spec, num_classes, label_mode = ImageSpec((1, 2, 2)), CLASSES, LabelMode("logits")
    info = TeacherInfo()

    def __init__(self, act: Callable[[Tensor], object] = lambda p: p) -> None:
        self.asked, self.act = 0, act

    def __call__(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return self.act(images.sum((1, 2, 3))[:, None].expand(-1, CLASSES))  # type: ignore[return-value]


def session(folder: Path, server: Server, budget: int = BUDGET) -> Ledger:
    """One process from its start to its end: evaluation images, then batches until the budget is
    spent.
    """
    ledger = Ledger(budget, folder / "l")
    oracle = Oracle(server, ledger, Journal(folder / "j"))
    try:
        oracle(torch.zeros(3, 1, 2, 2), "evaluation")
        while ledger.remaining:
            oracle(torch.full((min(8, ledger.remaining), 1, 2, 2), 0.5))
    except (DfmeError, KeyboardInterrupt):
        pass
    finally:
        oracle.close()
    return ledger


@pytest.mark.parametrize(
    ("name", "well"),
    [
        ("NaN", 0),
        ("unanswered", 0),
        *((name, 35) for name in FAULTS),
        *exhaustive_rows(
            [
                *[(name, 0) for name in FAULTS if name not in ("NaN", "unanswered")],
                *[(name, 3) for name in FAULTS if name != "a full disk"],
            ]
        ),
    ],
)
def test_many_resumes_ask_no_more_than_the_ledger_charges(
    name: str, well: int, tmp_path: Path
) -> None:
    """``well``: images until the teacher fails for good: those of the evaluation, and four
    batches.
    """
    act, reason = FAULTS[name]
    server = Server()
    server.act = lambda scores: act(scores) if server.asked > well else scores
    with file_size_limit(well * 2_100 + 5_000 if name == "a full disk" else 2**40):
        for _ in range(15):
            ledger = session(tmp_path, server)
            assert ledger.spent <= BUDGET
            assert server.asked == ledger.spent + ledger.evaluation_queries
    assert audit(tmp_path / "l") == ledger.totals()
    assert ledger.lost == 0
    assert list(ledger.reasons["failed"]) == [reason]
    assert ledger.spent == (0 if well == 0 else BUDGET)
    server.act = lambda scores: scores
    assert session(tmp_path, server, 3 * BUDGET).spent == 3 * BUDGET


def test_what_is_on_its_way_when_the_oracle_closes_stays_charged(tmp_path: Path) -> None:
    asked, go_on, ended = threading.Event(), threading.Event(), list[BaseException]()

    def wait(scores: Tensor) -> Tensor:
        asked.set()
        go_on.wait()
        return scores

    def ask() -> None:
        try:
            oracle(torch.zeros(8, 1, 2, 2))
        except DfmeError as error:
            ended.append(error)

    oracle = Oracle(Server(wait), Ledger(BUDGET, tmp_path / "l"), Journal(tmp_path / "j"))
    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait()
    oracle.close()
    oracle.close()
    go_on.set()
    thread.join()
    assert [str(error) for error in ended] == ["the run has ended; nothing more is sent"]
    totals = audit(tmp_path / "l")
    assert (totals.spent, totals.failed, totals.lost) == (8, 8, 0)
    assert session(tmp_path, Server()).spent == BUDGET


def test_where_the_disk_takes_no_line_either_nothing_more_is_asked(tmp_path: Path) -> None:
    server = Server()
    oracle = Oracle(server, Ledger(BUDGET, tmp_path / "l"), Journal(tmp_path / "j"))
    oracle(torch.zeros(8, 1, 2, 2))

    def fill_the_disk(scores: Tensor) -> Tensor:
        limit.__enter__()
        return scores

    server.act, limit = fill_the_disk, file_size_limit(10)
    try:
        with pytest.raises(RunError, match=r"cannot write .*000000.bin"):
            oracle(torch.ones(8, 1, 2, 2))
        oracle.close()
        for _ in range(3):
            again = Oracle(server, Ledger(BUDGET, tmp_path / "l"), Journal(tmp_path / "j"))
            with pytest.raises(RunError, match=r"cannot write .*/l:"):
                again(torch.zeros(8, 1, 2, 2))
            again.close()
    finally:
        limit.__exit__(None, None, None)
    assert (server.asked, audit(tmp_path / "l").lost) == (16, 0)
    again = Oracle(Server(), Ledger(BUDGET, tmp_path / "l"), Journal(tmp_path / "j"))
    again(torch.zeros(8, 1, 2, 2))
    assert (again.ledger.spent, again.ledger.lost) == (8, 8)


def test_a_budget_used_up_by_failures_ends_in_a_line_and_a_larger_one_goes_on(
    tmp_path: Path,
) -> None:
    class Failing(Metered):
        broken = True

        def __call__(self, images: Tensor) -> Tensor:
            return super().__call__(images) * (torch.nan if self.broken else 1.0)

    out, teacher = tmp_path / "run", Failing()
    for number in range(3):
        with pytest.raises(TeacherError, match="NaN"):
            clone(out, teacher, 3 * BATCH, resume=number > 0)
    for _ in range(2):
        with pytest.raises(
            BudgetExhausted, match=r"all 60 images .*unusable answer.*budget=\.\.\.$"
        ):
            clone(out, teacher, 3 * BATCH, resume=True)
        assert not (out / "summary.json").exists()
    teacher.broken = False
    summary = clone(out, teacher, 8 * BATCH, resume=True).summary
    assert teacher.served == summary["spent"] == 8 * BATCH
    assert (summary["failed"], summary["lost"]) == (3 * BATCH, 0)


@pytest.mark.parametrize("more", [0, 40])
def test_a_batch_given_up_is_asked_for_again_under_a_larger_budget(
    more: int, tmp_path: Path
) -> None:
    def ask(budget: int) -> Ledger:
        ledger = Ledger(budget, tmp_path / "l")
        oracle = Oracle(server, ledger, Journal(tmp_path / "j"))
        try:
            oracle(torch.zeros(20, 1, 2, 2), "check")
        finally:
            oracle.close()
        return ledger

    server = Server(lambda scores: scores * torch.nan)
    for error in (TeacherError, TeacherError, BudgetExhausted, BudgetExhausted):
        with pytest.raises(error):
            ask(40)
    server.act = lambda scores: scores
    if not more:
        with pytest.raises(
            BudgetExhausted, match=r"20 images \(check\) were asked for, 0 of 40 are left"
        ):
            ask(40)
    else:
        for _ in range(3):
            assert (ask(40 + more).spent, server.asked) == (60, 60)
    assert audit(tmp_path / "l").lost == 0
