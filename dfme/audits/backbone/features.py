"""What candidates make of the images: their features, in each form that images may reach them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.audits.backbone.images import Images, Progress
from dfme.errors import UserError
from dfme.nets.public import InputForm, PublicNet, PublicWeights, public_net
from dfme.spec import ImageSpec

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SCALES = {"ImageNet's mean and std": IMAGENET, "mean and std .5": HALF, "0 to 1": UNIT}
AT_ONCE = 32
SCREENED = 160
"""Images by which forms are compared, before the best one sees all of them."""
TIMED = 8
SOLVED = 400
SOLVES = 12
"""Eigenvalues of as many unknowns as features are taken so often, for ``SOLVED`` ones timed."""


@dataclass(frozen=True)
class Form:
    """How images may reach a backbone. ``resize``: bicubic or bilinear; "" where none is needed."""

    name: str
    input: InputForm
    resize: str = ""

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation."""
        return self.input.mean, self.input.std


def forms_of(weights: PublicWeights, spec: ImageSpec) -> list[Form]:
    """The forms to try: as published first, then other sizes and scales, none of them twice."""
    height, width = spec.shape[1:]
    own = (height, width)
    published = weights.form
    scales = {"mean and std as published": (published.mean, published.std), **SCALES}
    forms: dict[tuple[InputForm, str], Form] = {}
    for size in (published.size, own):
        ways = ("",) if size == own else ("bicubic", "bilinear")
        for resize in ways:
            for words, (mean, std) in scales.items():
                seen = InputForm(size, mean, std)
                name = ", ".join(filter(None, (f"{size[0]}x{size[1]}", resize, words)))
                forms.setdefault((seen, resize), Form(name, seen, resize))
    return list(forms.values())


class FormFeatures:
    """Features of the same images in one form, computed as far as they are asked for."""

    def __init__(
        self, weights: PublicWeights, form: Form, spec: ImageSpec, images: Images, name: str
    ) -> None:
        self.form = form
        self._weights = weights
        self._spec = spec
        self._images = images
        self._name = name
        self._parts: list[Tensor] = []
        self._done = 0

    def first(self, count: int, progress: Progress) -> Tensor:
        """Features (count, d) of the first images. UserError for a form that the net cannot
        take.
        """
        if self._done < count:
            net = self._net()
            with torch.no_grad():
                while self._done < count:
                    stop = min(self._done + AT_ONCE, count)
                    self._parts.append(net.features(self._seen(self._done, stop)).float())
                    self._done = stop
                    progress(f"features of {self._name}, {self.form.name}", stop, count)
        return torch.cat(self._parts)[:count]

    def _net(self) -> PublicNet:
        spec = replace(self._spec, shape=(self._spec.shape[0], *self.form.input.size))
        return public_net(self._weights, spec, 2, self.form.input).eval()

    def _seen(self, start: int, stop: int) -> Tensor:
        x_BCHW = self._images(start, stop)
        if not self.form.resize:
            return x_BCHW
        low, high = self._spec.bounds
        size = self.form.input.size
        return interpolate(x_BCHW, size, mode=self.form.resize, antialias=True).clamp(low, high)


def usable_forms(weights: PublicWeights, spec: ImageSpec) -> list[Form]:
    """Those forms that the architecture takes. UserError where it takes none."""
    usable = []
    sizes: dict[tuple[int, int], bool] = {}
    problem: UserError | None = None
    for form in forms_of(weights, spec):
        size = form.input.size
        if size not in sizes:
            try:
                of_size = replace(spec, shape=(spec.shape[0], *size))
                public_net(weights, of_size, 2, form.input)
                sizes[size] = True
            except UserError as error:
                sizes[size] = False
                problem = error
        if sizes[size]:
            usable.append(form)
    if not usable:
        assert problem is not None
        raise problem
    return usable


def seconds_of(weights: PublicWeights, spec: ImageSpec, count: int) -> float:
    """About how long the features of ``count`` images take, the comparison of forms included, and
    the solves.
    """
    forms = usable_forms(weights, spec)
    slowest = 0.0
    total = 0.0
    of_size: dict[tuple[int, int], float] = {}
    for form in forms:
        if (size := form.input.size) not in of_size:
            net = public_net(weights, replace(spec, shape=(spec.shape[0], *size)), 2, form.input)
            of_size[size] = _seconds_of_image(net.eval(), torch.zeros(TIMED, spec.shape[0], *size))
            width = net.width
        slowest = max(slowest, of_size[size])
        total += min(SCREENED, count) * of_size[size]
    features = slowest * max(0, count - SCREENED) + total
    return features + SOLVES * _seconds_of_solve() * (min(width, count) / SOLVED) ** 3


def _seconds_of_image(net: PublicNet, x_BCHW: Tensor) -> float:
    with torch.no_grad():
        net.features(x_BCHW)
        began = time.perf_counter()
        net.features(x_BCHW)
    return (time.perf_counter() - began) / len(x_BCHW)


def _seconds_of_solve() -> float:
    products = torch.eye(SOLVED, dtype=torch.float64) + 0.01
    began = time.perf_counter()
    torch.linalg.eigh(products)
    return time.perf_counter() - began
