"""What graphs need: addresses that stay, rates in memory, nothing that reads the host."""

import copy
import pickle
from typing import Any

import pytest
import torch
from fake_graphs import FakeGraph, faked
from torch import Tensor
from toys import LinearTeacher, make_parts

from dfme import graphs
from dfme.graphs import GraphedForward, release
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec
from dfme.students.optimizers import gradient_norm
from dfme.students.trainer import StudentTrainer

SPEC = ImageSpec((1, 8, 8))


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
            tensors = [
                *trainer.net.parameters(),
                *trainer._optimizer.moments,
                *trainer.delivered.parameters(),
            ]
            ends.append([*tensors, gradient_norm(trainer.net), trainer._average.n_averaged.clone()])
        for each in zip(*ends, strict=True):
            assert torch.equal(each[0], each[1])
            assert torch.equal(each[1], each[2])


def test_what_a_graph_keeps_of_pythons_values_is_part_of_its_form() -> None:
    """Weight decay, whether the average is due, and whether it is the first."""
    settings = {
        "decay_images": 500,
        "replay_steps": 1,
        "average": 0.9,
        "average_every": 2,
        "replay_batch": 8,
    }
    trainer = make_parts(LinearTeacher(SPEC), 800, **settings).students
    optimizer, average = trainer._optimizer, trainer._average
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
                torch.randn(4, 8, generator=torch.Generator().manual_seed(step + k))
                for k in range(3)
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
        release([graphed, None])
        z = torch.randn(4, 8)
        assert torch.equal(pickle.loads(pickle.dumps(graphed))(z), plain(z))


def test_arithmetic_is_part_of_the_form() -> None:
    """A probe in IEEE fp32 and a score in TF32 are two graphs."""
    with faked(), torch.no_grad():
        graphed, _ = generators()
        for arithmetic in ("ieee", "tf32") * 5:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(graphs, "in_force", lambda name=arithmetic: (name,))
                graphed(torch.zeros(4, 8))
        assert FakeGraph.captured == 2
