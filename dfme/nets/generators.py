"""What every generator is asked: draw a latent, make ``gen_op`` from it, squash that to an
image.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from dfme.errors import UserError, say
from dfme.nets.architectures import SteadyBatchNorm2d
from dfme.spec import ImageSpec, Shape

PUBLISHED = 64  # pixels of the longer side up to which the generator is the paper's
CELLS = 8  # of the longer side, at most, that it begins with for larger images: 7x7 for 224x224
NARROWEST = 16  # channels, at least, of a block of it


class GeneratorNet(nn.Module):
    """``forward`` maps a latent of ``draw`` (B, ...) to u (B, C, H, W); ``squash`` maps u to an
    image.

    The two are apart because finite differences may be taken on either side of the squashing, a
    tanh scaled to the teacher's bounds (plain tanh for bounds of -1 and 1).
    """

    latent_size: int

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__()
        self.bounds = spec.bounds

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents, here from N(0, I), on the device of ``rng``."""
        return torch.randn(count, self.latent_size, generator=rng, device=rng.device)

    @property
    def last_convolution(self) -> nn.Module:
        """The layer that ``gen_op`` comes from: what it reads spans what a step of its weights can
        reach.
        """
        convolutions = [layer for layer in self.modules() if isinstance(layer, nn.Conv2d)]
        if not convolutions:
            raise UserError(
                say(
                    "the generator: expected a Conv2d in it, for {estimator.direction:range} and "
                    "{estimator.kind:auto}"
                )
            )
        return convolutions[-1]

    @contextmanager
    def watched(self) -> Iterator[list[Tensor]]:
        """Collects what the last convolution reads, (B, F, H, W) detached, in every call
        meanwhile.
        """
        read: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], __: Tensor) -> None:
            read.append(inputs[0].detach())

        with self.last_convolution.register_forward_hook(keep):
            yield read

    def squash(self, u_BCHW: Tensor) -> Tensor:
        """The image within the bounds."""
        low, high = self.bounds
        return torch.tanh(u_BCHW).mul(0.5 * (high - low)).add(0.5 * (high + low))


class Generator(GeneratorNet):
    """The DFME generator: a linear layer to a quarter of the image's size, then two upsampling
    blocks.

    ``forward`` maps z (B, Z) to u (B, C, H, W), which its last normalisation keeps near N(0, 1) per
    channel.

    Source: Truong et al. 2021, appendix; layer sizes as listed there (128, 128, 64 channels). Sides
    that 4 does not divide are reached by resizing to their exact halves (rounded up). Where a side
    is longer than 64 pixels, of which the paper has none, it is our own: 8 cells a side or fewer
    and a block for each doubling, of 128 channels up to 32 cells a side, half as many for each
    doubling beyond.
    """

    def __init__(self, latent_size: int, spec: ImageSpec) -> None:
        super().__init__(spec)
        sizes, widths = _stages(*spec.shape[1:])
        self.latent_size = latent_size
        self.stem = nn.Sequential(
            nn.Linear(latent_size, widths[0] * math.prod(sizes[0])),
            nn.Unflatten(1, (widths[0], *sizes[0])),
            SteadyBatchNorm2d(widths[0]),
        )
        blocks: list[nn.Module] = []
        for size, (inputs, outputs) in zip(sizes[1:], pairwise(widths), strict=True):
            blocks += [nn.Upsample(size=size), nn.Conv2d(inputs, outputs, 3, padding=1)]
            blocks += [SteadyBatchNorm2d(outputs), nn.LeakyReLU(0.2)]
        channels = spec.shape[0]
        last = (
            nn.Conv2d(widths[-1], channels, 3, padding=1),
            SteadyBatchNorm2d(channels, affine=False),
        )
        self.blocks = nn.Sequential(*blocks, *last)

    def forward(self, z_BZ: Tensor) -> Tensor:
        """``gen_op``: the output before the squashing."""
        u_BCHW: Tensor = self.blocks(self.stem(z_BZ))
        return u_BCHW


