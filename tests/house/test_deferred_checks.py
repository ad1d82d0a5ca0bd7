"""What steps do on an accelerator: checks read by one transfer, as few kernels as before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from numerics import Launches, pretended
from torch import Tensor, nn

from dfme.compute import deferred
from dfme.compute.deferred import DeferredChecks
from dfme.compute.modes import evaluating
from dfme.methods.base import Ask
from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.randomness import Streams
from dfme.run.components import build_components, build_method
from research.options import BenchConfig
from research.speed import CASES, Work


def failing(text: str) -> Callable[[], Exception]:
    return lambda: ValueError(text)


def test_flags_are_read_by_one_transfer_and_the_first_that_fails_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = list[torch.Size]()
    tolist = Tensor.tolist
    monkeypatch.setattr(
        Tensor, "tolist", lambda flags: (reads.append(flags.shape), tolist(flags))[1]
    )
    monkeypatch.setattr(Tensor, "__bool__", lambda flag: pytest.fail("a flag is read alone"))
    with pretended():
        checks = DeferredChecks()
        for number in range(1_000):
            checks.expect(torch.tensor(number not in (700, 300)), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 300"):
            checks.verify()
        checks.verify()  # what was read is read
    assert reads == [(1_000,)]


def test_flags_that_nobody_reads_do_not_pile_up_and_on_the_cpu_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deferred, "MAX_PENDING", 8)
    with pretended():
        checks = DeferredChecks()
        for number in range(7):
            checks.expect(torch.tensor(number != 3), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 3"):
            checks.expect(torch.tensor(True), failing("the eighth"))
    with pytest.raises(ValueError, match="now"):
        DeferredChecks().expect(torch.tensor(False), failing("now"))


class Frozen(nn.BatchNorm1d):
    """One that never trains, as people write it."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [True, False])
def test_every_module_is_in_eval_mode_meanwhile_and_in_its_own_afterwards(training: bool) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), Frozen(2))
    inner.register_module("absent", None)
    scripted = torch.jit.script(nn.Sequential(nn.Dropout()))
    net = nn.Sequential(inner, nn.ModuleList([nn.Dropout()]), scripted).train(training)
    before = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        x = torch.ones(64, 1)
        assert torch.equal(scripted(x), x)
    assert [module.training for module in net.modules()] == before
    assert not inner[2].training
    assert (scripted(torch.ones(64, 1)).count_nonzero() < 64) == training


MOST = 1_473
"""Operations of ATen, counted by dispatch, that are neither views nor reserve memory; 2,196 in
0.7.0 by this count.

An operation of several kernels counts once (a convolution's backward), one over a list of tensors
too.
"""


@pytest.mark.exhaustive  # 3 seconds, most of it to make the networks
def test_an_iteration_of_the_paper_launches_no_more_kernels_than_before() -> None:
    """ResNet-34-8x to ResNet-18-8x: one generator step by one forward difference, five student
    batches.
    """
    with pretended(), torch.random.fork_rng():
        work = Work(CASES["resnet"], BenchConfig(batch_size=2), torch.device("cpu"))
        job = dataclasses.replace(
            work.job, config=dataclasses.replace(work.job.config, budget=10**6)
        )
        oracle = Oracle(work.teacher, Ledger(10**6), None, deferred := DeferredChecks())
        method = build_method(
            job, build_components(job, work.nets, oracle, Streams(0, work.device), deferred)
        )
        assert method.asks() == [Ask("generator", 4), Ask("student", 10)]
        method.step()  # momenta are made
        with Launches() as launched:
            method.step()
    assert launched.count <= MOST, f"{launched.count} kernels; {MOST} is the most there may be"


@pytest.mark.parametrize("training", [True, False])
def test_on_an_accelerator_batch_normalisation_counts_no_batches_and_is_the_same(
    training: bool,
) -> None:
    ours, theirs = SteadyBatchNorm2d(4).train(training), torch.nn.BatchNorm2d(4).train(training)
    with pretended():
        for seed in range(2):
            x_BCHW = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(ours(x_BCHW), theirs(x_BCHW))
    for name, value in theirs.state_dict().items():
        if name != "num_batches_tracked":
            assert torch.equal(ours.state_dict()[name], value), name
    assert ours.num_batches_tracked == 0
