"""The report, against runs written by hand: its facts by arithmetic, its pictures by their pixels."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image as pictures
from report_runs import SUMMARY, charge, lines, make_run, page_of, read_page
from tiers import exhaustive

from dfme.errors import RunError, UserError
from dfme.report import write_report
from dfme.report.curves import short_count
from dfme.report.facts import queries_to_reach, wilson_interval
from dfme.report.run_files import Samples
from dfme.report.sheets import choose, to_picture, top_answers


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; for reading only."""
    run = make_run(tmp_path_factory.mktemp("finished") / "run")
    assert write_report(run) == run / "report.html"
    return run


def test_a_finished_run_gets_its_answer_facts_and_prices(finished: Path) -> None:
    page = read_page(finished / "report.html")
    answer = "1,000 queries gave a copy that agrees with the teacher on 97.5% of the 360 evaluation images."
    assert answer in page.text
    assert page.after("Spent") == "1,000 queries in 4 requests"
    assert page.after("Agreement") == "97.50% (95% interval 95.3% to 98.7%)"
    assert [page.after(level) for level in ("50%", "80%", "90%", "95%")] == ["200", "600", "1,000", "1,000"]
    assert page.after("generator") == "300"
    chosen = "finite_difference, central, 2 x dct, step 4 in space lattice, objective kl"
    assert page.after("Estimator") == chosen
    assert not any("not finished" in text or "contradict" in text for text in page.text)


def test_the_page_carries_its_pictures_and_refers_to_nothing_else(finished: Path) -> None:
    page = read_page(finished / "report.html")
    assert len(page.addresses) == 3
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "@import" not in (finished / "report.html").read_text()


@pytest.mark.parametrize("channels", [3, *exhaustive(1)])
def test_pictures_are_wide_enough_for_print_and_not_blank(tmp_path: Path, channels: int) -> None:
    run = make_run(tmp_path / "run", channels=channels)
    write_report(run)
    for name in ("curve.png", "losses.png", "samples.png"):
        picture = pictures.imread(run / name)  # (H, W, RGBA) within 0 and 1
        assert picture.shape[1] >= 1_200
        assert picture[..., :3].std() > 0.05


def test_the_sheet_shows_the_very_pixels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    image = np.array([[[10, 250], [90, 170]]], dtype=np.uint8)  # (1, 2, 2)
    for path in (run / "samples").iterdir():
        path.unlink()
    np.savez(run / "samples" / "queries-000000100.npz", images=image[None])
    write_report(run)
    sheet = np.rint(pictures.imread(run / "samples.png")[..., 0] * 255).astype(int)
    side = round((7.0 - 0.12 + 0.08) / 10 * 200 - 0.08 * 200)  # pixels of an image's edge
    for value in image.reshape(-1):
        assert (sheet == value).sum() == pytest.approx((side / 2) ** 2, rel=0.05)


def test_an_unfinished_run_is_reported_as_it_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    page = page_of(run)
    assert any("not finished" in text for text in page.text)
    assert any(text.startswith("So far, 1,000 queries gave a copy") for text in page.text)
    assert page.after("Spent") == "1,000 queries in 4 requests"
    assert "unknown" not in " ".join(page.text)


def test_a_run_that_has_only_begun_has_no_pictures_and_loses_stale_ones(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("method:\n  name: dfme\n")
    for name in ("curve.png", "losses.png", "samples.png"):
        (tmp_path / name).write_bytes(b"stale")
    page = read_page(write_report(tmp_path))
    assert "After 0 queries nothing has been evaluated yet." in page.text
    assert page.addresses == []
    assert page.after("95%") == "not reached"
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("name", ["curve.png", "losses.png", "samples.png"])
def test_a_picture_that_cannot_be_removed_is_named(tmp_path: Path, name: str) -> None:
    """0.5.0 ended in a traceback, as it did in a directory that is read-only."""
    (tmp_path / "config.yaml").write_text("method:\n  name: dfme\n")
    (tmp_path / name).mkdir()
    with pytest.raises(RunError, match=f"cannot remove .*{re.escape(name)}"):
        write_report(tmp_path)


def test_held_back_queries_are_named_as_such(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", dataset="none")
    held = {"name": "held-back queries", "images": 2_000, "held_back": True}
    told = SUMMARY | {"evaluation": held, "accuracy": None, "teacher_accuracy": None}
    (run / "summary.json").write_text(json.dumps(told))
    page = page_of(run)
    assert any("97.5% of 2,000 held-back generated queries" in text for text in page.text)
    assert any("no evaluation set" in text for text in page.text)
    assert "Teacher's accuracy" not in page.text


def test_lost_and_refused_queries_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").write_text(
        lines(
            charge(1, "evaluation", 360, 0),
            charge(2, "generator", 300, 300),
            charge(3, "student", 256, 556),
            {"seq": 3, "event": "lost", "images": 256, "reason": "killed"},
            charge(4, "student", 44, 344),
            {"seq": 4, "event": "refused", "images": 44, "reason": "429"},
            charge(5, "student", 700, 1_000),
        )
    )
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"lost": 256, "refused": 44}))
    text = " ".join(page_of(run).text)
    assert "256 more images were sent whose answers an interruption lost" in text
    assert "44 images were refused" in text
    assert "contradict" not in text


