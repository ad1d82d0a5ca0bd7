"""ProceduralImages images, against arithmetic and numpy: their statistics, their bounds."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tables import exhaustive
from torch import Tensor

from dfme.errors import UserError
from dfme.nets.generators import Generator
from dfme.queries import drawing, textures
from dfme.queries.programs import (
    PROGRAMS,
    ProceduralImages,
)
from dfme.queries.textures import power_law_fields
from dfme.spec import ImageSpec

pytestmark = pytest.mark.full("generator")

SHAPES = [(3, 12, 12), (1, 8, 8), (2, 9, 13), (4, 1, 5), (1, 1, 1)]


def drawn(
    program: str,
    shape: tuple[int, int, int],
    count: int,
    seed: int = 0,
    **spec: tuple[float, float],
) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return ProceduralImages(ImageSpec(shape, **spec), [program]).draw(count, rng)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shape", [*SHAPES, *exhaustive((3, 20, 48))], ids=str)
def test_images_fit_the_teacher(program: str, shape: tuple[int, int, int]) -> None:
    for count in (1, 3, 50):
        images = drawn(program, shape, count, bounds=(-1.5, 2.5))
        assert images.shape == (count, *shape)
        assert images.dtype == torch.float32
        assert not images.requires_grad
        assert float(images.min()) >= -1.5
        assert float(images.max()) <= 2.5
    torch.testing.assert_close(images, drawn(program, shape, 50) * 4 - 1.5, atol=1e-5, rtol=0)


@pytest.mark.parametrize("program", PROGRAMS)
def test_images_are_decided_by_the_generator_they_draw_from_alone(program: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (drawn(program, (3, 8, 8), 40, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).all(dim=(1, 2, 3)).any()
    assert torch.equal(before, torch.get_rng_state()), "torch's own state is not touched"
    source, rng = (
        ProceduralImages(ImageSpec((1, 8, 8)), [program]),
        torch.Generator().manual_seed(3),
    )
    first, state = source.draw(10, rng), rng.get_state()
    second = source.draw(10, rng)
    assert not torch.isclose(first, second).all(dim=(1, 2, 3)).any()
    rng.set_state(state)
    assert torch.equal(source.draw(10, rng), second)


@pytest.mark.parametrize("program", PROGRAMS)
def test_images_differ_and_favour_no_pixel(program: str) -> None:
    images = torch.cat([drawn(program, (3, 10, 10), 30, seed) for seed in range(50)])
    means = images.mean(0)
    # a sky is lighter than the land below it, and some grounds are white
    assert (means - 0.5).abs().max() < (0.15 if program == "things" else 0.08)
    # Every pixel takes low, middle and high values, and no image is drawn twice.
    for low, high in ((0, 0.25), (0.4, 0.6), (0.75, 1)):
        assert ((images >= low) & (images <= high)).float().mean(0).min() > 0.05
    assert len(images.flatten(1).unique(dim=0)) == 1500
    # Colours are colours: the channels of a pixel differ.
    assert (images[:, 0] - images[:, 1]).abs().mean() > 0.05


@pytest.mark.parametrize(
    ("program", "least"),
    [("leaves", 0.7), ("strokes", 0.6), ("gradients", 0.8), ("noise", 0.3), ("textured", 0.6)],
)
def test_neighbours_are_alike(program: str, least: float) -> None:
    images = drawn(program, (1, 12, 12), 2000)
    images = (images - images.mean((2, 3), keepdim=True)).numpy()
    near = np.corrcoef(images[:, 0, :, 1:].ravel(), images[:, 0, :, :-1].ravel())[0, 1]
    far = np.corrcoef(images[:, 0, 0, 0], images[:, 0, 6, 6])[0, 1]
    assert near > least
    assert near > far + 0.25


@pytest.mark.parametrize(
    ("kind", "area"), [(0.5, 2.0), (1.5, torch.pi), (2.5, 4.0)], ids=["diamond", "disc", "box"]
)
def test_a_leaf_covers_the_area_of_geometry(
    monkeypatch: pytest.MonkeyPatch, kind: float, area: float
) -> None:
    spec, across, up = (
        ImageSpec((1, 100, 140)),
        torch.full((1, 1, 1, 1), 0.8),
        torch.full((1, 1, 1, 1), 0.4),
    )
    zero = torch.zeros(1, 1, 1, 1)
    monkeypatch.setattr(drawing, "_axes", lambda *_: (across, up))
    monkeypatch.setattr(drawing, "_centres", lambda *_: (zero, zero))
    draws = iter(
        [torch.full((1, 1, 1, 1), 0.6), torch.full((1, 1, 1, 1), kind)]
    )  # the angle, then the kind
    monkeypatch.setattr(drawing, "uniform", lambda *_: next(draws))
    cover = drawing.cover_leaves(1, (1, 1), spec, torch.Generator())
    assert cover.shape == (1, 1, 100, 140)
    assert float(cover.sum()) == pytest.approx(area * 0.8 * 0.4 * 50**2, rel=0.02)
    assert 0 < ((cover > 0) & (cover < 1)).float().mean() < 0.05, "only the edge is half covered"


@pytest.mark.parametrize("numbers", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("covering", [drawing.cover_leaves, drawing._cover_strokes])
def test_an_image_has_as_many_things_as_it_should(
    covering: Callable[..., Tensor], numbers: tuple[int, int]
) -> None:
    cover = covering(300, numbers, ImageSpec((1, 16, 16)), torch.Generator().manual_seed(0))
    seen = (cover.amax((2, 3)) > 0).sum(1)
    often = [number for number in range(10) if (seen == number).float().mean() > 0.15]
    assert often == list(range(numbers[0], numbers[1] + 1))
    assert int(seen.max()) == numbers[1]


def test_later_things_hide_earlier_ones() -> None:
    cover = torch.tensor([[1.0, 1.0, 0.0, 0.5], [0.0, 1.0, 1.0, 0.0]]).view(1, 2, 1, 4)
    image = torch.full((1, 1, 1, 4), 0.1)
    drawing.drop(image, cover, torch.tensor([0.3, 0.7]).view(1, 2, 1, 1, 1))
    torch.testing.assert_close(image.flatten(), torch.tensor([0.3, 0.7, 0.7, 0.2]))


def test_a_stroke_is_as_wide_as_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    # A straight one of length 1 (of the half side, 50 pixels) and half a width of 0.2, with round
    # ends.
    ends = torch.linspace(-0.5, 0.5, drawing.SEGMENTS + 1)
    points = torch.stack([ends, torch.zeros_like(ends)], dim=1).view(-1, 1, 1, 2)
    monkeypatch.setattr(drawing, "curves", lambda *_: points)
    monkeypatch.setattr(drawing, "STROKE_WIDTHS", (0.2, 0.2))
    cover = drawing._cover_strokes(1, (1, 1), ImageSpec((1, 100, 120)), torch.Generator())
    assert float(cover.sum()) == pytest.approx((0.4 + torch.pi * 0.04) * 50**2, rel=0.02)


@pytest.mark.parametrize("shape", [(2, 32, 32), (1, 31, 48)], ids=str)
@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.8])
def test_the_spectrum_falls_as_it_should(shape: tuple[int, int, int], exponent: float) -> None:
    rng = torch.Generator().manual_seed(0)
    exponents = torch.tensor([exponent, 3.0] * 500)  # each field is of its own
    fields = power_law_fields(exponents, shape, rng)[::2].numpy()
    assert abs(fields.mean((2, 3))).max() < 1e-5
    assert fields.var() == pytest.approx(1, abs=0.1)
    power = (np.abs(np.fft.fft2(fields)) ** 2).mean((0, 1))
    frequency = np.hypot(np.fft.fftfreq(shape[1])[:, None], np.fft.fftfreq(shape[2]))
    seen = frequency > 0
    slope = np.polyfit(np.log(frequency[seen]), np.log(power[seen]), 1)[0]
    assert slope == pytest.approx(-2 * exponent, abs=0.05)


@pytest.mark.parametrize("program", ["pen", "character"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_page_is_an_empty_ground_with_one_ink(program: str, channels: int) -> None:
    images = drawn(program, (channels, 28, 28), 300).flatten(2)
    commonest = images.mode(dim=2).values[..., None]
    empty = (images == commonest).all(1).float().mean(1)
    assert 0.2 < float(empty.mean()) < 0.95
    assert float((empty > 0.3).float().mean()) > 0.9, "most of a page is its ground, to the bit"
    for image in images.unbind():  # between two colours: of one line
        assert torch.linalg.svdvals(image - image[:, :1])[1:].sum() < 1e-3
    if channels == 1:
        light = (images.mean(2) < 0.5).float().mean()  # ink on dark ground
        assert float(light) == pytest.approx(drawing.LIGHT, abs=0.08)
        assert set(commonest.flatten().tolist()) == {0.0, 1.0}


def test_characters_have_the_size_that_is_said_and_stay_themselves_when_coarser() -> None:
    kinds = len(textures.WEIGHTS), len(textures.CHARACTERS)
    cells = textures._cells(1, torch.device("cpu")).view(*kinds, textures.SIDE, textures.SIDE)
    rows = (cells[0, textures.CHARACTERS.index("H")] > 0.5).any(1).nonzero()
    assert float(rows.max() - rows.min() + 1) / textures.SIDE == pytest.approx(
        textures.CAPITAL, abs=0.03
    )
    ink = cells.mean((2, 3))
    assert bool((ink[1:] > ink[:-1]).all()), "each weight is heavier than the one before"
    assert len({character.numpy().tobytes() for character in cells[0]}) == len(textures.CHARACTERS)
    coarse = textures._cells(6, torch.device("cpu")).mean((1, 2))
    assert coarse.numpy() == pytest.approx(ink.flatten().numpy(), abs=0.005)


def test_a_line_of_text_is_one_ink_on_its_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = lambda count, *_: torch.full((count, 3, 24, 72), 0.5)  # noqa: E731
    monkeypatch.setattr(textures, "grounds", grey)
    monkeypatch.setattr(textures, "draw_textured", grey)
    ink = list[float]()
    for image in drawn("text", (3, 24, 72), 200).flatten(2).unbind():
        off = image - 0.5
        assert torch.linalg.svdvals(off)[1:].sum() < 1e-3, "between two colours: of one line"
        ink.append(float((off.abs().amax(0) > 0.02).float().mean()))
    assert 0.03 < np.mean(ink) < 0.4
    assert np.mean([share > 0 for share in ink]) > 0.98, "an empty image says nothing"


@pytest.mark.parametrize(
    ("shape", "share"), [((1, 24, 96), textures.UPSIDE), ((1, 24, 24), 0.0)], ids=str
)
def test_lines_of_text_are_upside_down_in_wide_images_alone(
    shape: tuple[int, int, int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = torch.zeros(
        len(textures.WEIGHTS) * len(textures.CHARACTERS), textures.SIDE, textures.SIDE
    )
    top[:, : textures.SIDE // 2] = 1  # the ink of every character is above its middle
    monkeypatch.setattr(textures, "_cells", lambda *_: top)
    ink_BH = textures._cover_letters(400, ImageSpec(shape), torch.Generator().manual_seed(0)).mean(
        (1, 3)
    )
    rows_B = (ink_BH * torch.arange(24)).sum(1) / ink_BH.sum(1)
    assert float((rows_B > 11.5).float().mean()) == pytest.approx(share, abs=0.06)


def test_curves_join() -> None:
    spec, rng = ImageSpec((1, 20, 30)), torch.Generator().manual_seed(0)
    points = drawing.curves(2000, 3, spec, rng, 0.6)
    first, last = points[0], points[-1]
    joined = torch.isclose(first[:, 1:], last[:, :-1]).all(2).float().mean()
    assert float(joined) == pytest.approx(0.6, abs=0.03)
    assert points.abs().amax((0, 1, 2)).tolist() == pytest.approx([1.5, 1], abs=0.05)


def test_a_leaf_has_a_texture_of_its_own_about_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textures, "TEXTURE_CONTRASTS", (0.1, 0.1 + 1e-6))
    monkeypatch.setattr(textures, "TINT", 0.0)
    paints = textures.paints(
        50, 4, ImageSpec((3, 24, 24)), torch.Generator().manual_seed(0)
    ).flatten(3)
    assert paints.std(3).mean() == pytest.approx(0.1, rel=0.1)
    shades = (paints - paints.mean(3, keepdim=True)).numpy()
    assert np.abs(shades[:, :, 0] - shades[:, :, 1]).max() < 1e-5, (
        "a texture is of light, not of colour"
    )
    other = np.corrcoef(shades[:, :, 0].reshape(200, -1))[~np.eye(200, dtype=bool)]
    assert abs(other).mean() < 0.4


def test_gradients_run_between_two_colours() -> None:
    images = drawn("gradients", (3, 16, 16), 300).flatten(2)
    for image in images.unbind():
        # Every pixel lies on the line between two colours: the centred pixels have rank 1.
        spread = torch.linalg.svdvals(image - image.mean(1, keepdim=True))
        assert spread[1] < 1e-3


def test_a_fresh_generator_is_as_any_other() -> None:
    spec = ImageSpec((3, 12, 12))
    fresh, again = (
        textures.fresh_generator(spec, torch.Generator().manual_seed(0)) for _ in range(2)
    )
    assert fresh.training
    with torch.random.fork_rng():
        torch.manual_seed(1)
        usual = Generator(textures.LATENT_SIZE, spec)
    compared = list[str]()
    for name, weight in usual.state_dict().items():
        mine = fresh.state_dict()[name]
        assert torch.equal(mine, again.state_dict()[name]), "by the stream alone"
        if len(weight.unique()) == 1:  # as they all are made
            assert torch.equal(mine, weight), name
        elif weight.numel() > 1000:  # many numbers, whose spread is sure
            assert float(mine.std()) == pytest.approx(float(weight.std()), rel=0.1), name
            assert float(mine.amin()) == pytest.approx(float(weight.amin()), rel=0.02), name
            compared.append(name)
    assert len(compared) >= 4


def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs whose images say which they are of: all 0.0 or all 1.0."""
    module = SimpleNamespace(
        zeros=lambda count, spec, rng: torch.zeros(count, *spec.shape),
        ones=lambda count, spec, rng: torch.ones(count, *spec.shape),
    )
    monkeypatch.setitem(sys.modules, "toy_programs", module)  # type: ignore[arg-type]
    monkeypatch.setitem(PROGRAMS, "zeros", "toy_programs:zeros")
    monkeypatch.setitem(PROGRAMS, "ones", "toy_programs:ones")


@pytest.mark.parametrize(
    ("names", "share"),
    [(["zeros", "ones"], 0.5), (["zeros", "ones", "zeros", "zeros"], 0.25), (["ones"] * 2, 1.0)],
)
def test_mixtures_are_even_and_mixed(
    monkeypatch: pytest.MonkeyPatch, names: list[str], share: float
) -> None:
    toys(monkeypatch)
    rng, source = torch.Generator().manual_seed(0), ProceduralImages(ImageSpec((1, 1, 1)), names)
    for count in (1, 5, 1000):
        kinds = source.draw(count, rng).flatten()
        assert len(kinds) == count
        assert abs(float(kinds.sum()) - share * count) <= len(names)
    assert abs(float(kinds[:500].sum()) - share * 500) < 60, "not one after the other"
    ones = sum(float(source.draw(1, rng)) for _ in range(800))
    assert ones == pytest.approx(share * 800, abs=60), "single images too"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["leaves", "noize"], "expected a program .leaves, .* got 'noize'; did you mean noise"),
        ([], "expected at least one of leaves"),
        (["xyz"], "got 'xyz'$"),
    ],
)
def test_unknown_programs_are_refused(names: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ProceduralImages(ImageSpec((1, 8, 8)), names)
