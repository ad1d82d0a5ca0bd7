"""LeNet-5, for 28x28 and 32x32 grey images, and any other size of at least one pixel.

Source: LeCun et al. 1998, in today's form: ReLU and max pooling in place of its scaled tanh and trainable
averages, every second-layer map connected to every first-layer map, a linear output.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

FIELD = 32  # pixels that the three convolutions see at once: smaller images are padded to it


class LeNet5(nn.Module):
    """Images (B, C, H, W) to scores (B, K).

    Images smaller than 32x32 get a black frame (28x28 gets the two pixels per side of the original); larger
    ones are read at every place where 32x32 pixels fit, and the 120 features are averaged over those places.
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        rows, columns = (max(0, FIELD - size) for size in x_BCHW.shape[2:])
        out = F.pad(x_BCHW, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        out = F.max_pool2d(F.relu(self.conv1(out)), 2)
        out = F.max_pool2d(F.relu(self.conv2(out)), 2)
        features = F.relu(self.conv3(out)).mean((2, 3))
        scores_BK: Tensor = self.fc2(F.relu(self.fc1(features)))
        return scores_BK


def lenet5(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """LeNet-5: 61,706 parameters for one channel and ten classes."""
    return LeNet5(shape[0], num_classes)
