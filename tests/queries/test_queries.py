"""What is paid for with the student: shares, choice and bases, on images that tell their source."""

import pytest
import torch
from torch import Tensor, nn

from dfme.compute.device import Streams
from dfme.config.query_settings import QueriesConfig
from dfme.nets.generators import Generator, Transforming
from dfme.queries.sampler import QuerySampler
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


def marked(count: int, rng: torch.Generator) -> Tensor:
    """Images that no generator makes: 1 everywhere."""
    return torch.ones(count, 1, 8, 8)


class Brightness(nn.Module):
    """Two classes: sure of images that are far from .5 on average."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        middle_B = x_BCHW.mean(dim=(1, 2, 3)) - 0.5
        return torch.stack([-middle_B, middle_B], dim=1) * 20


def queries(
    draw=marked, generator: str = "published", batch: int = 16, **options: object
) -> QuerySampler:
    torch.manual_seed(0)
    net = None if generator == "none" else Generator(4, SPEC)
    return QuerySampler(
        QueriesConfig(**options),
        SPEC,
        net,
        draw,
        [Brightness()],
        Streams(0, torch.device("cpu")),
        batch,
    )


def from_program(x_BCHW: Tensor) -> int:
    return int((x_BCHW == 1).all(dim=(1, 2, 3)).sum())


@pytest.mark.parametrize(("share", "drawn"), [(0.0, 0), (0.25, 4), (0.5, 8), (1.0, 16)])
def test_the_procedural_share_of_every_batch_is_the_programs(share, drawn):
    x_BCHW = queries(procedural=share).images(16)
    assert (len(x_BCHW), from_program(x_BCHW)) == (16, drawn)
    assert from_program(queries(generator="none").images(7)) == 7, "without a generator all are"


def grey(count: int, rng: torch.Generator) -> Tensor:
    """Flat images of every brightness."""
    return torch.rand(count, 1, 1, 1, generator=rng).expand(count, 1, 8, 8).clone()


def test_of_a_pool_the_students_choose_and_the_pool_size_sets_how_picky():
    def distance(pool: int) -> float:
        source = queries(grey, "none", batch=64, pool=pool, balance=False)
        net = source.students[0].train()
        images = source.images(64)
        assert net.training, "choosing changes no student's mode"
        assert len(images) == 64
        return (images.mean(dim=(1, 2, 3)) - 0.5).abs().mean().item()

    assert distance(1) == pytest.approx(0.25, abs=0.05)
    assert distance(8) == pytest.approx(0.25 / 8, abs=0.02)


def test_before_the_students_first_step_nothing_is_chosen():
    """As many images are made as are asked for, and they come as they were made."""
    steps: list[int] = []
    config, streams = QueriesConfig(pool=4, balance=False), Streams(0, torch.device("cpu"))
    source = QuerySampler(
        config, SPEC, None, grey, [Brightness()], streams, 64, trained=lambda: len(steps) > 0
    )
    assert torch.equal(source.images(64), grey(64, Streams(0, torch.device("cpu"))["procedural"]))
    steps.append(1)
    assert (source.images(64).mean(dim=(1, 2, 3)) - 0.5).abs().max() < 0.2


def test_balance_takes_both_sides_though_one_is_rare():
    def mostly_dark(count: int, rng: torch.Generator) -> Tensor:
        return grey(count, rng) * 0.55

    bright = (
        queries(mostly_dark, "none", batch=64, pool=8).images(64).mean(dim=(1, 2, 3)) > 0.5
    ).sum()
    assert 25 <= bright <= 32  # 9 % of 512 candidates are


def test_what_is_given_is_what_the_wire_carries():
    spec = ImageSpec((1, 8, 8), levels=4)
    source = QuerySampler(QueriesConfig(), spec, None, grey, [], Streams(0, torch.device("cpu")), 8)
    x_BCHW = source.images(8)
    assert torch.equal(x_BCHW, spec.quantise(x_BCHW))
    assert len(x_BCHW.unique()) <= 4


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_transforming_generator_begins_with_its_bases():
    spec = ImageSpec((3, 6, 9), bounds=(-1.0, 2.0))

    def base(count: int, rng: torch.Generator) -> Tensor:
        return torch.rand(count, 3, 6, 9, generator=rng).mul(3).sub(1)

    net = Transforming(5, spec, base)
    image = net.squash(net(net.draw(32, rng())))
    stream = rng()
    torch.randn(32, 5, generator=stream)
    assert torch.allclose(
        image, base(32, stream), atol=2.1e-3
    )  # a bound itself is out of tanh's reach


def test_a_transforming_generator_learns_and_sees_its_base():
    net = Transforming(5, SPEC, grey)
    latent = net.draw(64, rng())
    net(latent).sum().backward()
    assert net.last.weight.grad.abs().sum() > 0
    nn.init.normal_(net.last.weight)
    shift = net(latent) - latent[:, 5:].unflatten(1, (1, 8, 8))
    assert shift.flatten(1).std(dim=0).min() > 1e-3  # another change for another base
