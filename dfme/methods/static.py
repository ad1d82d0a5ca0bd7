"""The honest baseline: queries from a generator as it was initialised. Every comparison must show it."""

from __future__ import annotations

from typing import Any, ClassVar

from dfme.methods.base import Parts
from dfme.methods.configs import StaticConfig
from dfme.methods.teaching import Taught, Teaching
from dfme.spec import LABEL_KINDS, LabelKind


class Static(Taught):
    """Spends the whole budget on the student; the generator never learns: cost = B * d images.

    Differences from a paper: none, there is no paper. It equals ``dfme`` with ``generator_steps`` of zero.
    """

    label_modes: ClassVar[tuple[LabelKind, ...]] = LABEL_KINDS

    def __init__(self, config: StaticConfig, parts: Parts) -> None:
        self.cost = config.batch_size * config.student_steps
        self._generator = parts.generator
        self._teaching = Teaching(parts, parts.sampler(config.batch_size).images, config.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.load_state_dict(state["generator"])
