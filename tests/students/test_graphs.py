"""With graphs a run is the run without, bit for bit. On a CPU, what was captured runs anew on its buffers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_graphs import FakeGraph, faked
from small_runs import Metered, break_down, clone, ctrl_c, no_pictures, student
from tiers import exhaustive
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from toys import LinearTeacher, make_parts

from dfme import graphs
from dfme.errors import TeacherError
from dfme.graphs import GraphedForward, release
from dfme.nets.generators import Generator
from dfme.run import build
from dfme.spec import ImageSpec
from dfme.students.optimizers import ScheduledOptimizer, gradient_norm
from dfme.students.trainer import StudentTrainer

SPEC = ImageSpec((1, 8, 8))
SMALL = {"batch_size": 8, "latent_size": 16, "student_steps": 3}
BUDGET = 8 * 5 * 7 + 3
"""Seven steps of DFME and three images more."""


def small_net(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, num_classes))


def dropping_net(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


@contextmanager
def with_graphs(graph: type[FakeGraph] = FakeGraph) -> Iterator[None]:
    """Runs of ``dfme.extract`` with --graphs, which as an option is the command line's."""
    plain = build.run_job

    def run_job(job: Any, **others: Any) -> Any:
        return plain(dataclasses.replace(job, config=dataclasses.replace(job.config, graphs=True)), **others)

    with pytest.MonkeyPatch.context() as patch, faked(graph):
        patch.setattr(build, "run_job", run_job)
        yield


def cloned(out: Path, teacher: Metered | None = None, resume: bool = False, **changes: Any) -> bytes:
    settings = {"method": "dfme", "method_options": SMALL} | changes
    settings["student"] = {
        "arch": small_net,
        **settings.get("student", {"lr": 0.01, "replay_steps": 1, "average": 0.9}),
    }
    with no_pictures():
        clone(out, teacher or Metered(), BUDGET, resume, **settings)
    return student(out)


CASES: dict[str, dict[str, Any]] = {
    "replay and average": {},
    "average of every second step": {"student": {"lr": 0.01, "average": 0.9, "average_every": 2}},
    "adam": {"student": {"lr": 0.001, "optimizer": "adam"}},
    "rounds": {"student": {"lr": 0.01, "steps": 90, "rounds": (0.4, 1.0), "average": 0.9, "replay_batch": 24}},
    "weight decay of what is held": {"student": {"lr": 0.01, "replay_steps": 1, "decay_images": 500}},
}


TELLING = ["replay and average", "rounds"]


@pytest.mark.parametrize("name", [*TELLING, *exhaustive(*(name for name in CASES if name not in TELLING))])
def test_a_run_with_graphs_is_the_run_without(tmp_path: Path, name: str) -> None:
    without = cloned(tmp_path / "without", **CASES[name])
    with with_graphs():
        assert cloned(tmp_path / "with", **CASES[name]) == without
        assert FakeGraph.captured >= 3
        assert FakeGraph.replayed > 25


def test_a_killed_run_with_graphs_is_resumed_to_the_student_of_one_without(tmp_path: Path) -> None:
    without = cloned(tmp_path / "without")
    with with_graphs():
        cloned(tmp_path / "with", Metered({14: ctrl_c}))
        with pytest.raises(TeacherError):
            cloned(tmp_path / "with", Metered({9: break_down}), resume=True)
        assert cloned(tmp_path / "with", resume=True) == without


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "dual_students"}, "the students' step goes on without, since there are several"),
        ({"estimator": {"direction": "range"}}, "the generator goes on without, since a hook watches"),
    ],
)
def test_what_cannot_be_captured_goes_on_without_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    without = cloned(tmp_path / "without", **changes)
    with with_graphs():
        assert cloned(tmp_path / "with", **changes) == without
        assert FakeGraph.replayed > 10, "the rest is replayed"
    assert [record.getMessage().startswith(f"--graphs: {said}") for record in caplog.records if "graphs" in str(record)]
    assert caplog.text.count(said) == 1


class Breaking(FakeGraph):
    """A capture that fails once it has drawn, computed and changed all that it could."""

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        run()
        torch.rand(3)
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_fails_leaves_everything_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dropping = {"student": {"arch": dropping_net, "lr": 0.1}}
    for name, changes in {"usual": {}, "drawing": dropping}.items():
        caplog.clear()
        without = cloned(tmp_path / f"{name} without", **changes)
        with with_graphs(Breaking):
            assert cloned(tmp_path / f"{name} with", **changes) == without
        assert (
            caplog.text.count("the student's step goes on without, since it cannot be captured (RuntimeError: op") == 1
        )


def trained(optimizer: str, steps: int, graphs: bool) -> StudentTrainer:
    """A trainer after so many steps, the last of which were replayed."""
    settings: dict[str, Any] = {"optimizer": optimizer, "average": 0.9, "lr": 0.01}
    trainer = make_parts(LinearTeacher(SPEC), 800, **settings).students
    if graphs:
        trainer.use_graphs()
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        images = torch.rand(8, 1, 8, 8, generator=rng)
        trainer.learn(images, LinearTeacher(SPEC)(images))
    return trainer


