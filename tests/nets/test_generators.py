"""Generators: shapes, bounds, and where the squashing is."""

import pytest
import torch

from dfme.nets.generators import Generator
from dfme.spec import ImageSpec


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 16, 24), (1, 10, 9), (3, 64, 64), (1, 28, 28)])
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


def test_squash_is_plain_tanh_between_minus_one_and_one():
    generator = Generator(4, ImageSpec((1, 8, 8), (-1.0, 1.0)))
    u = torch.linspace(-3, 3, 64).view(1, 1, 8, 8)
    assert torch.equal(generator.squash(u), torch.tanh(u))
