"""Write the images of a task as an .npz file, as --data.name takes it."""

import argparse
from pathlib import Path

import numpy as np

from dfme.errors import UserError
from research.tasks.digits28 import digits28
from research.tasks.photos import photographs, photos
from research.tasks.plates import plates

TRAIN = 20_000
TEST = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.tasks", description=__doc__)
    parser.add_argument("name", choices=("digits28", "plates", "photos"))
    parser.add_argument("out", type=Path, help="the file written")
    parser.add_argument(
        "--package", type=Path, default="package", help="the npm package of digits28"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    given = parser.parse_args()
    try:
        if given.name == "digits28":
            train, test = digits28(given.package, given.seed)
        else:
            draw = {"plates": plates, "photos": photos}[given.name]
            train, test = draw(photographs(), TRAIN, TEST, given.seed)
    except UserError as error:
        parser.error(str(error))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        given.out,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
    )


if __name__ == "__main__":
    main()
