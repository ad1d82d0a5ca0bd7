"""Pools of real images, each drawn once; and the programs that a known domain sets."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from command_line import parse_extract
from PIL import Image
from torch import Tensor

from dfme.config.sections import QueriesConfig
from dfme.config.values import options_of
from dfme.data import load_dataset
from dfme.data.images import fitted
from dfme.errors import UserError
from dfme.queries.pool import Pool, by_programs, open_pool, require_enough
from dfme.queries.programs import DOMAINS, PROGRAMS, ProceduralImages, check_pool
from dfme.report.console import header
from dfme.report.run_files import known_domain, pictures
from dfme.run.job import document
from dfme.spec import ImageSpec

GREY = ImageSpec((1, 2, 2))


def numbered(count: int = 20, bounds: tuple[float, float] = (0.0, 1.0)) -> Pool:
    """Images that are their own number, in 255ths."""
    images = (
        torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    )
    return Pool("numbered", images, ImageSpec((1, 2, 2), bounds))


def numbers(images: Tensor) -> list[int]:
    return images[:, 0, 0, 0].mul(255).round().long().tolist()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paint(path: Path, value: int | tuple[int, int, int], size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(value, int) else "RGB", size, value).save(path)


def test_each_image_is_drawn_once() -> None:
    pool, rng = numbered(), seeded()
    first, second = numbers(pool.draw(8, rng)), numbers(pool.draw(12, rng))
    assert sorted(first + second) == list(range(20))
    orders = [numbers(numbered().draw(20, seeded(seed))) for seed in (0, 0, 1)]
    assert list(range(20)) != first + second == orders[0] == orders[1] != orders[2]
    assert (pool.size, pool.remaining) == (20, 0)


def test_only_the_first_draw_takes_from_the_generator() -> None:
    pool, rng, other = numbered(), seeded(), seeded()
    pool.draw(3, rng)
    torch.randint(1 << 62, (), generator=other)
    assert torch.equal(rng.get_state(), other.get_state())
    pool.draw(3, rng)
    assert torch.equal(rng.get_state(), other.get_state())


def test_what_is_put_first_is_drawn_next_and_the_rest_in_its_order() -> None:
    pool, plain, rng = numbered(), numbered(), seeded()
    before = numbers(pool.draw(4, rng))
    drawn, left = pool.places(rng)
    assert drawn.tolist() == before
    pool.put_first(left[[9, 3]])
    order = numbers(plain.draw(20, seeded()))
    chosen = [order[4 + 9], order[4 + 3]]
    rest = [number for number in order[4:] if number not in chosen]
    assert numbers(pool.draw(5, rng)) == chosen + rest[:3]
    again = numbered()
    again.load_state_dict(pool.state_dict())
    assert numbers(again.draw(11, seeded(5))) == rest[3:] == numbers(pool.draw(11, rng))


@pytest.mark.parametrize("before", [0, 7])
def test_a_resumed_pool_goes_on_exactly(before: int) -> None:
    pool, rng = numbered(), seeded()
    if before:
        pool.draw(before, rng)
    state, rng_state = pool.state_dict(), rng.get_state()
    rest = pool.draw(13, rng)
    again, rng = numbered(), seeded(99)
    again.draw(2, rng)  # whatever it did before is gone
    again.load_state_dict(state)
    rng.set_state(rng_state)
    assert torch.equal(again.draw(13, rng), rest)
    assert again.remaining == 20 - before - 13


def test_the_state_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 20 images as before, got 21"):
        numbered(21).load_state_dict(numbered().state_dict())


def test_pixels_are_taken_to_the_bounds() -> None:
    images = numbered(256, bounds=(-1.0, 3.0)).draw(256, seeded())
    assert images.dtype == torch.float32
    torch.testing.assert_close(images[:, 0, 0, 0].sort().values, torch.arange(256) / 255 * 4 - 1)
    floats = torch.rand(5, 1, 2, 2)
    kept = floats.clone()
    drawn = Pool("floats", floats, ImageSpec((1, 2, 2), (-1.0, 1.0))).draw(5, seeded())
    assert torch.equal(floats, kept), "drawing leaves the pool as it was"
    torch.testing.assert_close(drawn.sort(0).values, (kept * 2 - 1).sort(0).values)


def test_a_pool_too_small_is_named_with_what_would_do() -> None:
    require_enough(numbered(), 20, "method.pool")
    said = r"^--method.pool numbered: has 20 images, .* asks for 30,000, .*lower --budget to 20, or .*procedural"
    with pytest.raises(UserError, match=said):
        require_enough(numbered(), 30_000, "method.pool")


def test_the_procedural_pool_has_no_end() -> None:
    spec = ImageSpec((3, 8, 8))
    pool = by_programs(open_pool("procedural", spec), spec, ("leaves", "noise"))
    assert isinstance(pool, ProceduralImages)
    assert (pool.size, pool.remaining) == (None, None)
    require_enough(pool, 10**9, "method.pool")
    rng = seeded()
    first = pool.draw(4, rng)
    assert not torch.equal(first, pool.draw(4, rng))
    again = by_programs(open_pool("procedural", spec), spec, ("leaves", "noise"))
    again.load_state_dict(pool.state_dict())
    assert torch.equal(again.draw(4, seeded()), first)


def test_sets_are_pools() -> None:
    pool = open_pool("digits", ImageSpec((1, 8, 8)))
    theirs = load_dataset("digits", "train").images
    assert pool.size == len(theirs) == 1438
    assert open_pool("shapes", ImageSpec((3, 16, 12))).draw(100, seeded()).shape == (100, 3, 16, 12)
    assert sorted(map(tuple, pool.draw(1438, seeded()).flatten(1).tolist())) == sorted(
        map(tuple, theirs.flatten(1).tolist())
    )


@pytest.mark.parametrize("shape", [(1, 5, 16), (3, 32, 20), (2, 8, 8)], ids=str)
def test_a_set_of_another_size_is_resized(shape: tuple[int, int, int]) -> None:
    images = open_pool("digits", ImageSpec(shape)).draw(1438, seeded())
    assert images.shape == (1438, *shape)
    assert images.mean() == pytest.approx(
        float(load_dataset("digits", "train").images.mean()), abs=0.05
    )
    assert torch.equal(images[:, 0], images[:, -1]), "grey stays grey"


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "class folders"])
def test_a_folder_may_be_flat_or_have_class_folders(tmp_path: Path, nested: bool) -> None:
    for value in range(6):
        paint(
            tmp_path / (f"class{value % 2}" if nested else "") / f"{value}.png", 10 * value, (5, 3)
        )
    pool = open_pool(str(tmp_path), GREY)
    assert sorted(numbers(pool.draw(6, seeded()))) == [0, 10, 20, 30, 40, 50]
    paint(tmp_path / "parts/train/a.png", 10)
    paint(tmp_path / "parts/test/b.png", 20)
    assert numbers(open_pool(str(tmp_path / "parts"), GREY).draw(1, seeded())) == [10], (
        "one of two parts"
    )


def test_an_array_needs_no_labels(tmp_path: Path) -> None:
    file = tmp_path / "images.npz"
    greys = 50 * np.arange(4, dtype=np.uint8)
    np.savez(file, train_images=greys.reshape(4, 1, 1).repeat(3, 1).repeat(3, 2))
    assert sorted(numbers(open_pool(str(file), GREY).draw(4, seeded()))) == [0, 50, 100, 150]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "digit",
            "expected procedural, digits, .*or an .npz file, got 'digit'.*did you mean digits",
        ),
        ("proceduraal", "did you mean procedural"),
        ("here/nowhere", "no such folder or file"),
        ("nowhere.npz", "no such folder or file"),
        ("", "expected procedural"),
        ("cifar10", "files are missing in"),
    ],
)
def test_unknown_names_are_refused(tmp_path: Path, name: str, says: str) -> None:
    for refuse in (check_pool, lambda name, root: open_pool(name, GREY, root)):
        with pytest.raises(UserError, match=says):
            refuse(name, str(tmp_path))


def test_shrinking_averages_and_growing_interpolates() -> None:
    halves = torch.tensor([[0, 0, 200, 200]], dtype=torch.uint8).repeat(4, 1).view(1, 1, 4, 4)
    assert fitted(halves, (1, 4, 4)) is halves
    assert fitted(halves, (1, 1, 1)).flatten().tolist() == [100]
    assert fitted(halves, (3, 4, 8))[0, :, 0].tolist() == [[0, 0, 0, 50, 150, 200, 200, 200]] * 3


def test_colour_becomes_grey_by_its_luma() -> None:
    images = torch.rand(7, 3, 5, 4)
    theirs = [
        Image.fromarray((image.permute(1, 2, 0) * 255).byte().numpy()).convert("L")
        for image in images
    ]
    truth = torch.from_numpy(np.stack([np.asarray(image) for image in theirs])).unsqueeze(1) / 255
    torch.testing.assert_close(fitted(images, (1, 5, 4)), truth, atol=0.01, rtol=0)
    with pytest.raises(UserError, match="images of 3 channels cannot become images of 2"):
        fitted(torch.rand(2, 3, 4, 4), (2, 4, 4))


def document_of(words: str) -> dict[str, object]:
    return document(parse_extract(words.split()))


def test_every_domain_is_an_option_with_programs_of_ours() -> None:
    (option,) = (each for each in options_of(QueriesConfig, "queries.") if each.name == "domain")
    assert set(get_args(get_args(option.type)[0])) == {*DOMAINS, "unknown"}
    assert {name for names in DOMAINS.values() for name in names} <= {*PROGRAMS}
    assert option.default == "unknown"


@pytest.mark.parametrize("recipe", ["frugal", "dfme", "procedural"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_sets_the_programs_of_any_recipe_and_is_on_record(
    recipe: str, domain: str
) -> None:
    recorded = document_of(f"--recipe {recipe} --queries.domain {domain}")
    usual = document_of(f"--recipe {recipe}")
    assert recorded["queries"] == {
        **usual["queries"],  # type: ignore[dict-item]
        "domain": domain,
        "programs": [*DOMAINS[domain]],
    }
    assert known_domain(recorded) == domain
    assert f"the attacker knew: {domain}" in header(recorded)
    assert known_domain(usual) is None
    assert "attacker" not in header(usual)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = parse_extract("--recipe frugal --queries.domain handwriting".split())
    (tmp_path / "mine.yaml").write_text("recipe: frugal\nqueries: {domain: handwriting}\n")
    assert parse_extract(["--config", str(tmp_path / "mine.yaml")]).queries == job.queries


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--recipe frugal --queries.domain handwriting --queries.programs leaves",
            "--queries.domain unknown",
        ),
        ("--recipe frugal --queries.domain handwritting", "handwriting"),
        ("--recipe paper --queries.domain things", "--queries.procedural or --queries.base"),
    ],
)
def test_a_domain_without_a_say_is_refused(words: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_extract(words.split())


@pytest.mark.parametrize("method", ["procedural", "knockoff"])
def test_the_first_line_names_the_pictures_that_are_asked(method: str) -> None:
    job = parse_extract(f"--recipe frugal --method.name {method} --method.pool letters".split())
    assert "pictures of letters" in " ".join(header(document(job)).split())
    drawn = parse_extract(f"--recipe frugal --method.name {method}".split())
    assert "pictures" not in header(document(drawn))
    assert pictures(document(drawn)) is None
    assert pictures({"method": {"name": method, "pool": "/data/photos"}}) == "photos"