def _stages(height: int, width: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Cells of the linear layer and after each doubling up to the image, and channels of each."""
    longest = max(height, width)
    doublings = 2 if longest <= PUBLISHED else math.ceil(math.log2(longest / CELLS))
    sizes = [
        (math.ceil(height / 2**power), math.ceil(width / 2**power))
        for power in range(doublings, -1, -1)
    ]
    if longest <= PUBLISHED:
        return sizes, [128, 128, 64]
    widths = [
        max(NARROWEST, min(128, 128 * 32 // 2 ** math.ceil(math.log2(max(size))))) for size in sizes
    ]
    return sizes, widths


DrawImages = Callable[[int, torch.Generator], Tensor]
"""Images (count, C, H, W) within the bounds from a source."""

WIDTH = 64
"""Channels of the transformation's hidden layers."""

NEAREST = 1e-3
"""Where the squashing is undone, the least distance to a bound, as a share of half the range."""


class Transforming(GeneratorNet):
    """gen_op = base + G(z, base): a base image before the squashing, and a residual that begins at
    zero.

    So the first queries are the program's, and training moves away from them only where it pays. A
    latent is one row: the noise z (Z) and behind it the base (C*H*W). Our own.
    """

    def __init__(self, latent_size: int, spec: ImageSpec, draw_base: DrawImages) -> None:
        super().__init__(spec)
        channels = spec.shape[0]
        self.latent_size = latent_size
        self._shape = spec.shape
        self._draw_base = draw_base
        self.noise = nn.Linear(latent_size, WIDTH)
        self.reads = nn.Conv2d(channels, WIDTH, 3, padding=1)
        self.blocks = nn.Sequential(
            SteadyBatchNorm2d(WIDTH),
            nn.LeakyReLU(0.2),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            SteadyBatchNorm2d(WIDTH),
            nn.LeakyReLU(0.2),
        )
        self.last = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, latent_BL: Tensor) -> Tensor:
        z_BZ, base_BD = latent_BL.split(
            [self.latent_size, latent_BL.shape[1] - self.latent_size], dim=1
        )
        base_BCHW = base_BD.unflatten(1, self._shape)
        mixed_BFHW = self.reads(base_BCHW) + self.noise(z_BZ)[:, :, None, None]
        u_BCHW: Tensor = base_BCHW + self.last(self.blocks(mixed_BFHW))
        return u_BCHW

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` latents: noise from N(0, I), and base images as u."""
        z_BZ = torch.randn(count, self.latent_size, generator=rng, device=rng.device)
        low, high = self.bounds
        scaled_BCHW = self._draw_base(count, rng).sub(0.5 * (high + low)).div(0.5 * (high - low))
        # tanh never gets to the very bounds
        base_BCHW = torch.atanh(scaled_BCHW.clamp(NEAREST - 1.0, 1.0 - NEAREST))
        return torch.cat([z_BZ, base_BCHW.flatten(1)], dim=1)


def discriminator(shape: Shape, *, normalised: bool, width: int = 64) -> nn.Sequential:
    """DCGAN's discriminator for images (C, H, W): (B, C, H, W) -> (B, 1), from torch's global
    random state.

    Convolutions of 4x4 with stride 2 halve the image until its smaller side has four to seven
    pixels or less, each with twice the channels of the one before; a linear layer reads what is
    left. ``normalised``: by the statistics of the batch, except in the first layer; a critic with a
    gradient penalty must not be, since it would tie the images of a batch together (Gulrajani et
    al. 2017, section 4).

    Source: Radford, Metz & Chintala 2016 (arXiv 1511.06434), section 3, for 64x64 pixels.
    """
    channels, height, width_px = shape
    layers: list[nn.Module] = []
    outputs = width
    while min(height, width_px) >= (8 if layers else 2):
        layers.append(nn.Conv2d(channels, outputs, 4, stride=2, padding=1))
        if normalised and channels != shape[0]:
            layers.append(nn.BatchNorm2d(outputs, track_running_stats=False))
        layers.append(nn.LeakyReLU(0.2))
        channels = outputs
        outputs = 2 * outputs
        height = height // 2
        width_px = width_px // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width_px, 1))


def gradient_norms(net: nn.Module, x_BCHW: Tensor) -> Tensor:
    """Euclidean norm of the score's gradient at each image (B,), with its graph: it can be trained
    on.
    """
    x_BCHW = x_BCHW.detach().requires_grad_()
    (grad_BCHW,) = torch.autograd.grad(net(x_BCHW).sum(), x_BCHW, create_graph=True)
    norms_B: Tensor = grad_BCHW.flatten(1).norm(dim=1)
    return norms_B
