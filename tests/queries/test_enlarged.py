"""Large images of programs, drawn small and enlarged: against the programs called directly, Pillow and
arithmetic.
"""

from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from PIL import Image
from tables import exhaustive

from dfme.queries import programs
from dfme.queries.drawing import enlarged
from dfme.queries.programs import DRAWN_SIDE, PROGRAMS, ProceduralImages, drawn_spec, sketching
from dfme.spec import ImageSpec

Shape = tuple[int, int, int]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "shape",
    [(3, 32, 32), *exhaustive((1, 28, 28), (3, 64, 64), (1, 64, 64), (3, 48, 192))],
    ids=str,
)
def test_small_images_are_what_their_program_draws(program: str, shape: Shape) -> None:
    spec = ImageSpec(shape, bounds=(-1.0, 2.0))
    draw = resolve_name(PROGRAMS[program])
    assert torch.equal(ProceduralImages(spec, [program]).draw(3, rng()), draw(3, spec, rng()))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "shape",
    [(1, 224, 224), *exhaustive((3, 224, 224), (3, 65, 65), (3, 48, 192), (3, 384, 384))],
    ids=str,
)
def test_large_images_fit_the_teacher(program: str, shape: Shape) -> None:
    spec = ImageSpec(shape, bounds=(-1.5, 2.5))
    images, again = (ProceduralImages(spec, [program]).draw(2, rng()) for _ in range(2))
    assert images.shape == (2, *shape)
    assert images.dtype == torch.float32
    assert not images.requires_grad
    assert torch.equal(images, again)
    assert float(images.min()) >= -1.5
    assert float(images.max()) <= 2.5
    assert float(images.std()) > 0.05
    # what was drawn is the picture's own coarser form
    small = resolve_name(PROGRAMS[program])(2, drawn_spec(spec), rng())
    coarser = torch.nn.functional.interpolate(images, small.shape[2:], mode="area")
    assert np.corrcoef(coarser.flatten(), small.flatten())[0, 1] > 0.9


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [
        ((3, 64, 64), (3, 64, 64)),
        ((1, 65, 65), (1, 65, 65)),
        ((3, 96, 96), (3, 96, 96)),
        ((3, 97, 97), (3, 96, 96)),
        ((3, 224, 224), (3, 96, 96)),
        ((1, 384, 384), (1, 96, 96)),
        ((3, 48, 192), (3, 48, 192)),
        ((3, 32, 2000), (3, 32, 2000)),
        ((3, 480, 192), (3, 240, 96)),
        ((3, 200, 333), (3, 96, 160)),
    ],
)
def test_the_shorter_side_decides_what_is_drawn(shape: Shape, drawn: Shape) -> None:
    spec = ImageSpec(shape, bounds=(-1.0, 1.0), levels=16)
    assert drawn_spec(spec) == ImageSpec(drawn, bounds=(-1.0, 1.0), levels=16)
    assert min(drawn[1:]) == min(DRAWN_SIDE, *shape[1:])


def test_enlarging_is_pillows_bicubic_and_clamped() -> None:
    small_BCHW = torch.rand(70, 1, 24, 32, generator=rng())  # more than a chunk of them
    large_BCHW = enlarged(small_BCHW * 4 - 1, ImageSpec((1, 100, 130), bounds=(-1.0, 3.0)))
    for small_HW, large_HW in zip(small_BCHW[:, 0], large_BCHW[:, 0], strict=True):
        pillow = Image.fromarray(small_HW.numpy()).resize((130, 100), Image.Resampling.BICUBIC)
        expected = np.asarray(pillow).clip(0, 1) * 4 - 1
        np.testing.assert_allclose(large_HW.numpy(), expected, atol=2e-5)
    assert float(large_BCHW.max()) == 3.0, "bicubic interpolation goes beyond its ends"


def test_images_of_the_right_size_are_not_copied() -> None:
    images_BCHW = torch.rand(2, 3, 8, 9)
    assert enlarged(images_BCHW, ImageSpec((3, 8, 9))) is images_BCHW


def test_mixtures_are_mixed_before_they_are_enlarged() -> None:
    spec = ImageSpec((1, 112, 140))
    names = ("leaves", "pen", "pen")
    mixed = ProceduralImages(drawn_spec(spec), names).draw(7, rng())
    assert torch.equal(ProceduralImages(spec, names).draw(7, rng()), enlarged(mixed, spec))


def test_a_rehearsal_gives_images_of_the_whole_size(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ImageSpec((1, 200, 100))
    monkeypatch.setattr(programs, "MAX_IMAGES", 2)
    with sketching() as sketch:
        images = ProceduralImages(spec, ("gradients",)).draw(5, rng())
    assert images.shape == (5, *spec.shape)
    assert sketch.seconds["gradients"] == pytest.approx(5 * sketch.of_image["gradients"])
