"""The report of runs written by hand: its facts by arithmetic, its pictures by their pixels and legends."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from handmade import charge, ledger, make_run, page_of, read_page
from matplotlib import image as pictures
from matplotlib.figure import Figure

from dfme.audits.compare import picture
from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.plan import Cell
from dfme.errors import RunError, UserError
from dfme.report import curves
from dfme.report import curves as curves_module
from dfme.report.curves import called, early, top_answers
from dfme.report.page import write_report
from dfme.report.run_files import Beside, Series, read_run
from dfme.statistics import wilson_interval


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; for reading only."""
    run = make_run(tmp_path_factory.mktemp("finished") / "run", channels=3)
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


def test_pictures_are_wide_enough_for_print_and_not_blank(finished: Path) -> None:
    for name in ("curve.png", "losses.png", "samples.png"):
        picture = pictures.imread(finished / name)  # (H, W, RGBA) within 0 and 1
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
    page = page_of(run, evaluation=held, accuracy=None, teacher_accuracy=None)
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
        text = " ".join(page_of(run, lost=256, refused=44, spent=spent).text)
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


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, in place of their files."""
    figures: list[Figure] = []
    for module in (curves, curves_module, picture):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def with_metrics(run: Path, records: list[dict[str, float]]) -> Path:
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_no_legend_lies_on_a_curve(tmp_path: Path, drawn: list[Figure]) -> None:
    """0.6.0 put them into the panels, where a run that fails (curve.png) or ends well (losses.png)
    has its curves."""
    names = (
        "student_loss",
        "replay_loss",
        "generator_loss",
        "generator_grad_norm",
        "student_grad_norm",
    )
    scores = {"agreement": 0.1, "accuracy": 0.1, "upstream_grad_norm": 0.05}
    records = [{"queries": q, **scores, **dict.fromkeys(names, q / 100)} for q in (100, 900)]
    run = read_run(with_metrics(make_run(tmp_path / "run"), records))
    curves.draw_curve(run, tmp_path / "a.png")
    curves.draw_losses(run, tmp_path / "b.png")
    assert len(drawn) == 2
    scales = [axes.get_yscale() for axes in drawn[1].axes]
    assert scales == ["linear", "linear", "log"], "norms of several sizes, and no others"
    for figure in drawn:
        figure.draw_without_rendering()
        legends = [
            *figure.legends,
            *(legend for axes in figure.axes if (legend := axes.get_legend())),
        ]
        assert len(legends) == (1 if figure is drawn[0] else 3)
        for legend in legends:
            box = legend.get_window_extent()
            assert not any(box.overlaps(axes.bbox) for axes in figure.axes)
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, (
                "all of it is on the picture"
            )


def test_every_row_has_a_look_of_its_own_below_the_teachers_name(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    curve = [(100, 0.5), (400, 0.92)]
    figures: Any = SimpleNamespace(curve=curve, teacher_accuracy=0.99, beside=Beside(0.6, 0.1, 400))
    job: Any = None  # a picture asks nothing of it
    cells = [Cell(f"row{n}", "label", 400, 0, job) for n in range(12)]
    outcomes = [Outcome(cell, "finished", figures=figures) for cell in cells]
    picture.draw(
        ComparisonResult("x", {"teacher": "shop.onnx"}, tuple(outcomes)), tmp_path / "x.png"
    )
    (axes,) = drawn[0].axes
    lines = {line.get_label(): line for line in axes.lines}
    assert len({str(lines[f"row{place}"].get_color()) for place in range(10)}) == 10
    looks = {
        (str(item.get_color()), item.get_linestyle(), item.get_marker()) for item in lines.values()
    }
    assert len(looks) == 14
    assert set(lines["a constant answer"].get_ydata()) == {0.6}, "it has over half"
    assert drawn[0].get_suptitle() == "teacher: shop.onnx"
    drawn[0].draw_without_rendering()
    assert not drawn[0].legends[0].get_window_extent().overlaps(axes.bbox), (
        "the legend covers no curve"
    )


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([(50, 0.1), (100, 0.5), (1_000, 0.9)], True),  # half of .9 within a tenth of 1,000
        ([(50, 0.1), (101, 0.5), (1_000, 0.9)], False),
        ([(50, 0.1), (100, 0.4), (1_000, 0.9)], False),
        ([(0, 0.9), (1_000, 0.9)], False),  # no logarithm shows nought
        ([], False),
    ],
)
def test_the_axis_of_queries_is_logarithmic_where_the_start_is_what_matters(
    series: Series, expected: bool, tmp_path: Path, drawn: list[Figure]
) -> None:
    assert early(series) == expected
    if series:
        records = [
            {"queries": at, "agreement": value, "student_loss": value} for at, value in series
        ]
        run = read_run(with_metrics(make_run(tmp_path / "run"), records))
        curves.draw_curve(run, tmp_path / "a.png")
        curves.draw_losses(run, tmp_path / "b.png")
        scales = {axes.get_xscale() for figure in drawn for axes in figure.axes}
        assert scales == {"log" if expected else "linear"}
        low, high = drawn[0].axes[0].get_xlim()
        assert low <= series[0][0] < series[-1][0] <= high


def test_a_class_is_called_by_its_name_shortened_between_words() -> None:
    names = {
        "aquarium_fish": "aquarium fish",
        "German short-haired pointer": "German …",
        "a\nb\x1b": "a b",
    }
    for name, shown in (names | {"pneumonoultramicroscopic": "pneumonoultra…"}).items():
        assert called(1, ["other", name]) == shown
    assert called(2, ["other", "dog"]) == "2"
    assert top_answers(np.array([[0.25, 0.75]]), 1, ["cat", "dog"]) == ["dog\n75%"]
    assert top_answers(np.array([1]), 1, ["cat", "dog"]) == ["dog"]


def test_sheets_name_the_classes_and_take_no_name_for_a_formula(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    run = make_run(tmp_path / "run")
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    classes = int(np.load(next(iter(sorted((run / "samples").iterdir()))))["answers"].shape[-1])
    names = [f"$class {n}$" for n in range(classes)]
    summary["teacher"] = {"kind": "torch", "num_classes": classes, "class_names": names}
    (run / "summary.json").write_text(json.dumps(summary))
    curves_module.draw_samples(read_run(run), tmp_path / "samples.png")
    drawn[0].draw_without_rendering()
    texts = [text.get_text() for text in drawn[0].axes[0].texts if "$" in text.get_text()]
    assert texts
    assert all(text.startswith("$class ") and text.endswith("%") for text in texts)
    write_report(run)
