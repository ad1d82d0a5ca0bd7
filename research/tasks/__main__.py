"""Write the images of a task as an .npz file, as --data.name takes it."""

import argparse
from pathlib import Path

import numpy as np

from dfme.errors import UserError
from research.tasks.crops import crops
from research.tasks.digits28 import digits28
from research.tasks.parts import Parts
from research.tasks.patches import patches, photographs
from research.tasks.plates import plates
from research.tasks.things import like_things, things

TRAIN = 20_000
TEST = 2_000
CROPS = 10  # of each photograph
NAMES = ("digits28", "plates", "patches", "things", "things_pool", "crops")
SIDES = (32, 64, 224)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("out", type=Path, help="the file written")
    parser.add_argument(
        "--package",
        type=Path,
        default="package",
        help="the npm package of digits28, things or things_pool, unpacked; the photographs of "
        "crops",
    )
    parser.add_argument(
        "--side",
        type=int,
        choices=SIDES,
        default=SIDES[0],
        help="pixels a side of things, things_pool and crops (default: 32)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    given = parser.parse_args()
    try:
        _write(given.out, given.name, given.package, given.side, given.seed)
    except UserError as error:
        parser.error(str(error))


def _write(out: Path, name: str, package: Path, side: int, seed: int) -> None:
    """UserError where the images are missing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if name == "things_pool":
        images, labels = like_things(package, side, seed)
        np.savez_compressed(out, images=images, labels=labels)
        return
    if name == "crops":
        np.savez_compressed(out, images=crops(package, side, CROPS, seed))
        return
    train, test = _parts(name, package, side, seed)
    np.savez_compressed(
        out,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )


def _parts(name: str, package: Path, side: int, seed: int) -> Parts:
    if name == "digits28":
        return digits28(package, seed)
    if name == "things":
        return things(package, side, seed)
    draw = {"plates": plates, "patches": patches}[name]
    return draw(photographs(), TRAIN, TEST, seed)


if __name__ == "__main__":
    main()
