"""Networks that tell real images from generated ones: one score per image, larger for a real one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dfme.spec import Shape

MIN_SIDE = 4
"""Pixels that halving leaves of a side, but for the first, which every image goes through."""

LEAK = 0.2


def discriminator(shape: Shape, *, normalised: bool, width: int = 64) -> nn.Sequential:
    """DCGAN's discriminator for images (C, H, W): (B, C, H, W) -> (B, 1), from torch's global random state.

    Convolutions of 4x4 with stride 2 halve the image until its smaller side has no more than four to seven pixels,
    each with twice the channels of the one before; a linear layer reads what is left. ``normalised``: by the
    statistics of the batch, except in the first layer; a critic with a gradient penalty must not be, since it would
    tie the images of a batch together (Gulrajani et al. 2017, section 4).

    Source: Radford, Metz & Chintala 2016 (arXiv 1511.06434), section 3; its four convolutions are for 64x64 pixels.
    """
    channels, height, width_px = shape
    layers: list[nn.Module] = []
    outputs = width
    while min(height, width_px) >= (2 * MIN_SIDE if layers else 2):
        layers.append(nn.Conv2d(channels, outputs, 4, stride=2, padding=1))
        if normalised and channels != shape[0]:
            layers.append(nn.BatchNorm2d(outputs, track_running_stats=False))
        layers.append(nn.LeakyReLU(LEAK))
        channels, outputs = outputs, 2 * outputs
        height, width_px = height // 2, width_px // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width_px, 1))


def gradient_norms(net: nn.Module, x_BCHW: Tensor) -> Tensor:
    """Euclidean norm of the score's gradient at each image (B,), with its graph: it can be trained on."""
    x_BCHW = x_BCHW.detach().requires_grad_()
    (grad_BCHW,) = torch.autograd.grad(net(x_BCHW).sum(), x_BCHW, create_graph=True)
    norms_B: Tensor = grad_BCHW.flatten(1).norm(dim=1)
    return norms_B
