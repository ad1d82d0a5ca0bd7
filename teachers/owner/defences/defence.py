"""What a defence is: for one account; behind ``serve``, that of all keys."""

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.compute.modules import copied
from dfme.nets import build_net
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.owner.defences.checks import key_of


class Defence(ABC):
    """One defence with its options, in front of ``teacher``: float64 on the CPU, no input or
    output.

    ``STATE``, what it remembers at first: numbers, and of tensors (N, C), float64, their C; 0: one
    per class. What its key draws is the same for ever and for no other defence. An untrained
    network is drawn by it, or by no secret.
    """

    STATE: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: Any, teacher: Teacher) -> None:
        self.options = options
        self.name = options.name
        self.classes = teacher.num_classes
        self.state = {name: self._initial(form) for name, form in self.STATE.items()}
        self._eight_bits = replace(teacher.spec, levels=256)
        key = key_of(options) if "key" in options.facts(2).needs else b""
        self._key = hmac.digest(key, self.name.encode(), "sha256")
        net = "net" in (getattr(options, "q", None), getattr(options, "wrong", None))
        self.net = _untrained_net(teacher.spec, self.classes, self.draw(b"net")) if net else None

    def _initial(self, form: Any) -> Any:
        return torch.empty(0, form[0] or self.classes).double() if type(form) is tuple else form

    def admit(self, images: int) -> None:
        """Called before the model is asked for so many images; Refused where they are not to be
        answered.
        """
        return

    @abstractmethod
    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        """Answers in place of the probabilities ``p_BK``, which stay as they are."""

    def draw(self, what: bytes) -> torch.Generator:
        digest = hmac.digest(self._key, what, "sha256")
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def draws(self, images_BCHW: Tensor) -> list[torch.Generator]:
        """One per image, as its 8 bits are."""
        levels = self._eight_bits.encode(images_BCHW.cpu()).contiguous().numpy()
        return [self.draw(image.tobytes()) for image in levels]

    def state_dict(self) -> dict[str, Any]:
        return copied(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""
        self.state.update(copied(state))


def _untrained_net(
    spec: ImageSpec, classes: int, draw: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """The probabilities of a small network. Images are asked one by one, so that batches change no
    bit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.initial_seed())
        net = build_net("cnn_small", spec.shape, classes).eval()
    return lambda x_BCHW: (
        torch.cat([net(x_1CHW).detach() for x_1CHW in x_BCHW.cpu().split(1)]).double().softmax(1)
    )
