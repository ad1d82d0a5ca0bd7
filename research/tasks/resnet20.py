"""ResNet-20 for CIFAR-10 as in section 4.2 of He et al. (CVPR 2016, arXiv 1512.03385), with
shortcuts that have no weights, so that a published model of things can be a teacher.

`python -m research.tasks.resnet20 WEIGHTS OUT.pt2` writes it as a program. WEIGHTS is the file
`pretrained_models/resnet20-12fca82f.th` of the GitHub repository
`akamaster/pytorch_resnet_cifar10`, whose names the parameters here have.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCKS = 3  # in each stage: 6 n + 2 layers
WIDTHS = (16, 32, 64)
MEAN = (0.485, 0.456, 0.406)  # what those weights were trained with
DEVIATION = (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two convolutions, and beside them the input: where they halve it every other pixel, and
    zeros for the channels that are new.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self._stride = stride
        self._zeros = (outputs - inputs) // 2  # before the channels, and as many after them

    def forward(self, x_BCHW: Tensor) -> Tensor:
        beside_BCHW = x_BCHW[:, :, :: self._stride, :: self._stride]
        beside_BCHW = functional.pad(beside_BCHW, (0, 0, 0, 0, self._zeros, self._zeros))
        inner_BCHW = self.bn1(self.conv1(x_BCHW)).relu()
        sum_BCHW: Tensor = self.bn2(self.conv2(inner_BCHW)) + beside_BCHW
        return sum_BCHW.relu()


class ResNet20(nn.Module):
    """Images (B, 3, H, W) to logits (B, K)."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], 1)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], 2)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], 2)
        self.linear = nn.Linear(WIDTHS[2], num_classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.bn1(self.conv1(x_BCHW)).relu()
        x_BCHW = self.layer3(self.layer2(self.layer1(x_BCHW)))
        scores_BK: Tensor = self.linear(x_BCHW.mean(dim=(2, 3)))
        return scores_BK


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first = Block(inputs, outputs, stride)
    return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(BLOCKS - 1)))


class Published(nn.Module):
    """Images (B, 3, 32, 32) in [0, 1] to logits (B, 10), of the weights in a file."""

    mean_C11: Tensor
    deviation_C11: Tensor

    def __init__(self, weights: Path) -> None:
        super().__init__()
        state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
        self.net = ResNet20()
        self.net.load_state_dict(
            {name.removeprefix("module."): value for name, value in state.items()}
        )
        self.register_buffer("mean_C11", torch.tensor(MEAN)[:, None, None])
        self.register_buffer("deviation_C11", torch.tensor(DEVIATION)[:, None, None])

    def forward(self, x_BCHW: Tensor) -> Tensor:
        scores_BK: Tensor = self.net((x_BCHW - self.mean_C11) / self.deviation_C11)
        return scores_BK


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks.resnet20", description=__doc__)
    parser.add_argument("weights", type=Path, help="the published weights")
    parser.add_argument("out", type=Path, help="the program written, a .pt2 file")
    given = parser.parse_args()
    if not given.weights.is_file():
        parser.error(f"{given.weights}: no such file")
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Published(given.weights).eval(), (torch.zeros(2, 3, 32, 32),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, given.out)


if __name__ == "__main__":
    main()
