"""Images of another size or number of channels, made to fit a teacher."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.errors import UserError
from dfme.spec import ImageSpec

LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue weigh in a grey: ITU-R BT.601, as pictures read from files are turned grey."""

CHUNK = 1024  # images turned to floats at once, fewer of large ones


def fitted(images_NCHW: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Images (N, C, H, W), uint8 or float32 within [0, 1], in another shape and the same type.

    Grey becomes colour by repetition, colour grey by its luma; sizes change bilinearly, smoothed when they shrink.

    Raises:
        UserError: for other numbers of channels that differ.
    """
    if tuple(images_NCHW.shape[1:]) == tuple(shape):
        return images_NCHW
    result = torch.empty(len(images_NCHW), *shape, dtype=images_NCHW.dtype)
    channels, height, width = images_NCHW.shape[1:]
    chunk = min(ImageSpec(each).at_once(CHUNK) for each in ((channels, height, width), shape))
    for source, target in zip(images_NCHW.split(chunk), result.split(chunk), strict=True):
        floats = _recoloured(source.float(), shape[0])
        if floats.shape[2:] != shape[1:]:
            floats = interpolate(floats, shape[1:], mode="bilinear", antialias=True)
        target.copy_(floats if target.is_floating_point() else floats.round_())
    return result


def _recoloured(images_NCHW: Tensor, channels: int) -> Tensor:
    have = images_NCHW.shape[1]
    if have == channels:
        return images_NCHW
    if have == 1:
        return images_NCHW.repeat(1, channels, 1, 1)
    if (have, channels) != (3, 1):
        raise UserError(f"images of {have} channels cannot become images of {channels}: only 1 and 3 are converted")
    weights_311 = torch.tensor(LUMA).view(3, 1, 1)
    return (images_NCHW * weights_311).sum(1, keepdim=True)
