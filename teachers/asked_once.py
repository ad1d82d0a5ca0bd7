"""A teacher of one's own behind a meter, for what its owner measures of it: each image is asked once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from dfme.spec import Teacher
from dfme.teachers.label_modes import Wrapper


class AskedOnce(Wrapper):
    """The same answers as ``teacher``, which is asked through ``ask`` and never twice about the same image.

    The answers are kept in memory, some bytes an image and a number a class.
    """

    def __init__(self, teacher: Teacher, ask: Callable[[Tensor], Tensor]) -> None:
        super().__init__(teacher)
        self._ask = ask
        self._answers: dict[bytes, Tensor] = {}

    def __call__(self, images: Tensor, /) -> Tensor:
        pixels = images.cpu().contiguous().numpy()
        digests = [hashlib.sha256(image.tobytes()).digest() for image in pixels]
        new = {digest: place for place, digest in enumerate(digests) if digest not in self._answers}
        if new:
            answers = self._ask(images[list(new.values())]).cpu()
            self._answers.update(zip(new, answers, strict=True))
        return torch.stack([self._answers[digest] for digest in digests]).to(images.device)