def addresses(trainer: StudentTrainer) -> list[int]:
    averaged = trainer.delivered
    nets = [each for net in (trainer.net, averaged) for each in (*net.parameters(), *net.buffers())]
    return [each.data_ptr() for each in (*nets, *trainer._optimizer.moments)]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_everything_keeps_its_address(optimizer: str) -> None:
    with faked():
        trainer = trained(optimizer, 2, graphs=True)
        before, later = addresses(trainer), trained(optimizer, 6, graphs=True)
        assert len(before) > 20
        trainer._begin_round(1)
        assert addresses(trainer) == before
        trainer.load_state_dict(copy.deepcopy(later.state_dict()))
        assert addresses(trainer) == before
        for own, other in zip(trainer._optimizer.moments, later._optimizer.moments, strict=True):
            assert torch.equal(own, other)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_round_begins_like_a_new_optimiser_and_graphs_go_on(optimizer: str) -> None:
    with faked():
        ends = []
        for way in ("graphs", "eager", "new"):
            trainer = trained(optimizer, 6, graphs=way == "graphs")
            trainer._begin_round(1)
            if way == "new":
                trainer._optimizer._optimizer.state.clear()
            images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(2))
            for _ in range(2):
                trainer.learn(images, LinearTeacher(SPEC)(images))
            tensors = [*trainer.net.parameters(), *trainer._optimizer.moments, *trainer.delivered.parameters()]
            ends.append([*tensors, gradient_norm(trainer.net), trainer._average.n_averaged.clone()])
        for each in zip(*ends, strict=True):
            assert torch.equal(each[0], each[1])
            assert torch.equal(each[1], each[2])


def test_what_a_graph_keeps_of_pythons_values_is_part_of_its_form() -> None:
    """Weight decay, whether the average is due, and whether it is the first: other values take another graph."""
    settings = {"decay_images": 500, "replay_steps": 1, "average": 0.9, "average_every": 2, "replay_batch": 8}
    trainer = make_parts(LinearTeacher(SPEC), 800, **settings).students
    optimizer, average = trainer._optimizer, trainer._average
    assert average is not None
    rng = torch.Generator().manual_seed(1)
    with faked():
        trainer.use_graphs()
        FakeGraph.baked = lambda: (  # type: ignore[method-assign]
            optimizer._optimizer.param_groups[0]["weight_decay"],
            (trainer.steps % 2 == 1) and 1 + (int(average.n_averaged) > 0),
        )
        for step in range(24):
            images = torch.rand(8, 1, 8, 8, generator=rng)
            trainer.learn(images, LinearTeacher(SPEC)(images))
            if step == 18:
                trainer._begin_round(1)
        assert FakeGraph.captured == 2, "with and without the average, once the replay is full"
        assert FakeGraph.replayed > 15
        assert average.n_averaged == (48 - 38) / 2


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_rate_in_memory_gives_the_bits_of_a_number(kind: type[torch.optim.Optimizer]) -> None:
    weights, factor, ends = torch.randn(50, generator=torch.Generator().manual_seed(0)), [1.0], []
    for in_place in (False, True):
        own = nn.Parameter(weights.clone())
        momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = ScheduledOptimizer(
            kind([own], lr=0.1, weight_decay=5e-4, fused=True, **momentum), lambda: factor[0]
        )
        if in_place:
            optimizer.stay_in_place()
        for step in range(5):
            factor[0] = 1 / (1 + step)
            own.grad = torch.sin(own.detach() + step)
            optimizer.step()
        ends.append(own.detach())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], weights)


def test_a_step_can_be_traced_as_a_whole() -> None:
    """What reads the host or depends on values cannot: the tracer refuses it, as a capture would."""
    trainer = trained("sgd", 1, graphs=False)
    trainer._optimizer.stay_in_place()
    images, answers = torch.rand(8, 1, 8, 8), torch.full((8, 3), 1 / 3)
    traced = make_fx(lambda x, y: trainer._kernels(x, y, -1, 0.0))(images, answers)
    calls = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert any("_fused_sgd_" in call for call in calls)
    with pytest.raises(RuntimeError):
        make_fx(lambda x, y: (trainer._kernels(x, y, -1, 0.0)[0].sum().item() * x,))(images, answers)


def generators() -> tuple[Generator, Generator]:
    torch.manual_seed(0)
    graphed = Generator(8, SPEC)
    plain = copy.deepcopy(graphed)
    GraphedForward(graphed, "the generator", with_gradient=True)
    return graphed, plain


def gradients(net: Generator, *outputs: Tensor) -> list[Tensor]:
    net.zero_grad()
    for out in outputs:
        out.backward(torch.ones_like(out))
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def test_a_generator_may_be_called_again_before_its_backward_pass() -> None:
    with faked():
        graphed, plain = generators()
        for step in range(8):
            first, second, drawn = (
                torch.randn(4, 8, generator=torch.Generator().manual_seed(step + k)) for k in range(3)
            )
            found, kept = [], []
            for net in (graphed, plain):
                one = net(first)
                with torch.no_grad():
                    kept.append(net(drawn))
                    net(first)
                other = net(second) if step % 2 else net(first)
                found.append(gradients(net, one, other))
            assert torch.equal(*kept)
            assert all(map(torch.equal, *found))
        assert all(map(torch.equal, graphed.buffers(), plain.buffers()))
        assert FakeGraph.replayed > 10


def test_a_net_is_copied_and_given_back_as_it_was() -> None:
    with faked():
        graphed, plain = generators()
        twin = copy.deepcopy(graphed)
        assert "GraphedForward" in repr(graphed.forward)
        assert twin.forward.__func__ is Generator.forward  # type: ignore[attr-defined]
        assert twin.forward.__self__ is twin  # type: ignore[attr-defined]
        release(graphed)
        z = torch.randn(4, 8)
        assert torch.equal(pickle.loads(pickle.dumps(graphed))(z), plain(z))


def test_arithmetic_is_part_of_the_form() -> None:
    """A probe in IEEE fp32 and a score in TF32 are two graphs."""
    with faked(), torch.no_grad():
        graphed, _ = generators()
        for arithmetic in ("ieee", "tf32") * 5:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(graphs, "arithmetic", lambda name=arithmetic: (name,))
                graphed(torch.zeros(4, 8))
        assert FakeGraph.captured == 2
