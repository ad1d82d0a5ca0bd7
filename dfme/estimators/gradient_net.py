"""The network behind synthetic gradients: from what is free to see at an image to what an estimate would say there."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

WIDTH = 16


class GradientNet(nn.Module):
    """Predicts a gradient (N, C, H, W) from the point, its image, and the student's probabilities there.

    Four 3x3 convolutions, with the probabilities, through a linear layer, added to every pixel of the first one's
    output. Small, since its lessons are few and nearly all noise. The last layer starts at zero: a network that
    knows nothing predicts nothing.
    """

    def __init__(self, channels: int, classes: int) -> None:
        """``classes``: probabilities per image; 0 where there is no student to ask."""
        super().__init__()
        self.read = nn.Conv2d(2 * channels, WIDTH, 3, padding=1)
        self.classes = nn.Linear(classes, WIDTH) if classes else None
        self.mix = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.write = nn.Conv2d(WIDTH, channels, 3, padding=1)
        nn.init.zeros_(self.write.weight)
        assert self.write.bias is not None
        nn.init.zeros_(self.write.bias)

    def forward(self, point_NCHW: Tensor, image_NCHW: Tensor, chances_NK: Tensor) -> Tensor:
        features = self.read(torch.cat([point_NCHW, image_NCHW], dim=1))
        if self.classes is not None:
            features = features + self.classes(chances_NK)[:, :, None, None]
        features = relu(features)
        for mix in self.mix:
            features = features + relu(mix(features))
        gradient_NCHW: Tensor = self.write(features)
        return gradient_NCHW
