"""Generators: shapes, bounds, where the squashing is, and their form by the size of the images."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec

pytestmark = pytest.mark.full("generator")


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 32, 32), (3, 16, 24), (1, 10, 9), (3, 64, 64), (1, 28, 28)]
)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_images_have_the_shape_and_stay_within_the_bounds(shape, bounds):
    generator = Generator(16, ImageSpec(shape, bounds))
    u = generator(generator.draw(4, torch.Generator().manual_seed(0)))
    image = generator.squash(u * 10)
    assert u.shape == image.shape == (4, *shape)
    assert u.requires_grad
    assert image.min() >= bounds[0]
    assert image.max() <= bounds[1]


def test_output_before_the_squashing_is_standard_per_channel():
    generator = Generator(32, ImageSpec((3, 16, 16)))
    u = generator(generator.draw(64, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(u.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(u.var((0, 2, 3), correction=0), torch.ones(3), atol=1e-3, rtol=0)


def published(latent: int, channels: int, side: int) -> nn.Sequential:
    """As written down in 0.7.0: a quarter, a half, the image."""
    quarter = -(-side // 4)
    return nn.Sequential(
        nn.Linear(latent, 128 * quarter**2),
        nn.Unflatten(1, (128, quarter, quarter)),
        SteadyBatchNorm2d(128),
        nn.Upsample(size=-(-side // 2)),
        nn.Conv2d(128, 128, 3, padding=1),
        SteadyBatchNorm2d(128),
        nn.LeakyReLU(0.2),
        nn.Upsample(size=side),
        nn.Conv2d(128, 64, 3, padding=1),
        SteadyBatchNorm2d(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, channels, 3, padding=1),
        SteadyBatchNorm2d(channels, affine=False),
    )


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 30), (3, 32), (1, 64)])
def test_up_to_64_pixels_it_is_the_published_one_bit_for_bit(channels: int, side: int) -> None:
    torch.manual_seed(3)
    theirs = published(16, channels, side)
    torch.manual_seed(3)
    ours = Generator(16, ImageSpec((channels, side, side)))
    assert [name.partition(".")[0] for name in ours.state_dict()].count("stem") == 7
    z_BZ = torch.randn(2, 16)
    assert torch.equal(ours(z_BZ), theirs(z_BZ))


@pytest.mark.parametrize(
    "shape", [(3, 65, 64), (1, 67, 131), (3, 96, 96), (3, 224, 224), (1, 7, 129)]
)
def test_larger_images_begin_at_8_cells_and_double(shape: tuple[int, int, int]) -> None:
    generator = Generator(16, ImageSpec(shape))
    begins = Tensor.size(generator.stem(torch.randn(2, 16)))[2:]
    assert max(begins) <= 8
    sizes = [begins, *(layer.size for layer in generator.blocks if isinstance(layer, nn.Upsample))]
    assert sizes[-1] == shape[1:]
    for small, large in pairwise(sizes):
        assert all(one <= other <= 2 * one for one, other in zip(small, large, strict=True))
    assert generator(torch.randn(2, 16)).shape == (2, *shape)


def test_at_224_it_is_a_fraction_of_a_students_work() -> None:
    """103 million parameters and 11.5 GFLOP in 0.7.0; a ResNet-50's forward pass has 8.2."""
    with torch.device("meta"):
        generator = Generator(256, ImageSpec((3, 224, 224)))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            generator.eval()(torch.zeros(1, 256))
    assert sum(item.numel() for item in generator.parameters()) < 3_000_000
    assert counter.get_total_flops() < 2e9
