"""Images of generators fresh from initialisation: another net for every batch, none of them ever
trained.

Baradad et al. 2021 (arXiv 2106.05963) draw from untrained StyleGANs; here it is the generator of
DFME.
"""

import math

import torch
from torch import Tensor, nn

from dfme.nets.generators import Generator
from dfme.spec import ImageSpec

LATENT_SIZE = 256
MAX_IMAGES = 256  # images of one net: then another shows something else
MIN_IMAGES = 16  # of one net: in train mode an image is normalised by the others of its batch
CHUNK = 1 << 17  # pixels at once, each of 128 activations: what a net needs in memory


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on ``rng``'s device: a net per
    256.
    """
    chunk = max(MIN_IMAGES, min(MAX_IMAGES, CHUNK // math.prod(spec.shape[1:])))
    parts = [_drawn(min(chunk, count - start), spec, rng) for start in range(0, count, chunk)]
    return torch.cat(parts)


@torch.no_grad()
def _drawn(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    generator = fresh_generator(spec, rng)
    u_BCHW = generator(generator.draw(max(count, MIN_IMAGES), rng))
    return generator.squash(u_BCHW)[:count]


@torch.no_grad()
def fresh_generator(spec: ImageSpec, rng: torch.Generator) -> Generator:
    """A generator in train mode on the device of ``rng``, its weights decided by ``rng`` alone.

    They are drawn where they are used, so a GPU waits for nothing from the host.
    """
    with torch.device("meta"):
        generator = Generator(LATENT_SIZE, spec)
    for layer in generator.to_empty(device=rng.device).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            # torch's own: weights and biases even within 1 / sqrt(inputs)
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters(recurse=False):
                parameter.uniform_(-bound, bound, generator=rng)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    return generator
