"""What a comparison makes of its runs' numbers, against numbers worked out by hand. No torch, no
process.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import FIGURES, cell_of, table_rows

from dfme.audits.compare.figures import (
    ComparisonResult,
    Outcome,
    has_collapsed,
    reached,
    read_figures,
)
from dfme.audits.compare.picture import draw, mean_and_band
from dfme.audits.compare.table import HEADS, as_json, markdown, overview
from dfme.errors import RunError
from dfme.statistics import Spread, spread

# Arithmetic over seeds


def test_a_mean_and_its_deviation() -> None:
    assert spread([2.0, 4.0, 9.0]) == Spread(5.0, math.sqrt((9 + 1 + 16) / 2), 3)
    assert spread([None, 3.0]) == Spread(3.0, None, 1)
    assert spread([None, None]) is spread([]) is None
    assert Spread(5.0, 3.605, 3).text("{:.1f}") == "5.0 +- 3.6"


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ([1000, 2000, 3000], "2,000 +- 1,000"),
        ([1500], "1,500"),
        ([9000, None, 1000], "2 of 3: 9,000"),  # one never: the middle of 1000, 9000, infinity
        ([None, 1000, None], "1 of 3"),
        ([1000, None], "1 of 2"),  # half way to infinity
        ([None, None], "not reached"),
    ],
)
def test_queries_that_not_every_seed_reached(queries: list[int | None], words: str) -> None:
    assert str(reached(queries)) == words


@pytest.mark.parametrize(
    ("agreements", "classes", "collapsed"),
    [
        ([0.5, 0.9, 0.73], 10, False),
        ([0.5, 0.9, 0.71], 10, True),  # below .72, 80 % of the best
        ([0.1, 0.20], 10, True),  # twice chance
        ([0.1, 0.21], 10, False),
        ([0.55, 0.65], 2, False),  # of two classes ten points above chance are asked for
        ([0.55, 0.6], 2, True),
        ([0.01, 0.021], 100, False),
        ([], 10, None),
    ],
)
def test_collapse(agreements: list[float], classes: int, collapsed: bool | None) -> None:
    assert has_collapsed(agreements, classes) is collapsed


def test_the_mean_curve_interpolates_where_all_curves_are() -> None:
    at, mean, low, high = mean_and_band([[(10, 0.2), (30, 0.6), (30, 0.7)], [(20, 0.4), (40, 0.8)]])
    np.testing.assert_array_equal(at, [20, 30])
    # the last of two at the same queries
    np.testing.assert_allclose(mean, [(0.45 + 0.4) / 2, (0.7 + 0.6) / 2])
    np.testing.assert_allclose((low, high), ([0.4, 0.6], [0.45, 0.7]))


# One run


def write_run(folder: Path, *agreements: float, accuracy: float = 0.9, **more: Any) -> Path:
    """A finished run of 400 queries with an evaluation every 100."""
    records = [
        {"queries": 100 * (n + 1), "agreement": a, "accuracy": a} for n, a in enumerate(agreements)
    ]
    records.insert(1, {"queries": 150, "student_loss": 1.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = {
        "budget": 400, "spent": 400, "accuracy": accuracy, "agreement": agreements[-1], "kl": 0.5,
        "teacher_accuracy": 1.0, "wall_seconds": 2.0, "student_steps": 30, "device": "cpu", "version": "1",
        "torch": "2", "teacher": {"num_classes": 10},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary | more))
    return folder


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    figures = read_figures(
        write_run(tmp_path, 0.3, 0.81, 0.79, 0.93, vote_agreement=0.95, students=2)
    )
    assert figures.queries_to == {0.5: 200, 0.8: 200, 0.9: 400, 0.95: None}
    assert figures.queries_to_teacher == 400  # .9 of a teacher that is always right
    assert figures.curve == [(100, 0.3), (200, 0.81), (300, 0.79), (400, 0.93)]
    assert (figures.vote_agreement, figures.students, figures.collapsed) == (0.95, 2, False)


def test_a_student_that_is_scored_again_at_the_end_ends_the_curve(tmp_path: Path) -> None:
    figures = read_figures(write_run(tmp_path, 0.3, 0.5, 0.6, 0.7, agreement=0.96))
    assert figures.curve[-2:] == [(400, 0.7), (400, 0.96)]
    assert figures.queries_to[0.95] == 400


def test_a_run_without_a_whole_summary_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, 0.3, 0.5)
    (run / "summary.json").write_text("{}")
    with pytest.raises(RunError, match=r"summary\.json"):
        read_figures(run)
    (run / "summary.json").unlink()
    with pytest.raises(RunError, match="expected a finished run"):
        read_figures(run)


# All of them together


def outcome(
    row: str, seed: int, state: str = "finished", mode: str = "label", **changes: Any
) -> Outcome:
    figures = replace(FIGURES, **changes) if state == "finished" else None
    reason = (
        "no such file" if state == "failed" else "needs scores" if state == "not applicable" else ""
    )
    return Outcome(cell_of(row, mode, 30_000, seed), state, reason, figures)


def findings(*outcomes: Outcome) -> ComparisonResult:
    return ComparisonResult("Comparison x", {"teacher": "shop.onnx"}, outcomes)


def cells(text: str, row: str) -> dict[str, str]:
    """The first line of a row in a table, by head; "-" in the columns that are left out."""
    line = next(line for line in table_rows(text) if line["row"] == row)
    assert set(line) <= set(HEADS)
    return dict.fromkeys(HEADS, "-") | line


def test_a_row_is_the_mean_over_its_seeds() -> None:
    two = {
        "accuracy": 0.94,
        "queries_to": FIGURES.queries_to | {0.9: 500, 0.95: 900},
        "collapsed": True,
    }
    seeds = outcome("static", 0), outcome("static", 1, **two), outcome("static", 2, "waiting")
    text = overview(findings(*seeds))
    row = cells(text, "static")
    assert "### label, 30k queries" in text
    assert row["seeds"] == "2 of 3"
    assert row["accuracy %"] == "92.00 +- 2.83"
    assert row["to 90%"] == "400 +- 141"
    assert row["to 95%"] == "1 of 2"
    assert row["collapsed"] == "1 of 2"
    assert (row["vote accuracy %"], row["steps"], row["KL"]) == ("-", "3,000", "0.2500 +- 0.0000")
    row = cells(overview(findings(outcome("duo", 0, vote_accuracy=0.95, students=2))), "duo")
    assert (row["accuracy %"], row["vote accuracy %"], row["steps"]) == (
        "90.00",
        "95.00",
        "2 x 3,000",
    )


def test_cells_without_figures_are_listed_with_their_reason() -> None:
    never = [outcome("dfme", seed, "not applicable") for seed in (0, 1)]
    text = overview(findings(outcome("static", 0, "failed"), outcome("static", 1), *never))
    assert cells(text, "static")["seeds"] == "1 of 2"
    assert cells(text, "dfme")["seeds"] == "not applicable"
    assert "- failed: `static-label-30k-seed0`: no such file" in text
    assert text.count("- not applicable: `dfme` with label: needs scores") == 1


def test_without_an_evaluation_set_no_level_is_called_missed() -> None:
    row = cells(overview(findings(outcome("a", 0, teacher_accuracy=None, accuracy=None))), "a")
    assert (row["accuracy %"], row["to teacher"], row["to 50%"]) == ("-", "-", "100")
    assert cells(overview(findings(outcome("a", 0, curve=[]))), "a")["to 50%"] == "-"


def test_a_column_that_no_row_has_a_figure_in_is_left_out() -> None:
    label = [outcome("a", 0, kl=None), outcome("duo", 0, kl=None, vote_agreement=0.93)]
    comparison = findings(*label, outcome("a", 0, mode="logits"))
    heads = [
        line.split("|") for line in markdown(comparison).splitlines() if line.startswith("| row ")
    ]
    shown = [[name.strip() for name in line if "KL" in name or "vote" in name] for line in heads]
    assert shown == [["vote agreement %"], ["KL"]] * 2  # over all seeds, then each seed
    hard, soft = (table["rows"] for table in json.loads(as_json(comparison))["tables"])
    assert all(
        row.keys() & {"kl", "vote_accuracy", "vote_agreement"} == {"vote_agreement"} for row in hard
    )
    assert soft[0]["kl"]["mean"] == 0.25


def test_the_report_has_a_table_per_mode_and_every_seed() -> None:
    text = markdown(
        findings(outcome("a", 0), outcome("a", 1, collapsed=True), outcome("a", 0, mode="top_k:3"))
    )
    heads = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert heads == ["label, 30k queries", "top_k:3, 30k queries"] * 2
    each = text.partition("## Each seed")[2]
    lines = [line for line in each.splitlines() if line.startswith("| a")]
    assert [line.split("|")[2].strip() for line in lines] == ["0", "1", "0"]
    assert " yes " in lines[1]


def test_the_data_have_every_figure() -> None:
    comparison = findings(outcome("a", 0), outcome("a", 7, accuracy=0.8), outcome("b", 0, "failed"))
    content = json.loads(as_json(comparison))
    (table,) = content["tables"]
    known = {"mean": 0.85, "sd": pytest.approx(0.0707, abs=1e-4), "count": 2}
    assert table["rows"][0]["accuracy"] == pytest.approx(known)
    missed = {"reached": 0, "seeds": 2, "spread": None, "median": None}
    assert table["rows"][0]["queries_to"]["0.95"] == missed
    assert table["rows"][1]["missing"] == {"0": "no such file"}
    assert [cell["run"] for cell in content["cells"]] == [f"cells/{name}" for name in (
        "a-label-30k-seed0", "a-label-30k-seed7", "b-label-30k-seed0")]  # fmt: skip
    assert content["cells"][1]["figures"]["accuracy"] == 0.8


@pytest.mark.parametrize("across", [60, 80, 100, 200])
def test_on_a_terminal_a_table_has_the_columns_that_fit_and_the_others_are_named(
    across: int,
) -> None:
    comparison = findings(
        outcome("a", 0), outcome("dual_students", 1), outcome("dual_students", 2, collapsed=True)
    )
    whole, text = overview(comparison), overview(comparison, across)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert max(map(len, whole.splitlines())) > 120
    assert {len(line) for line in table} == {len(table[0])}
    assert len(table[0]) < across
    heads = [head.strip() for head in table[0].strip("|").split("|")]
    assert heads[:4] == ["row", "seeds", "accuracy %", "agreement %"][: len(heads)]
    named = text.partition("More in the report: ")[2].split(".")[0].split(", ")
    every = [head.strip() for head in whole.splitlines()[2].strip("|").split("|")]
    assert sorted([*heads, *filter(None, named)]) == sorted(every)
    for row in ("a", "dual_students"):
        assert all(cells(text, row)[head] == cells(whole, row)[head] for head in heads)
    assert "Rows differ" not in text
    assert "\n\nRows differ in lr 1 (b: 8)." in overview(
        replace(comparison, unequal="lr 1 (b: 8)"), across
    )


def test_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "comparison.png"
    assert not draw(findings(outcome("a", 0, "failed")), path)
    assert draw(findings(outcome("a", 0), outcome("a", 1), outcome("b", 0, mode="logits")), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not draw(findings(outcome("a", 0, "waiting")), path)
    assert not path.exists(), "no stale picture stands"


# Beside a constant answer

LARGE: dict[str, Any] = {
    "agreement": 0.65,
    "agreement_balanced": 0.331,
    "constant_agreement": 0.66,
    "constant_balanced": 0.1,
    "images": 2_000,
}


def test_a_table_has_a_constant_answer_and_balanced_figures_where_it_is_large() -> None:
    seeds = outcome("a", 0, **LARGE), outcome("a", 1, **LARGE | {"agreement_balanced": 0.4})
    text = overview(findings(*seeds))
    row, constant = cells(text, "a"), cells(text, "(constant answer)")
    assert (row["agreement %"], row["balanced agreement %"]) == ("65.00 +- 0.00", "36.55 +- 4.88")
    assert (constant["agreement %"], constant["balanced agreement %"]) == ("66.00", "10.00")
    assert (
        "A constant answer agrees on 66.0%, more than half of the images, without a query" in text
    )
    assert "A constant answer has 10.0% of that." in text
    (table,) = json.loads(as_json(findings(outcome("a", 0, **LARGE))))["tables"]
    means = {name: table["rows"][0][name]["mean"] for name in LARGE if name != "images"}
    assert means == {name: value for name, value in LARGE.items() if name != "images"}
    each = markdown(findings(outcome("a", 0, **LARGE))).partition("## Each seed")[2]
    assert "| 33.10 |" in " ".join(each.split())
    small = overview(findings(outcome("a", 0, **LARGE | {"constant_agreement": 0.5})))
    assert "balanced" not in small
    assert cells(small, "(constant answer)")["agreement %"] == "50.00"
    old = overview(findings(outcome("a", 0)))
    assert "constant" not in old, "runs of earlier releases say nothing of it"


def test_a_run_reaches_a_level_above_a_constant_answer_alone(tmp_path: Path) -> None:
    baselines = {"constant_agreement": 0.92, "constant_balanced": 0.5, "constant_accuracy": 0.92}
    more = {
        "baselines": baselines,
        "evaluation": {"images": 1_000},
        "agreement_balanced": 0.55,
        "teacher": {"num_classes": 2},
    }
    low = read_figures(write_run(tmp_path, 0.92, 0.92, 0.93, 0.92, accuracy=0.9, **more))
    assert set(low.queries_to.values()) == {None}, "no level, not even one half"
    assert low.queries_to_teacher is None
    assert low.collapsed, (
        "55 % of two classes that count alike is within ten points of a constant answer"
    )
    high = read_figures(
        write_run(tmp_path, 0.92, 0.92, 0.96, 0.97, **more | {"agreement_balanced": 0.9})
    )
    assert high.queries_to == {0.5: 300, 0.8: 300, 0.9: 300, 0.95: 300}
    assert high.queries_to_teacher == 300
    assert high.collapsed is False
