"""The oracle beside a teacher with a count of its own: what passes, what is refused, what is on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from known_teachers import Counting
from torch import Tensor, nn
from toys import LinearTeacher

from dfme.compute.modules import DeferredChecks
from dfme.errors import BudgetExhausted, Refused, RunError, TeacherError, Unanswered
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.run.evaluation import OwnersRecord
from dfme.spec import ImageSpec, Teacher, TeacherInfo
from dfme.teachers.custom import wrap_callable

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


COUNTED = (1, 8, 8)


def taken(teacher: Any, **more: Any) -> Teacher:
    return wrap_callable(teacher, shape=COUNTED, num_classes=10, **more)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *COUNTED, generator=torch.Generator().manual_seed(seed))


def failing(reason: type[Exception]) -> Any:
    def fail() -> None:
        raise reason("no answer", "time-out")

    return fail


def session(folder: Path, teacher: Counting, larger: int = 0) -> list[Tensor]:
    """One process: evaluation, a batch, one that is given up where the teacher fails, and what is
    left.
    """
    oracle = Oracle(
        taken(teacher, max_batch=4), Ledger(30 + larger, folder / "l"), Journal(folder / "j")
    )
    answers = [oracle(images(6), "evaluation"), oracle(images(8, 1), "generator")]
    try:
        answers.append(oracle(images(10, 2)))
    except BudgetExhausted:
        answers.append(oracle(images(oracle.ledger.remaining, 3)))
    oracle.close()
    return answers


@pytest.mark.parametrize("larger", [0, 40])
def test_a_batch_given_up_half_answered_moves_the_state_as_far_as_it_did(
    larger: int, tmp_path: Path
) -> None:
    """Of 30 images 8 are answered, 4 of the next 10, 4 four times in vain, and the last 2."""
    first = Counting(dict.fromkeys((4, 5, 6, 7), failing(Unanswered)))
    before = session(tmp_path, first)
    assert (first.answered, len(before[2])) == (8 + 4 + 2, 2)
    second = Counting()
    after = session(tmp_path, second, larger)
    assert (second.truths, second.honest) == (0, 0)
    if not larger:
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
        assert (second.answered, second.witnessed) == (0, 14)
        assert str(second.state_dict()) == str(first.state_dict())


def test_what_is_refused_moves_nothing() -> None:
    teacher, plain = Counting({1: failing(Refused)}), Counting()
    answers = [Oracle(taken(counted), Ledger(20))(images(5)) for counted in (teacher, plain)]
    assert torch.equal(*answers)
    assert teacher.answered == 5


def test_scoring_asks_the_truth_and_is_counted() -> None:
    teacher = Counting()
    oracle = Oracle(taken(teacher), Ledger(20))
    before = str(teacher.state_dict())
    assert torch.equal(oracle(images(9), "evaluation"), teacher._scores(images(9)))
    assert (oracle.ledger.evaluation_queries, oracle.ledger.spent, teacher.answered) == (9, 0, 0)
    assert (
        OwnersRecord(taken(teacher)).preview(images(9)).argmax(1).tolist()
        == teacher._answers(images(9), 0).argmax(1).tolist()
    )  # type: ignore[union-attr]
    assert str(teacher.state_dict()) == before
    oracle(images(9))
    assert str(teacher.state_dict()) != before


def test_names_that_mean_something_else_to_a_teacher_without_info_are_left_alone() -> None:
    class Own(nn.Module):
        served, truth, defences, report = 3, torch.zeros(5), "none", "ok"

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :10].softmax(dim=1)

    teacher = taken(Own().eval())
    oracle = Oracle(teacher, Ledger(20))
    assert len(oracle(images(3), "evaluation")) == 3
    assert ("teacher" in oracle.state_dict(), OwnersRecord(teacher).facts()) == (False, {})
