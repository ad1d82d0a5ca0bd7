"""Images of generators fresh from initialisation: another net for every batch, none of them ever trained.

Baradad et al. 2021 (arXiv 2106.05963) draw from untrained StyleGANs; here it is the generator of DFME.
"""

import math

import torch
from torch import Tensor, nn

from dfme.compute import on_accelerator
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec

LATENT_SIZE = 256
MAX_IMAGES = 256  # images of one net: then another shows something else
MIN_IMAGES = 16  # of one net: in train mode an image is normalised by the others of its batch
CHUNK = 1 << 17  # pixels at once, each of 128 activations: what a net needs in memory


def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    """``count`` images (B, C, H, W), float32 within the bounds, on ``rng``'s device: a net per 256."""
    chunk = max(MIN_IMAGES, min(MAX_IMAGES, CHUNK // math.prod(spec.shape[1:])))
    parts = [_drawn(min(chunk, count - start), spec, rng) for start in range(0, count, chunk)]
    return torch.cat(parts)


@torch.no_grad()
def _drawn(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
    generator = fresh_generator(spec, rng)
    u_BCHW = generator(generator.draw(max(count, MIN_IMAGES), rng))
    return generator.squash(u_BCHW)[:count]


def fresh_generator(spec: ImageSpec, rng: torch.Generator) -> Generator:
    """A generator in train mode on the device of ``rng``, its weights decided by ``rng`` alone."""
    make = _drawn_on_device if on_accelerator(rng.device) else _drawn_by_torch
    return make(spec, rng).train()


def _drawn_by_torch(spec: ImageSpec, rng: torch.Generator) -> Generator:
    """Layers initialise themselves from torch's global state on the CPU: it is lent to them and put back."""
    seed = int(torch.randint(1 << 62, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return Generator(LATENT_SIZE, spec)


@torch.no_grad()
def _drawn_on_device(spec: ImageSpec, rng: torch.Generator) -> Generator:
    """The same distributions from the stream itself: no number goes to the host, no weight comes back."""
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
