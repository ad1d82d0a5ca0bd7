"""Pictures as a person looks at them: legends beside the curves, axes that show them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from handmade import make_run
from matplotlib.figure import Figure

from dfme.audits.compare import picture
from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.plan import Cell
from dfme.report import curves
from dfme.report.curves import called, early, top_answers
from dfme.report.page import write_report
from dfme.report.run_files import Beside, Series, read_run


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, in place of their files."""
    figures: list[Figure] = []
    for module in (curves, picture):
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
    curves.draw_samples(read_run(run), tmp_path / "samples.png")
    drawn[0].draw_without_rendering()
    texts = [text.get_text() for text in drawn[0].axes[0].texts if "$" in text.get_text()]
    assert texts
    assert all(text.startswith("$class ") and text.endswith("%") for text in texts)
    write_report(run)
