"""`python -m research.tasks.carry`: what `research/gpu_day.sh` needs where there is no network.

From the files of `research.tasks` it packs the images and teachers of the steps: of plates,
patches and things of 224 pixels the test part alone, since the teachers are trained. What is
missing is said with the command that makes it.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dfme.files import read_npz
from research.script import reported

TEST = ("test_images", "test_labels")
MAX_BYTES = 1 << 32  # of all arrays of a task


class Item(NamedTuple):
    """A file that is carried: its name there and in the tasks' folder, and what makes it.

    ``tested``: its test part alone is carried.
    """

    name: str
    source: str
    made_by: str
    tested: bool = False


THINGS = "python -m research.tasks things"
ITEMS = (
    Item("plates.npz", "plates.npz", "python -m research.tasks plates", tested=True),
    Item("plates.safetensors", "carried.safetensors", "python -m research.tasks.carried"),
    Item("patches.npz", "patches.npz", "python -m research.tasks patches", tested=True),
    Item("things32.npz", "things32.npz", f"{THINGS} --side 32"),
    Item("things32_pool.npz", "things32_pool.npz", "python -m research.tasks things_pool"),
    Item(
        "things32.safetensors",
        "things32.safetensors",
        "run.py train-teacher --config research/tasks/things.yaml",
    ),
    Item("things224.npz", "things224.npz", f"{THINGS} --side 224", tested=True),
    Item("things224.safetensors", "things224_tail.safetensors", "python -m research.tasks.owners"),
)


def carry(item: Item, tasks: Path, out: Path) -> str:
    """Write one of the files; a line on it."""
    source = tasks / item.source
    target = out / item.name
    if not source.is_file():
        return f"{item.name}: expected {source}; it is made by: {item.made_by}"
    if item.tested:
        arrays = read_npz(source, MAX_BYTES)
        images, labels = (arrays[name] for name in TEST)
        np.savez_compressed(target, test_images=images, test_labels=labels)
    else:
        shutil.copyfile(source, target)
    return f"{item.name}: {target.stat().st_size / 1e6:.1f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks.carry", description=__doc__)
    parser.add_argument("--tasks", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--out", type=Path, default=Path("runs/carried"))
    of = parser.parse_args()
    of.out.mkdir(parents=True, exist_ok=True)
    for item in ITEMS:
        print(carry(item, of.tasks, of.out), flush=True)
    total = sum(file.stat().st_size for file in of.out.iterdir())
    print(f"{of.out}: {total / 2**20:.1f} MiB in all")


if __name__ == "__main__":
    sys.exit(reported("tasks.carry", main))
