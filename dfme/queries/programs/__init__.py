"""Query images without a trained generator: from programs or a pool. No torch on import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dfme.queries.names import PROCEDURAL, PROGRAMS, check_programs
from dfme.queries.sketch import SKETCH
from dfme.spec import ImageSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dfme.queries.programs.canvas import DrawProgram


class ProceduralImages:
    """Images of programs, evenly and in random order: a pool without end, and without a state.

    A name that stands twice weighs twice. UserError for one that is no program's.
    """

    name = PROCEDURAL
    size = None
    remaining = None

    def __init__(self, spec: ImageSpec, programs: Sequence[str]) -> None:
        check_programs(programs)
        self._spec = spec
        self._names = len(programs)
        self._weights = Counter(programs)
        self._programs: dict[str, DrawProgram] = {
            name: resolve_name(PROGRAMS[name]) for name in self._weights
        }

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        import torch

        from dfme.queries.programs.canvas import shuffled

        share = -(-count // self._names)
        drawn = [self._drawn(name, share * weight, rng) for name, weight in self._weights.items()]
        return drawn[0][:count] if len(drawn) == 1 else shuffled(torch.cat(drawn), count, rng)

    def _drawn(self, name: str, count: int, rng: torch.Generator) -> Tensor:
        """So many images of one program; of a rehearsal, few that stand for them."""
        sketch = SKETCH.get()
        if sketch is None:
            return self._programs[name](count, self._spec, rng)
        return sketch.draw(name, self._programs[name], count, self._spec, rng)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, "programs have no state"
