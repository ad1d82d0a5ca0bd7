"""Query images by name: what can be said of their sources, and of a choice among them, before
anything heavy is loaded, and the images that programs draw. Large ones are drawn small and
enlarged. In a rehearsal few are drawn and timed, and stand for the many of a run. No torch on
import.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from dfme.config.messages import did_you_mean, unknown_choice
from dfme.errors import Problem, Ref, UserError, say
from dfme.spec import ImageSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dfme.config.sections import QueriesConfig
    from dfme.queries.drawing import DrawProgram


# name -> "module:function"; a function takes (count, spec, rng) and draws so many images within the
# bounds.
PROGRAMS: dict[str, str] = {
    "leaves": "dfme.queries.drawing:draw_leaves",
    "strokes": "dfme.queries.drawing:draw_strokes",
    "pen": "dfme.queries.drawing:draw_pen",
    "character": "dfme.queries.writing:draw_character",
    "text": "dfme.queries.textures:draw_text",
    "textured": "dfme.queries.textures:draw_textured",
    "noise": "dfme.queries.textures:draw_noise",
    "gradients": "dfme.queries.drawing:draw_ramps",
    "generators": "dfme.queries.textures:draw_generators",
    "things": "dfme.queries.things:draw_things",
}

# queries.domain -> the programs that it sets; docs/results/real_size.md has what each is worth.
DOMAINS: dict[str, tuple[str, ...]] = {
    "handwriting": ("pen", "character"),
    "text": ("text",),
    "things": ("things",),
}

DRAWN_SIDE = 96
"""Pixels of the shorter side that programs draw; larger images are enlarged from it.

Everything drawn is measured in shorter sides, so that this side alone decides what can be seen of
it: a line of text of 48x192 pixels is drawn as it is, however wide. A public network at 224 sees
as much in images drawn at 96 (docs/results/real_size_programs.md).
"""

PROCEDURAL = "procedural"  # the pool without an end: images of programs
DOWNLOAD = Ref("method.download", True)


def check_programs(names: Iterable[str]) -> None:
    """Raise a UserError for a name that is no program's, with the nearest, and for no name at
    all.
    """
    names = tuple(names)
    if not names:
        expected = f"expected at least one of {', '.join(PROGRAMS)}, got none"
        raise UserError(expected, about="programs")
    for name in names:
        if name not in PROGRAMS:
            raise UserError(unknown_choice("program", name, PROGRAMS), about="programs")


def drawn_spec(spec: ImageSpec) -> ImageSpec:
    """The images that are drawn in place of those of ``spec``: their aspect, to half a pixel, and
    at most ``DRAWN_SIDE`` pixels on the shorter side.
    """
    channels, height, width = spec.shape
    shorter = min(height, width)
    if shorter <= DRAWN_SIDE:
        return spec
    height = round(height * DRAWN_SIDE / shorter)
    width = round(width * DRAWN_SIDE / shorter)
    return replace(spec, shape=(channels, height, width))


def check_pool(name: str, root: str = "datasets", *, download: bool = False) -> None:
    """UserError for an unknown name, missing files and, without ``download``, a set not under
    ``root``.
    """
    from dfme.data import DATASETS, check_dataset, whole_name
    from dfme.data.class_names import require_names
    from dfme.data.layout import layout_of

    dataset = whole_name(name)
    require_names([name], "pool")
    path = Path(os.path.expanduser(dataset))
    if name == PROCEDURAL:
        return
    if name and path.is_dir():
        layout = layout_of(path)
        # refuses parts that nobody can choose from
        layout.pool if name == dataset else layout.test  # noqa: B018
        return
    if dataset in DATASETS or path.suffix == ".npz" or len(path.parts) > 1:
        return check_dataset(name, root, download=download, download_option=DOWNLOAD)
    choices = (PROCEDURAL, *DATASETS)
    raise UserError(
        f"expected {', '.join(choices)}, a folder of images or an .npz file, got {name!r}"
        f"{did_you_mean(name, choices)}",
        about="pool of images",
    )


def choice_problems(queries: QueriesConfig, pool: str, in_rounds: bool) -> Iterator[Problem]:
    """A choice among ``all`` where there is no ``pool`` with an end, or by students without rounds;
    centres among a few candidates.
    """
    if queries.pool != "all":
        if queries.candidates > 1 and queries.choose == "kcenter":
            needed = say("expected {queries.pool:all} with it, and {method.pool}; or give margin")
            yield Problem("queries.choose", needed, got="kcenter")
    elif pool == PROCEDURAL:
        needed = say("expected {method.pool} as well, of pictures; programs draw without an end")
        yield Problem("queries.pool", needed, got="all")
    elif not in_rounds:
        needed = say("expected {student.rounds} as well: all are looked at as each of them begins")
        yield Problem("queries.pool", needed, got="all")


def idle_choice(
    queries: QueriesConfig, pool: str, gives: Callable[[str], bool]
) -> Iterator[Problem]:
    """Options of a choice that the user gave and that change nothing: of candidates, where pictures
    of a pool are asked as they come, and of classes, where centres are chosen.
    """
    if queries.pool == "all":
        if queries.choose == "kcenter" and gives("queries.balance"):
            effective = "takes effect only with {queries.choose:entropy,margin,random}"
            yield Problem("queries.balance", say(effective))
        return
    if pool == PROCEDURAL:
        return
    if queries.pool != 1 and gives("queries.pool"):
        with_pool = say("expected all, or 1, with {}", Ref("method.pool", pool))
        yield Problem("queries.pool", with_pool, got=str(queries.pool))
    for key in ("queries.choose", "queries.balance"):
        if gives(key):
            needed = "takes effect on {} only with {queries.pool:all}"
            yield Problem(key, say(needed, Ref("method.pool", pool)))


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
        self._besides = 0.0
        self._few: dict[tuple[str, ImageSpec], Tensor] = {}

    @property
    def owed(self) -> float:
        """Seconds that would have been taken beyond those that were."""
        return sum(self.seconds.values()) + self._besides - self._spent

    def owe(self, seconds: float) -> None:
        """Count seconds of something else than drawing that would have been taken."""
        self._besides += seconds

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

        from dfme.queries.drawing import enlarged, shuffled

        share = -(-count // self._names)
        drawn = [self._drawn(name, share * weight, rng) for name, weight in self._weights.items()]
        one = len(drawn) == 1
        mixed_BCHW = drawn[0][:count] if one else shuffled(torch.cat(drawn), count, rng)
        # Enlarged last: drawn and mixed, an image of 224 pixels takes a fifth of the memory.
        return enlarged(mixed_BCHW, self._spec)

    def _drawn(self, name: str, count: int, rng: torch.Generator) -> Tensor:
        """So many images of one program, not enlarged; of a rehearsal, few that stand for them."""
        spec = drawn_spec(self._spec)
        sketch = SKETCH.get()
        if sketch is None:
            return self._programs[name](count, spec, rng)
        return sketch.draw(name, self._programs[name], count, spec, rng)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, "programs have no state"
