"""Pools of query images: real ones, each drawn once at most, or procedural ones without end."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dfme.data import DATASETS, DRAWN, ImageSet, load_dataset, whole_name
from dfme.data.images import SMALLEST, fitted
from dfme.errors import Ref, UserError, say
from dfme.queries.drawing import within_bounds
from dfme.queries.programs import DOWNLOAD, PROCEDURAL, ProceduralImages, check_pool
from dfme.spec import ImageSpec


class ImageSource(Protocol):
    """Where query images come from. ``size`` and ``remaining`` are None where there is no end."""

    name: str

    @property
    def size(self) -> int | None: ...

    @property
    def remaining(self) -> int | None: ...

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` images (B, C, H, W), float32 within the bounds, not quantised, on ``rng``'s
        device.
        """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Pool:
    """Images (uint8, or float32 in [0, 1]) drawn without replacement, by one number of the first
    ``rng``, or in the order that somebody chose.
    """

    def __init__(
        self, name: str, images_NCHW: Tensor, spec: ImageSpec, notes: Sequence[str] = ()
    ) -> None:
        """``notes``: lines for people about how the images were read."""
        assert tuple(images_NCHW.shape[1:]) == tuple(spec.shape), "fitted comes first"
        self.name = name
        self.notes = tuple(notes)
        self._images = images_NCHW
        self._spec = spec
        self._position = 0
        self._seed: int | None = None
        self._order: Tensor | None = None
        self._chosen = 0  # the first places of the order, which are not as the seed has them

    @property
    def size(self) -> int:
        return len(self._images)

    @property
    def remaining(self) -> int:
        return len(self._images) - self._position

    @property
    def digest(self) -> str:
        """SHA-256 of all images."""
        return ImageSet(self.name, self._images).digested().digest

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        assert count <= self.remaining, "require_enough comes first"
        order_N = self._ordered(rng)
        places_B = order_N[self._position : self._position + count]
        self._position += count
        return self.images(places_B, rng.device)

    def images(self, places_B: Tensor, device: torch.device) -> Tensor:
        """The images (B, C, H, W) at these places of the pool, as ``draw`` gives them."""
        picked_BCHW = self._images[places_B].to(device)
        unit_BCHW = (
            picked_BCHW if picked_BCHW.is_floating_point() else picked_BCHW.float().div_(255)
        )
        return within_bounds(unit_BCHW, self._spec)

    def places(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Places of the images that were drawn, in their order, and of those that were not."""
        order_N = self._ordered(rng)
        return order_N[: self._position], order_N[self._position :]

    def put_first(self, places_M: Tensor) -> None:
        """Let these of the images that were not drawn be drawn next, in this order; the others
        follow in theirs.
        """
        assert self._seed is not None, "places comes first"
        self._reorder(torch.cat([self._drawn, places_M.cpu()]))

    def state_dict(self) -> dict[str, Any]:
        """``chosen``: the places at which the order is not what the seed gives."""
        state = {"size": self.size, "seed": self._seed, "position": self._position}
        if not self._chosen:
            return state
        assert self._order is not None
        return state | {"chosen": self._order[: self._chosen].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave. ValueError for the state of a pool of another size."""
        if state["size"] != self.size:
            raise ValueError(
                f"pool {self.name}: expected {state['size']} images as before, got {self.size}"
            )
        self._position = state["position"]
        self._seed = state["seed"]
        self._order = None
        self._chosen = 0
        if self._seed is not None:
            self._reorder(state.get("chosen", torch.arange(0)))

    @property
    def _drawn(self) -> Tensor:
        assert self._order is not None
        return self._order[: self._position]

    def _ordered(self, rng: torch.Generator) -> Tensor:
        """The order, which the first call draws."""
        if self._order is None:
            self._seed = int(torch.randint(1 << 62, (), generator=rng, device=rng.device))
            self._reorder(torch.arange(0))
        assert self._order is not None
        return self._order

    def _reorder(self, first_M: Tensor) -> None:
        """The order that the seed gives, but for these places, which come first."""
        assert self._seed is not None
        shuffled_N = torch.randperm(self.size, generator=torch.Generator().manual_seed(self._seed))
        is_first_N = torch.zeros(self.size, dtype=torch.bool)
        is_first_N[first_M] = True
        self._order = torch.cat([first_M, shuffled_N[~is_first_N[shuffled_N]]])
        self._chosen = len(first_M)


def open_pool(
    name: str, spec: ImageSpec, root: str = "datasets", *, download: bool = False
) -> ImageSource:
    """The images called ``name``, fitted to the shape of ``spec``.

    ``procedural`` draws from programs without end. The training part of a data set, a folder of
    pictures (flat, or with any folders in it; of several parts that to train with) or an .npz file
    is read whole, without its labels; a half (``HALVES``) is that of the test part. UserError for
    any other name, and for files that are missing or unreadable.
    """
    check_pool(name, root, download=download)
    if name == PROCEDURAL:
        return ProceduralImages(spec, ("leaves",))
    notes: Sequence[str] = ()
    where: dict[str, Any] = {
        "root": root,
        "download": download,
        "download_option": DOWNLOAD,
    }
    if name != whole_name(name):
        half = load_dataset(name, "test", shape=spec.shape, lazy=True, **where)
        images_NCHW = half.images if half.read is None else half.read(slice(None))
        notes = half.notes
    elif name in DATASETS:
        shape = None
        if name in DRAWN:  # at the size asked for, as far as it can be
            channels, height, width = spec.shape
            shape = (1 if channels == 1 else 3, max(SMALLEST, height), max(SMALLEST, width))
        images_NCHW = load_dataset(name, "train", shape=shape, **where).images
    else:
        from dfme.data.folder import read_images

        read = read_images(Path(name).expanduser(), spec.shape)
        images_NCHW = read.images
        notes = read.notes
    try:
        return Pool(name, fitted(images_NCHW, spec.shape), spec, notes)
    except UserError as error:
        raise UserError(error.message, about=f"pool {name}") from error


def require_enough(pool: ImageSource, images: int, key: str) -> None:
    """UserError if the pool, named by the option ``key``, has fewer images than will be asked."""
    if pool.size is not None and pool.size < images:
        raise UserError(
            say(
                "{}: has {:,} images, but the budget asks for {:,}, each once; lower {budget} to "
                "{}, or choose a larger data set or folder, or {}, which has no end",
                Ref(key, pool.name),
                pool.size,
                images,
                pool.size,
                PROCEDURAL,
            )
        )


def by_programs(pool: ImageSource, spec: ImageSpec, programs: tuple[str, ...]) -> ImageSource:
    """The pool; one without an end draws by these programs."""
    return pool if pool.size is not None else ProceduralImages(spec, programs)


class Passes:
    """A pool without an end: drawn to its last image, then again in another order."""

    def __init__(self, pool: ImageSource) -> None:
        self._unused = copy.copy(pool)
        self._pool = copy.copy(pool)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        parts: list[Tensor] = []
        while count > 0:
            if self._pool.remaining == 0:
                self._pool = copy.copy(self._unused)
            remaining = self._pool.remaining
            most = count if remaining is None else min(count, remaining)
            parts.append(self._pool.draw(most, rng))
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        return self._pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pool.load_state_dict(state)
