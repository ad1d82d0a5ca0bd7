"""The owner's model and references as white boxes, and what they choose to ask a suspect."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, answered_class
from dfme.audits.audit.examine import open_twin
from dfme.audits.verify.probes import Answer, Probes
from dfme.compute.device import derived_seed
from dfme.config.settings import Job
from dfme.data.class_names import order_of
from dfme.errors import UserError
from dfme.run.checkpoint import explain_load_errors, load_checkpoint, save_checkpoint
from dfme.spec import ImageSpec

OWN_ARCH = 3
"""References of the owner's architecture, at least; without any, 37 % of its twins look like
copies.
"""
PROBES = "probes.pt"
READABLE = (0o666, 0o777)
SECRET = (0o600, 0o700)
"""Modes of a file and of a folder, but for what the umask takes away."""

Tell = Callable[[str], None]
GivenClasses = Iterable[tuple[Tensor, Tensor]]
"""By batches, of the images that were given a class: that class, and the expected one, (B,)."""
Told = dict[str, Any]


class Models(ABC):
    """The models, opened; whoever says what is asked inherits it.

    ``source``: the option that the images come from. ``modes``: of the file that holds the probes,
    and of the folder with the answers. ``inputs``: digests of what the probes follow from.
    """

    source: str
    modes = READABLE
    inputs: list[str]

    def __init__(self, job: Job, model: Any, references: Sequence[Path], tell: Tell) -> None:
        (spec, num_classes) = (model.spec, model.num_classes)
        others = [open_twin(path, job, spec, num_classes, "--references") for path in references]
        self._job = job
        self._references = references
        self._tell = tell
        self._boxes = [model, *others]
        self.names: tuple[str, ...] = model.info.class_names or ()

    @abstractmethod
    def choose(self, most: int, levels: int | None) -> tuple[Probes, Told]:
        """Probes, quantised to so many levels, and what the references come to. UserError where no
        answers to them could tell anything.
        """

    @abstractmethod
    def judge(self, answers: GivenClasses, references: Told) -> Told:
        """The figures of a verdict, and those of the references."""

    @property
    def settings(self) -> Told:
        """Options that say where the images come from, for config.yaml."""
        return {}

    @property
    def _class_names(self) -> Sequence[str]:
        """Names of the classes, in the order in which answers are compared."""
        return self.names

    def _checked_inputs(self, images: str) -> list[str]:
        """Digests of the models, of what the probes are chosen among, and the seed. UserError for
        references that show no false alarms.
        """
        nets = [box.info.network.state_dict() for box in self._boxes]
        digests = [digest_of(net.values()) for net in nets]
        (model, *others) = ({name: weight.shape for name, weight in net.items()} for net in nets)
        if len(set(digests)) < len(digests):
            raise UserError(
                "--references: expected different models, none of them yours, got one file twice"
            )
        if (alike := others.count(model)) < OWN_ARCH:
            raise UserError(
                f"--references: expected {OWN_ARCH} or more of your model's architecture, "
                f"got {alike}; train them with other seeds by run.py train-teacher"
            )
        return [*digests, images, str(self._job.config.seed)]

    def _rng(self) -> torch.Generator:
        return torch.Generator().manual_seed(derived_seed(self._job.config.seed, "verify"))

    def answer(
        self, spec: ImageSpec, names: Sequence[str], ask: Callable[[Tensor], Tensor]
    ) -> Answer:
        """The classes that a model answers, in the order of the owner's classes; ``NO_ANSWER`` for
        none.
        """
        (low, high) = spec.bounds
        order_K = order_of(self._boxes[0].num_classes, names, self._class_names)

        def classes(x_BCHW: Tensor) -> Tensor:
            class_B = answered_class(ask(x_BCHW * (high - low) + low)).cpu()
            return torch.where(class_B == NO_ANSWER, NO_ANSWER, order_K[class_B.clamp(min=0)])

        return classes

    def changed(self, recorded: Sequence[str]) -> list[str]:
        """The options whose inputs are not those from which probes on file follow."""
        if len(recorded) != len(self.inputs):
            return ["references"]
        names = ["model", *["references"] * len(self._references), self.source, "seed"]
        pairs = zip(names, recorded, self.inputs, strict=True)
        return list(dict.fromkeys(name for name, before, now in pairs if before != now))

    def save(self, folder: Path, chosen: tuple[Probes, Told]) -> None:
        """Put probes on file, with what the references came to."""
        probes, references = chosen
        content = {"inputs": self.inputs, "found": json.dumps(references), **probes._asdict()}
        save_checkpoint(folder / PROBES, content, self.modes[0])

    def load(self, folder: Path) -> tuple[Probes, Told, list[str]]:
        """The probes on file, what the references came to, and the options that ``changed``."""
        path = folder / PROBES
        with explain_load_errors(path):
            content = load_checkpoint(path)
            probes = Probes(content["images"], content["expected"])
            return probes, json.loads(content["found"]), self.changed(content["inputs"])


def digest_of(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' bytes, one after the other."""
    code = hashlib.sha256()
    for tensor in tensors:
        code.update(tensor.cpu().contiguous().numpy().tobytes())
    return code.hexdigest()
