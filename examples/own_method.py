"""A method of your own: it asks images of straight edges, and learns as every method does.

A method is a subclass of ``dfme.Method`` and a dataclass of its options; docs/extending.md has the
rules. On the command line the same class is ``--method own_method:Edges --method.softness 0.1``,
where the command starts in this folder.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import dfme

Scores = list[list[float]]


@dataclass(frozen=True)
class EdgesConfig:
    """Edges: images that are bright on one side of a line."""

    batch_size: int = 50
    """images asked in one step"""
    student_steps: int = 1
    """student batches paid for per iteration"""
    softness: float = 0.2
    """width of an edge, as a share of the image's side"""


class Edges(dfme.Method):
    """Asks edges of random direction, place and contrast, student_steps batches a step."""

    entry = dfme.MethodEntry(EdgesConfig)
    label_modes = ("logits", "probabilities", "top_k", "label")
    config: EdgesConfig

    def query_images(self, count: int) -> Tensor:
        """Images (count, C, H, W) as the teacher's API takes them: its bounds, its levels."""
        spec = self.oracle.spec
        channels, height, width = spec.shape
        low, high = spec.bounds
        rng = self.rng["edges"]  # the only source of chance, so that a resumed run asks the same

        angle_B = 2 * math.pi * torch.rand(count, generator=rng, device=rng.device)
        offset_B = torch.rand(count, generator=rng, device=rng.device) - 0.5
        shades_BS = torch.rand(count, 2, generator=rng, device=rng.device)

        y_H1 = torch.linspace(-0.5, 0.5, height, device=rng.device)[:, None]
        x_W = torch.linspace(-0.5, 0.5, width, device=rng.device)
        across_BHW = angle_B.cos()[:, None, None] * x_W + angle_B.sin()[:, None, None] * y_H1
        side_BHW = ((across_BHW - offset_B[:, None, None]) / self.config.softness).sigmoid()
        dark_B11, bright_B11 = shades_BS[:, :, None, None].unbind(dim=1)
        image_BHW = dark_B11 + (bright_B11 - dark_B11) * side_BHW

        image_BCHW = image_BHW[:, None].expand(-1, channels, -1, -1)
        return spec.quantise(low + (high - low) * image_BCHW)


def brighter_half(images: Tensor) -> Scores:
    """The teacher of this example: is the left half brighter than the right one?"""
    left, right = images.mean(dim=(1, 2)).chunk(2, dim=1)
    p_B = (20 * (left.mean(dim=1) - right.mean(dim=1))).sigmoid()
    return torch.stack([p_B, 1 - p_B], dim=1).tolist()


def main() -> None:
    images = torch.rand(400, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    result = dfme.extract(
        brighter_half,
        shape=(1, 8, 8),
        num_classes=2,
        method=Edges,
        method_options={"softness": 0.1},
        budget=1_000,
        evaluation=images,
        out="runs/edges",
        resume="auto",
    )
    print(f"agreement {result.summary['agreement']:.1%}; {result.run_dir}")


if __name__ == "__main__":
    main()
