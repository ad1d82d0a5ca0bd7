"""Kills at every kind of instant: inside any write, before, in and after a send, around a
checkpoint.

The teacher keeps its own count and survives the kills. A killed run must, once resumed to its end,
have seen the answers of an uninterrupted one, bitwise, for the same budget; what the teacher served
beyond it must be called lost.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dfme.files
from dfme.errors import BudgetExhausted
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, Purpose, audit
from dfme.oracle.oracle import Oracle
from dfme.run.checkpoint import load_checkpoint, save_checkpoint
from dfme.spec import ImageSpec, LabelMode, TeacherInfo

Plan = list[tuple[int, Purpose, bool]]
"""Calls of a run: images, purpose, and whether a checkpoint follows."""

MAX_BATCH = 4


class Killed(KeyboardInterrupt):
    """What SIGKILL is to the code under test: nothing below may run any further."""


class Server:
    """A teacher that counts what it served, and what its client charged and was killed before
    sending.
    """

    def __init__(self) -> None:
        self.spec = ImageSpec((1, 2, 2))
        self.num_classes = 2
        self.label_mode = LabelMode("logits")
        self.info = TeacherInfo(max_batch=MAX_BATCH)
        self.served = 0
        self.unserved = 0
        self.kill: Kill | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.kill is not None:
            self.kill.instant(self, len(images))
        self.served += len(images)
        if self.kill is not None:
            self.kill.instant()
        return self.scores(images)

    @staticmethod
    def scores(images: Tensor) -> Tensor:
        return images.flatten(1).sum(1, keepdim=True) * torch.tensor([[1.0, -2.0]])


@dataclass
class Kill:
    """Strikes at the ``after``-th instant; in a write, once the share ``torn`` of its bytes is
    written.
    """

    after: int
    torn: float

    def instant(self, server: Server | None = None, unserved: int = 0) -> None:
        self.after -= 1
        if self.after == 0:
            if server is not None:
                server.unserved += unserved
            raise Killed

    def write(
        self, server: Server, file: dfme.files.AppendFile, *chunks: bytes | memoryview
    ) -> None:
        if self.after <= 0:
            raise Killed
        data = b"".join(chunks)
        last = self.after == 1
        APPEND(file, data[: int(len(data) * self.torn)] if last else data)
        charged = last and self.torn == 1.0 and b'"charge"' in data
        self.instant(server, json.loads(data)["images"] if charged else 0)


APPEND = dfme.files.AppendFile.append


def session(
    folder: Path, server: Server, plan: Plan, budget: int, journaled: bool
) -> tuple[Tensor, Oracle]:
    """One process: resume from what is on disk and go on to the end of the plan or of the
    budget.
    """
    checkpoint = folder / "checkpoint.pt"
    saved: dict[str, Any] = load_checkpoint(checkpoint) if checkpoint.exists() else {}
    paid = saved.get("oracle", {"ledger": None, "journal": None})
    ledger = Ledger(budget, folder / "ledger.jsonl", paid["ledger"])
    oracle = Oracle(
        server, ledger, Journal(folder / "journal", paid["journal"]) if journaled else None
    )
    learnt, done = saved.get("learnt", torch.tensor(0.3)), saved.get("done", 0)
    for images, purpose, keep in plan[done:]:
        queries = ((learnt + torch.arange(images * 4) * 0.137) % 1).reshape(images, 1, 2, 2)
        try:
            learnt = (learnt * 0.7 + oracle(queries, purpose).sum() * 0.31) % 1
        except BudgetExhausted:
            break
        done += 1
        if keep:
            save_checkpoint(
                checkpoint, {"oracle": oracle.state_dict(), "learnt": learnt, "done": done}
            )
            if server.kill is not None:
                server.kill.instant()
            oracle.checkpointed()
    return learnt, oracle


purposes = st.sampled_from(["student", "generator", "evaluation"])
plans = st.lists(st.tuples(st.integers(1, 10), purposes, st.booleans()), min_size=1, max_size=8)
kills = st.lists(
    st.builds(Kill, st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5, 0.99, 1.0])), max_size=4
)


@given(plan=plans, kills=kills, budget=st.integers(1, 60), journaled=st.booleans())
@settings(max_examples=25, deadline=None)
def test_killed_and_resumed_is_as_if_never_killed(
    tmp_path_factory: pytest.TempPathFactory,
    plan: Plan,
    kills: list[Kill],
    budget: int,
    journaled: bool,
) -> None:
    expected, reference = session(
        tmp_path_factory.mktemp("whole"), Server(), plan, budget, journaled
    )
    folder, server, strikes = tmp_path_factory.mktemp("killed"), Server(), 0
    for kill in kills:
        server.kill = kill
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                dfme.files.AppendFile, "append", lambda *args, kill=kill: kill.write(server, *args)
            )
            try:
                session(folder, server, plan, budget, journaled)
            except Killed:
                strikes += 1
        assert audit(folder / "ledger.jsonl").spent <= budget
    server.kill = None
    learnt, oracle = session(folder, server, plan, budget, journaled)
    ledger = oracle.ledger
    assert torch.equal(learnt, expected)
    assert ledger.spent_by_purpose == reference.ledger.spent_by_purpose
    assert ledger.evaluation_queries == reference.ledger.evaluation_queries
    assert audit(folder / "ledger.jsonl") == ledger.totals()
    # What was charged and never sent is lost as well: afterwards nobody can know that it was not
    # served.
    assert server.served + server.unserved == ledger.spent + ledger.evaluation_queries + ledger.lost
    if journaled:
        assert ledger.lost <= strikes * MAX_BATCH
