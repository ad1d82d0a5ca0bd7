"""What candidates make of the images: their features, in each form that images may reach them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dfme.audits.backbone.images import ImagesAt, StepHeard
from dfme.errors import UserError
from dfme.nets.input_form import IMAGENET_MEAN, IMAGENET_STD
from dfme.nets.public import InputForm, PublicNet, PublicWeights, public_net
from dfme.spec import ImageSpec

HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SCALES = {
    "ImageNet's mean and std": (IMAGENET_MEAN, IMAGENET_STD),
    "mean and std .5": HALF,
    "0 to 1": UNIT,
}
AT_ONCE = 16
SCREENED = 160
"""Images by which forms are compared, before the best one sees all of them."""
TIMED = 4
SOLVED = 400
SOLVES = 25
"""Eigenvalues of as many unknowns as features are taken so often, for ``SOLVED`` ones timed."""


@dataclass(frozen=True)
class SeenForm:
    """How images may reach a backbone. ``resize``: bicubic or bilinear; "" where none is needed."""

    name: str
    input: InputForm
    resize: str = ""

    @property
    def scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation."""
        return self.input.mean, self.input.std


def forms_of(weights: PublicWeights, spec: ImageSpec) -> list[SeenForm]:
    """The forms to try: as published first, then other sizes and scales, none of them twice."""
    height, width = spec.shape[1:]
    own = (height, width)
    published = weights.form
    scales = {"mean and std as published": (published.mean, published.std), **SCALES}
    forms: dict[tuple[InputForm, str], SeenForm] = {}
    for size in (published.size, own):
        ways = ("",) if size == own else ("bicubic", "bilinear")
        for resize in ways:
            for words, (mean, std) in scales.items():
                seen = InputForm(size, mean, std)
                name = ", ".join(filter(None, (f"{size[0]}x{size[1]}", resize, words)))
                forms.setdefault((seen, resize), SeenForm(name, seen, resize))
    return list(forms.values())


class Backbone:
    """A candidate for the images of a teacher; a net for each size that it takes.

    UserError where it takes the images in no form. ``width``: the numbers in its features.
    """

    def __init__(self, weights: PublicWeights, spec: ImageSpec) -> None:
        self.weights = weights
        self._spec = spec
        self._nets: dict[tuple[int, int], PublicNet] = {}
        problem: UserError | None = None
        tried = forms_of(weights, spec)
        for size in dict.fromkeys(form.input.size for form in tried):
            of_size = replace(spec, shape=(spec.shape[0], *size))
            try:
                self._nets[size] = public_net(
                    weights, of_size, 2, replace(weights.form, size=size)
                ).eval()
            except UserError as error:
                problem = error
        if not self._nets:
            assert problem is not None
            raise problem
        self.forms = [form for form in tried if form.input.size in self._nets]
        self.width = next(iter(self._nets.values())).width

    def features(self, x_BCHW: Tensor, form: SeenForm) -> Tensor:
        """Features (B, d) of the teacher's images in this form."""
        net = self._nets[form.input.size]
        for buffer, values in ((net.mean_C11, form.input.mean), (net.std_C11, form.input.std)):
            buffer.copy_(torch.tensor(values).view(-1, 1, 1))
        if form.resize:
            low, high = self._spec.bounds
            size = form.input.size
            x_BCHW = interpolate(x_BCHW, size, mode=form.resize, antialias=True).clamp(low, high)
        with torch.no_grad():
            return net.features(x_BCHW).float()

    def seconds(self, count: int) -> float:
        """About how long the features of ``count`` images take, the comparison of forms included,
        and the solves.
        """
        x_BCHW = torch.zeros(TIMED, *self._spec.shape)
        of_size: dict[tuple[int, int], float] = {}
        for form in self.forms:
            if form.input.size not in of_size:
                self.features(x_BCHW, form)
                began = time.perf_counter()
                self.features(x_BCHW, form)
                of_size[form.input.size] = (time.perf_counter() - began) / TIMED
        compared = sum(of_size[form.input.size] for form in self.forms) * min(SCREENED, count)
        rest = max(of_size.values()) * max(0, count - SCREENED)
        return compared + rest + SOLVES * _seconds_of_solve(min(self.width, count))


def _seconds_of_solve(unknowns: int) -> float:
    products = torch.eye(SOLVED, dtype=torch.float64) + 0.01
    began = time.perf_counter()
    torch.linalg.eigh(products)
    return (time.perf_counter() - began) * (unknowns / SOLVED) ** 3


class FormFeatures:
    """Features of the same images in one form, computed as far as they are asked for."""

    def __init__(self, backbone: Backbone, form: SeenForm, images: ImagesAt) -> None:
        self.form = form
        self._backbone = backbone
        self._images = images
        self._parts: list[Tensor] = []
        self._done = 0

    def first(self, count: int, progress: StepHeard) -> Tensor:
        """Features (count, d) of the first images."""
        while self._done < count:
            stop = min(self._done + AT_ONCE, count)
            x_BCHW = self._images(self._done, stop)
            self._parts.append(self._backbone.features(x_BCHW, self.form))
            self._done = stop
            progress(f"features of {self._backbone.weights.name}, {self.form.name}", stop, count)
        return torch.cat(self._parts)[:count]
