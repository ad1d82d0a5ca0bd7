"""The oracle beside a teacher with a count of its own: what passes, what is refused, what is on
disk.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import LinearTeacher

from dfme.compute.modules import DeferredChecks
from dfme.errors import BudgetExhausted, RunError, TeacherError
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, TeacherInfo

SHAPE = (1, 2, 2)


class Server(LinearTeacher):
    """Its batches are its meter; it answers what ``during`` gives, if anything."""

    def __init__(
        self, mode: str = "logits", max_batch: int | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(ImageSpec(SHAPE), 3, mode, device)
        self.info = TeacherInfo(device, max_batch)
        self.truth = super().__call__
        self.batches: list[int] = []
        self.during: Callable[[Tensor], Any] = lambda images: None

    @property
    def served(self) -> int:
        return sum(self.batches)

    def logits(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :3] * 5  # the same in a batch of any size

    def __call__(self, images: Tensor, /) -> Tensor:
        self.batches.append(len(images))
        odd = self.during(images)
        return self.truth(images) if odd is None else odd


@pytest.fixture
def server() -> Server:
    return Server()


def test_answers_are_the_teachers_and_counted(server: Server) -> None:
    oracle = Oracle(server, Ledger(100))
    x = torch.rand(7, *SHAPE)
    assert torch.equal(oracle(x), server.truth(x))
    assert torch.equal(oracle(x[:2], "evaluation"), server.truth(x[:2]))
    assert (oracle.ledger.spent, oracle.ledger.evaluation_queries, server.served) == (7, 2, 9)
    assert (oracle.spec, oracle.num_classes, oracle.label_mode) == (
        server.spec,
        3,
        server.label_mode,
    )


def test_a_batch_is_split_to_what_the_teacher_takes_and_beyond_the_budget_refused_whole() -> None:
    server = Server(max_batch=3)
    oracle = Oracle(server, Ledger(10))
    x = torch.rand(7, *SHAPE)
    assert torch.equal(oracle(x[:4]), server.truth(x[:4]))
    with pytest.raises(BudgetExhausted):
        oracle(x)
    assert server.batches == [3, 1]
    oracle(torch.rand(6, *SHAPE))
    assert (server.served, oracle.ledger.remaining) == (10, 0)


@pytest.mark.parametrize("mode", ["logits", "label"])
def test_no_images_cost_nothing(mode: str) -> None:
    server = Server(mode)
    answers = Oracle(server, Ledger(1))(torch.rand(0, *SHAPE))
    expected = torch.empty(0, dtype=torch.int64) if mode == "label" else torch.empty(0, 3)
    assert (answers.shape, answers.dtype) == (expected.shape, expected.dtype)
    assert server.batches == []


@pytest.mark.parametrize(
    "images",
    [torch.rand(2, 1, 2, 3), torch.rand(2, 4), torch.rand(1, 2, 2), torch.ones(2, 1, 2, 2).long()],
)
def test_images_of_another_kind_are_refused_before_the_send(server: Server, images: Tensor) -> None:
    oracle = Oracle(server, Ledger(100))
    with pytest.raises(
        ValueError, match=r"expected floating-point images \(B, 1, 2, 2\), got "
    ) as caught:
        oracle(images)
    assert str(tuple(images.shape)) in str(caught.value)
    assert (server.served, oracle.ledger.spent) == (0, 0)


@pytest.mark.parametrize("value", [1.01, -0.01, float("nan"), float("inf")])
def test_images_out_of_bounds_are_refused_but_for_evaluation(server: Server, value: float) -> None:
    x = torch.rand(2, *SHAPE)
    x[1, 0, 1, 1] = value
    oracle = Oracle(server, Ledger(100))
    with pytest.raises(ValueError, match="expected student images within 0 and 1, got "):
        oracle(x)
    assert server.served == 0
    if abs(value) < 2:
        oracle(x, "evaluation")
    else:
        with pytest.raises(ValueError, match="evaluation images"):
            oracle(x, "evaluation")
    oracle(torch.full((1, *SHAPE), 1.00001))


def test_the_wire_carries_only_the_lattice() -> None:
    server = Server()
    server.spec = ImageSpec(SHAPE, levels=5)
    seen: list[Tensor] = []
    server.during = lambda images: seen.append(images.clone())
    x = torch.rand(6, *SHAPE)
    Oracle(server, Ledger(100))(x)
    assert torch.equal(seen[0], (x * 4).round() / 4)


def test_the_teacher_sees_float32_without_history_grad_or_autocast(server: Server) -> None:
    facts: list[object] = []

    def note(x: Tensor) -> None:
        facts.extend([x.dtype, x.requires_grad, x.is_contiguous()])
        facts.extend([torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")])

    server.during = note
    x = torch.rand(4, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answers = Oracle(server, Ledger(100))(x.transpose(2, 3))
        facts.append(torch.is_autocast_enabled("cpu"))
    assert facts == [torch.float32, False, True, False, False, True]
    assert (torch.is_grad_enabled(), answers.requires_grad) == (True, False)


def test_nothing_is_shared_with_the_teacher(server: Server) -> None:
    x = torch.rand(4, *SHAPE)
    before, kept = x.clone(), torch.zeros(4, 3)

    def meddle(images: Tensor) -> Tensor:
        images.mul_(0)
        return kept

    server.during = meddle
    answers = Oracle(server, Ledger(100))(x)
    kept.fill_(9)
    assert torch.equal(x, before)
    assert torch.equal(answers, torch.zeros(4, 3))


def test_a_teacher_that_raises_is_named_and_its_images_stay_charged(server: Server) -> None:
    def fail(images: Tensor) -> None:
        raise ConnectionError("no\nroute")

    server.during = fail
    oracle = Oracle(server, Ledger(100))
    with pytest.raises(
        TeacherError, match=r"answers to 5 images .*ConnectionError: no route"
    ) as caught:
        oracle(torch.rand(5, *SHAPE))
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert (oracle.ledger.spent, oracle.ledger.failed) == (5, 5)
    assert oracle.ledger.reasons == {"failed": {"raised ConnectionError": 1}}


def test_charge_comes_before_the_send_and_record_before_the_use(tmp_path: Path) -> None:
    server = Server()
    path, segment = tmp_path / "ledger.jsonl", tmp_path / "journal" / "000000.bin"
    spent: list[tuple[int, int]] = []
    server.during = lambda images: spent.append((audit(path).spent, segment.stat().st_size))
    oracle = Oracle(server, Ledger(100, path), Journal(tmp_path / "journal"))
    answers = oracle(torch.rand(4, *SHAPE))
    assert spent == [(4, 0)]
    assert segment.read_bytes().endswith(answers.numpy().tobytes())


def test_a_resumed_run_that_asks_something_else_is_refused_before_it_pays(tmp_path: Path) -> None:
    server = Server()
    x = torch.rand(4, *SHAPE)
    Oracle(server, Ledger(100, tmp_path / "l"), Journal(tmp_path / "j"))(x)
    for query in (x + 1e-6, x[:3], torch.cat([x, x])):
        oracle = Oracle(server, Ledger(100, tmp_path / "l"), Journal(tmp_path / "j"))
        with pytest.raises(RunError, match=r"asks something else .*request 1 .*pay again"):
            oracle(query.clamp(0, 1))
    oracle = Oracle(server, Ledger(100, tmp_path / "l"), Journal(tmp_path / "j"))
    with pytest.raises(RunError, match="expected charge 1 to be 4 images for generator"):
        oracle(x, "generator")
    assert server.served == 4


@pytest.fixture
def cuda_server() -> Server:
    return Server(device="cuda")


@pytest.mark.gpu
def test_without_a_journal_nothing_waits_for_a_gpu(cuda_server: Server) -> None:
    deferred = DeferredChecks()
    oracle = Oracle(cuda_server, Ledger(100), deferred=deferred)
    x = torch.rand(4, *SHAPE, device="cuda")
    oracle(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        answers = oracle(x)
        oracle(x + 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(answers, cuda_server.truth(x))
    with pytest.raises(ValueError, match="within 0 and 1"):
        deferred.verify()


@pytest.mark.gpu
def test_a_wrong_answer_on_a_gpu_is_noticed_where_it_is_recorded(
    cuda_server: Server, tmp_path: Path
) -> None:
    cuda_server.during = lambda images: torch.full((len(images), 3), torch.nan, device="cuda")
    oracle = Oracle(cuda_server, Ledger(100), Journal(tmp_path), deferred=DeferredChecks())
    with pytest.raises(TeacherError, match="finite"):
        oracle(torch.rand(4, *SHAPE, device="cuda"))
