"""Kernels of one iteration, as an accelerator would be given them: a number that may only fall."""

import dataclasses

import pytest
import torch
from numerics import Launches, pretended

from dfme.compute.device import Streams
from dfme.compute.modules import DeferredChecks
from dfme.methods.base import Ask
from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.run.components import build_components, build_method
from research.options import BenchConfig
from research.speed import CASES, Work

MOST = 1_473
"""Operations of ATen, counted by dispatch, that are neither views nor reserve memory; 2,196 in
0.7.0 by this count.

An operation of several kernels counts once (a convolution's backward), one over a list of tensors
too.
"""

STUDENTS = 5


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
        assert method.asks() == [Ask("generator", 4), Ask("student", 2 * STUDENTS)]
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
