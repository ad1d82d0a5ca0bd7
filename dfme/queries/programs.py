"""Query images drawn by programs; in a rehearsal few are drawn and timed, and stand for the many
of a run. No torch on import.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from dfme.spec import ImageSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dfme.queries.drawing import DrawProgram
from collections import Counter
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dfme.queries.names import PROCEDURAL, PROGRAMS, check_programs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dfme.queries.drawing import DrawProgram


DRAWING_SECONDS = 0.4  # after which no more images of one program are drawn
MAX_IMAGES = 64  # images of one program


class Sketch:
    """The few images of each program and how long it takes to draw one.

    ``seconds`` are those that the images asked for so far would have taken, by the program's name;
    ``of_image`` those of one image.
    """

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)
        self.of_image: dict[str, float] = {}
        self._spent = 0.0
        self._few: dict[tuple[str, ImageSpec], Tensor] = {}

    @property
    def owed(self) -> float:
        """Seconds that would have been taken beyond those that were."""
        return sum(self.seconds.values()) - self._spent

    def draw(
        self, name: str, program: DrawProgram, count: int, spec: ImageSpec, rng: torch.Generator
    ) -> Tensor:
        """As many images as are asked for, the few over and over."""
        import torch

        key = (name, spec)
        if key not in self._few:
            began = time.perf_counter()
            self._few[key], self.of_image[name] = _timed(program, spec, rng)
            self._spent += time.perf_counter() - began
        few_BCHW = self._few[key]
        self.seconds[name] += count * self.of_image[name]
        return few_BCHW[torch.arange(count, device=few_BCHW.device) % len(few_BCHW)]


def _timed(program: DrawProgram, spec: ImageSpec, rng: torch.Generator) -> tuple[Tensor, float]:
    """Images of a program, twice as many in each call, and the seconds of one in the last call."""
    import torch

    count = 1
    began = time.perf_counter()
    while True:
        before = time.perf_counter()
        x_BCHW = program(count, spec, rng)
        if x_BCHW.is_cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        # the next call would take twice as long as the last
        if count == MAX_IMAGES or (now - began) + 2 * (now - before) > DRAWING_SECONDS:
            return x_BCHW, (now - before) / count
        count *= 2


SKETCH: ContextVar[Sketch | None] = ContextVar("sketch", default=None)
"""What draws in place of the programs while a run is rehearsed."""


@contextmanager
def sketching() -> Iterator[Sketch]:
    """Programs draw few images within the context; a context in it takes the same ones."""
    sketch = SKETCH.get() or Sketch()
    before = SKETCH.set(sketch)
    try:
        yield sketch
    finally:
        SKETCH.reset(before)


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

        from dfme.queries.drawing import shuffled

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
