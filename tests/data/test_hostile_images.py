"""Images of a stranger's: what would take all memory, or is none, ends in one line."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tables import all_hold

from dfme.data import load_dataset
from dfme.data.folder import handed_over
from dfme.errors import UserError


def test_images_that_unfold_to_too_much_are_refused_in_one_line(tmp_path: Path) -> None:
    """A few bytes that would take gigabytes, labels that no classifier has, and tensors without values."""
    pillow = pytest.importorskip("PIL.Image")
    pixels, labels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 10
    np.savez_compressed(tmp_path / "blank.npz", images=np.zeros((400_000, 8, 8), np.uint8))
    np.savez(tmp_path / "huge.npz", images=pixels, labels=np.full(60, 2**64 - 1, np.uint64))
    np.savez(tmp_path / "many.npz", images=pixels, labels=np.where(labels == 3, 2**40, labels))
    np.savez(tmp_path / "none.npz", images=np.zeros((60, 0, 0), np.uint8), labels=labels)
    np.savez_compressed(tmp_path / "plain.npz", images=pixels, labels=labels)
    (tmp_path / "one").mkdir()
    pillow.new("1", (12_000, 12_000)).save(tmp_path / "one" / "x.png")
    says = {
        "blank.npz": "its arrays are over 100 times the file; save them by np.savez",
        "huge.npz": "expected 60 labels, whole numbers from 0 to below 100,000, got uint64",
        "many.npz": "expected 60 labels, whole numbers from 0 to below 100,000",
        "none.npz": "expected images",
        "one": "expected at most 67,108,864 pixels, got 12000 x 12000",
    }

    def holds(name: str) -> None:
        tracemalloc.start()
        with pytest.raises(UserError, match=re.escape(says[name])):
            load_dataset(str(tmp_path / name), "test")
        assert tracemalloc.get_traced_memory()[1] < 10**7
        tracemalloc.stop()

    all_hold(holds, ((name,) for name in says))
    assert len(load_dataset(str(tmp_path / "plain.npz"), "test")) == 60
    for images, own in ((torch.zeros(4, 1, 8, 8, device="meta"), None), (torch.zeros(4, 1, 8, 8), "meta")):
        with pytest.raises(UserError, match=r"evaluation: expected tensors or arrays of images and labels: .*meta"):
            handed_over(images, None if own is None else torch.zeros(4, device=own))
