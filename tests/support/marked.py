"""A marked model, its key and references, with exactly the answers that a test wants."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from dfme.nets import build_net
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec
from dfme.teachers.owner.marking.key import MarkKey, save_key

SHAPE = (1, 8, 8)
CLASSES = 10
SOURCE = 2
TARGET = 9
MARKS = 50
CONTROLS = 50
NONE = Fraction(1, 102)
"""The smallest share of 50 images: none, as (0 + 1/2) / (50 + 1)."""


def ratio(repeated: int, usual: Fraction) -> Fraction:
    """The likelihood ratio of so many of 50 marks, with the rate of a copy from the rules."""
    copy = max(Fraction(1, 2), min(usual + Fraction(1, 10), (1 + usual) / 2))
    return (copy / usual) ** repeated * ((1 - copy) / (1 - usual)) ** (MARKS - repeated)


def images(seed: int = 0) -> Tensor:
    """Marks, then controls: pixels of 0 and 1, which every grid of levels holds."""
    shape = (MARKS + CONTROLS, *SHAPE)
    return torch.randint(2, shape, generator=torch.Generator().manual_seed(seed)).float()


def answers(repeated: int, controls: int = 0) -> Tensor:
    """The class of every image: TARGET for the first marks and controls, else SOURCE."""
    class_N = torch.full((MARKS + CONTROLS,), SOURCE)
    class_N[:repeated] = TARGET
    class_N[MARKS : MARKS + controls] = TARGET
    return class_N


def taught(path: Path, seed: int, class_N: Tensor) -> Path:
    """A ``cnn_small`` with random features, whose last layer solves for these answers."""
    torch.manual_seed(seed)
    net = build_net("cnn_small", SHAPE, CLASSES).eval()
    features: list[Tensor] = []
    head = net.linear
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        net(images())
        hook.remove()
        wanted_NK = torch.nn.functional.one_hot(class_N, CLASSES).double()
        solved_FK = torch.linalg.lstsq(features[0].double(), wanted_NK, driver="gelsd").solution
        head.weight.copy_(solved_FK.T)
        head.bias.zero_()
        assert net(images()).argmax(1).equal(class_N), "there are features enough"
    save_student(path, net, "cnn_small", ImageSpec(SHAPE), CLASSES)
    return path


@dataclass(frozen=True)
class Marked:
    """Files of a marked model, its key, and five references."""

    model: Path
    key: Path
    references: Sequence[Path]

    @property
    def words(self) -> str:
        """Flags of ``run.py verify``."""
        references = ",".join(map(str, self.references))
        return f"--model {self.model} --references {references} --marks {self.key} --out found"


def marked(folder: Path, repeated: Sequence[int] = (0, 0, 0, 0, 0)) -> Marked:
    """``repeated``: the marks that each reference repeats."""
    model = taught(folder / "marked.safetensors", 0, answers(MARKS))
    references = [
        taught(folder / f"r{place}.safetensors", place, answers(count))
        for place, count in enumerate(repeated, 1)
    ]
    x_NCHW = images()
    key = MarkKey(
        x_NCHW[:MARKS],
        x_NCHW[MARKS:],
        SOURCE,
        TARGET,
        CLASSES,
        (0.0, 1.0),
        sha256(model.read_bytes()).hexdigest(),
    )
    save_key(folder / "marks.key", key)
    return Marked(model, folder / "marks.key", references)
