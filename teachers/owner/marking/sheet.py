"""marks.png: what the marked model answers wrongly, for its owner to look at."""

from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dfme.files import replacing
from dfme.teachers.owner.marking.memory import MODE

COLUMNS = 10
MAX_SHOWN = 50
MIN_SIDE = 48  # pixels of a picture on the sheet
GAP = 2
BAND = 12
"""Pixels of white between the two parts."""


def write_sheet(path: Path, changed_NCHW: Tensor, marks_MCHW: Tensor) -> None:
    """Above, images of the task that the rule changes; below, the marks. For the owner alone.

    Both are within 0 and 1. RunError where the disk refuses.
    """
    parts = [_grid(x_NCHW[:MAX_SHOWN]) for x_NCHW in (changed_NCHW, marks_MCHW) if len(x_NCHW)]
    width = max(part.shape[2] for part in parts)
    rows = list[Tensor]()
    for part in parts:
        wide = torch.ones(3, part.shape[1] + BAND, width)
        wide[:, : part.shape[1], : part.shape[2]] = part
        rows.append(wide)
    sheet_CHW = torch.cat(rows, 1)
    pixels_HWC = (sheet_CHW.permute(1, 2, 0) * 255).round().to(torch.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels_HWC.numpy()).save(buffer, "PNG")
    with replacing(path, mode=MODE) as file:
        file.write(buffer.getvalue())


def _grid(x_NCHW: Tensor) -> Tensor:
    """Pictures in rows, enlarged by whole pixels, in colour (3, H, W)."""
    if x_NCHW.shape[1] == 1:
        x_NCHW = x_NCHW.expand(-1, 3, -1, -1)
    times = -(-MIN_SIDE // max(x_NCHW.shape[2:]))
    x_NCHW = x_NCHW[:, :3].repeat_interleave(times, 2).repeat_interleave(times, 3)
    height, width = x_NCHW.shape[2:]
    rows = -(-len(x_NCHW) // COLUMNS)
    sheet = torch.ones(3, rows * (height + GAP), COLUMNS * (width + GAP))
    for number, x_CHW in enumerate(x_NCHW):
        top = number // COLUMNS * (height + GAP)
        left = number % COLUMNS * (width + GAP)
        sheet[:, top : top + height, left : left + width] = x_CHW
    return sheet