def test_a_summary_that_the_ledger_contradicts_is_shown_up(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"spent": 900}))
    assert "spent: summary.json says 900, the lines of ledger.jsonl add up to 1,000" in " ".join(page_of(run).text)


def test_markup_in_a_configuration_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    evil = "<script>alert(1)</script>"
    (run / "config.yaml").write_text(f'method:\n  name: "{evil}"\nevaluation:\n  dataset: digits\n')
    page_of(run)
    source = (run / "report.html").read_text()
    assert evil not in source
    assert html.escape(evil) in source


@pytest.mark.parametrize(
    ("share", "images", "low", "high"),
    [(0.5, 100, 0.40383, 0.59617), (0.9, 50, 0.78640, 0.95652), (1.0, 10, 0.72247, 1.0), (0.0, 10, 0.0, 0.27753)],
)
def test_wilson_intervals_agree_with_published_values(share: float, images: int, low: float, high: float) -> None:
    assert wilson_interval(share, images) == pytest.approx((low, high), abs=2e-5)


def test_a_level_is_reached_at_the_first_evaluation_that_has_it() -> None:
    series = [(100, 0.4), (200, 0.9), (300, 0.85), (400, 0.95)]
    assert [queries_to_reach(series, level) for level in (0.5, 0.9, 0.95, 0.96)] == [200, 200, 400, None]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([[0.1, 0.7, 0.2]], "1 · 70%"),
        ([[np.log(1.0), np.log(3.0)]], "1 · 75%"),  # logits: the softmax of log odds
        ([[np.nan, np.nan, 0.6, 0.3]], "2 · 60%"),  # top-2: the rest is not revealed
        ([[np.nan, np.nan]], "?"),
        ([7], "7"),
    ],
)
def test_the_top_answer_is_read_in_every_label_mode(answers: list[Any], expected: str) -> None:
    assert top_answers(np.array(answers), 1) == [expected]


def test_first_middle_and_last_sheets_are_shown_once_each() -> None:
    empty = np.zeros((1, 1, 1, 1), dtype=np.uint8)
    moments = [Samples(queries, empty, None) for queries in range(5)]
    for count, expected in ((1, [0]), (2, [0, 1]), (5, [0, 2, 4])):
        assert [moment.queries for moment in choose(moments[:count])] == expected


def test_colours_and_axes_survive_the_way_to_the_picture() -> None:
    image_chw = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    assert to_picture(image_chw).shape == (2, 4, 3)
    assert to_picture(image_chw)[1, 2].tolist() == image_chw[:, 1, 2].tolist()
    assert (to_picture(image_chw[:1]) == image_chw[0][..., None]).all()


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (500, "500"), (20_000, "20k"), (1_500_000, "1.5M")])
def test_counts_on_the_axis(count: float, text: str) -> None:
    assert short_count(count) == text


def test_no_run_and_damaged_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.yaml"):
        write_report(tmp_path)
    run = make_run(tmp_path / "run")
    broken = run / "samples" / "queries-000000200.npz"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(RunError, match=re.escape(broken.name)):
        write_report(run)


@pytest.mark.integration
def test_the_report_needs_no_torch(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    code = (
        "import sys, pathlib; from dfme.report import write_report; early = 'matplotlib' in sys.modules;"
        f"write_report(pathlib.Path({str(run)!r})); print('torch' in sys.modules, early)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
