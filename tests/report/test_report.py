"""The report, against runs written by hand: its facts by arithmetic, its pictures by their
pixels.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import SUMMARY, charge, ledger, make_run, page_of, read_page
from matplotlib import image as pictures

from dfme.errors import RunError, UserError
from dfme.report.curves import top_answers
from dfme.report.page import write_report
from dfme.statistics import wilson_interval


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; for reading only."""
    run = make_run(tmp_path_factory.mktemp("finished") / "run")
    assert write_report(run) == run / "report.html"
    return run


def test_a_finished_run_gets_its_answer_facts_and_prices(finished: Path) -> None:
    page = read_page(finished / "report.html")
    answer = (
        "1,000 queries gave a copy that agrees with the teacher on 97.5% of the 360 "
        "evaluation images."
    )
    assert answer in page.text
    assert page.after("Spent") == "1,000 queries in 4 requests"
    assert page.after("Agreement") == "97.50% (95% interval 95.3% to 98.7%)"
    assert [page.after(level) for level in ("50%", "80%", "90%", "95%")] == [
        "200",
        "600",
        "1,000",
        "1,000",
    ]
    assert page.after("generator") == "300"
    chosen = "finite_difference, central, 2 x dct, step 4 in space lattice, objective kl"
    assert page.after("Estimator") == chosen
    assert not any("not finished" in text or "contradict" in text for text in page.text)


def test_the_page_carries_its_pictures_and_refers_to_nothing_else(finished: Path) -> None:
    page = read_page(finished / "report.html")
    assert len(page.addresses) == 3
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "@import" not in (finished / "report.html").read_text()


def test_pictures_are_wide_enough_for_print_and_not_blank(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", channels=3)
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


def test_unfinished_runs_are_reported_and_held_back_queries_named_as_such(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    page = page_of(run)
    assert any("not finished" in text for text in page.text)
    assert any(text.startswith("So far, 1,000 queries gave a copy") for text in page.text)
    assert page.after("Spent") == "1,000 queries in 4 requests"
    held = {"name": "held-back queries", "images": 2_000, "held_back": True}
    summary = SUMMARY | {"evaluation": held, "accuracy": None, "teacher_accuracy": None}
    (run / "summary.json").write_text(json.dumps(summary))
    page = page_of(run)
    assert any("97.5% of 2,000 held-back generated queries" in text for text in page.text)
    assert any("no evaluation set" in text for text in page.text)
    assert "Teacher's accuracy" not in page.text


def test_a_run_that_has_only_begun_has_no_pictures_and_loses_stale_ones(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("method:\n  name: dfme\n")
    for name in ("curve.png", "losses.png", "samples.png"):
        (tmp_path / name).write_bytes(b"stale")
    page = read_page(write_report(tmp_path))
    assert "After 0 queries nothing has been evaluated yet." in page.text
    assert page.addresses == []
    assert page.after("95%") == "not reached"
    assert not (tmp_path / "curve.png").exists()
    (tmp_path / "losses.png").mkdir()
    with pytest.raises(RunError, match=r"cannot remove .*losses\.png"):
        write_report(tmp_path)


def test_lost_and_refused_queries_and_contradictions_are_told_and_markup_stays_text(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run")
    evil = "<script>alert(1)</script>"
    (run / "config.yaml").write_text(f'method:\n  name: "{evil}"\nevaluation:\n  dataset: digits\n')
    ledger(
        run,
        charge(1, "evaluation", 360, 0),
        charge(2, "generator", 300, 300),
        charge(3, "student", 256, 556),
        {"seq": 3, "event": "lost", "images": 256, "reason": "killed"},
        charge(4, "student", 44, 344),
        {"seq": 4, "event": "refused", "images": 44, "reason": "429"},
        charge(5, "student", 700, 1_000),
    )
    for spent in (1_000, 900):
        (run / "summary.json").write_text(
            json.dumps(SUMMARY | {"lost": 256, "refused": 44, "spent": spent})
        )
        text = " ".join(page_of(run).text)
        assert "256 more images were sent whose answers an interruption lost" in text
        assert "44 images were refused" in text
        assert (f"says {spent}, the lines of ledger.jsonl add up to 1,000" in text) == (
            spent == 900
        )
    source = (run / "report.html").read_text()
    assert evil not in source
    assert html.escape(evil) in source


def test_wilson_intervals_agree_with_published_values() -> None:
    published = {
        (0.5, 100): (0.40383, 0.59617),
        (0.9, 50): (0.7864, 0.95652),
        (1.0, 10): (0.72247, 1),
    }
    for (share, images), ends in published.items():
        assert wilson_interval(share, images) == pytest.approx(ends, abs=2e-5)
    for images in range(1, 2_001):
        assert wilson_interval(1.0, images)[1] == 1.0
        assert wilson_interval(0.0, images)[0] == 0.0


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


def test_no_run_and_damaged_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.yaml"):
        write_report(tmp_path)
    run = make_run(tmp_path / "run")
    broken = run / "samples" / "queries-000000200.npz"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(RunError, match=re.escape(broken.name)):
        write_report(run)
