"""Defences and attackers as axes of a comparison: what runs, what is shared."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from handmade import FIGURES, defended, table_rows

from dfme.answers.maps import map_of
from dfme.audits.compare.figures import ComparisonResult, cut_off
from dfme.audits.compare.plan import ComparisonPlan, attempt, parse_attacker
from dfme.audits.compare.rehearsal import not_applicable
from dfme.audits.compare.session import Session
from dfme.audits.compare.table import as_json, markdown, overview
from dfme.cli.compare import plan_of
from dfme.config.defences import DEFENCES
from dfme.config.sections import AnswersConfig
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.report.terminal import StatusLine

pytestmark = pytest.mark.usefixtures("here")

SHARED: dict[str, Any] = {
    "methods": ["procedural"],
    "seeds": [3],
    "budgets": ["2k"],
    "student_steps": 40,
    "teacher": {"checkpoint": "teachers/checkpoints/digits.safetensors"},
    "evaluation": {"dataset": "digits", "points": 4},
}


def plan(defences: str = "none", answers: str = "auto", **changes: Any) -> ComparisonPlan:
    Path("c.yaml").write_text(dump_yaml(SHARED | changes))
    return plan_of(
        ["--config", "c.yaml", "--out", "out", "--defences", defences, "--answers", answers]
    )


# What runs


def test_each_defence_and_attacker_is_a_cell_with_its_options() -> None:
    comparison = plan("none,reverse_sigmoid:beta=0.7", "scores,table,net+repeat=3+label")
    assert len(comparison.cells) == 6
    by_name = {cell.name: cell.job for cell in comparison.cells}
    job = by_name["procedural-probabilities-reverse_sigmoid_beta=0.7-table-2k-seed3"]
    stack = ("reverse_sigmoid:beta=0.7:gamma=0.2",)
    assert job.teacher.defences == stack
    assert job.config.answers == AnswersConfig(learn="kl", recover="table", knows=stack)
    assert by_name["procedural-probabilities-scores-2k-seed3"].teacher.defences == ()
    assert by_name["procedural-probabilities-scores-2k-seed3"].config.answers == AnswersConfig(
        learn="scores"
    )


def test_both_axes_are_in_its_file_and_a_file_without_them_is_a_plain_one() -> None:
    comparison = plan("none,lattice:n=10", "scores,label")
    assert comparison.options["defences"] + comparison.options["answers"] == [
        "none",
        "lattice:n=10",
        "scores",
        "label",
    ]
    old = {
        key: value
        for key, value in comparison.options.items()
        if key not in ("defences", "answers")
    }
    for options, cells in ((comparison.options, comparison.cells), (old, plan().cells)):
        Path("out").mkdir(exist_ok=True)
        Path("out/comparison.yaml").write_text(sealed(dump_yaml(options)))
        assert plan_of(["--resume", "--out", "out"]).cells == cells


@pytest.mark.parametrize(
    ("defence", "answers", "mode", "runs"),
    [
        ("modelguard_w", "label", "probabilities", "none"),  # keeps the top class
        ("modelguard_w+lattice:n=10", "label", "probabilities", "none"),
        ("modelguard_s", "label", "probabilities", "none"),  # with state, too
        ("modelguard_w", "auto", "label", "none"),
        ("modelguard_w", "kl", "probabilities", "modelguard_w"),
        ("modelguard_w", "label+table", "probabilities", "modelguard_w"),
        ("modelguard_w", "label", "probabilities:2", "modelguard_w"),  # rounding makes ties
        ("reverse_sigmoid", "label", "probabilities", "reverse_sigmoid"),  # only for p_top >= 1/2
        ("mad:vertices=extreme", "label", "probabilities", "mad:vertices=extreme"),
        ("lattice+grad2", "label", "probabilities", "lattice+grad2"),  # all of a stack must
        ("noise:keep_top=true", "label", "probabilities", "noise:keep_top=true"),  # random
        ("quota:images=500", "kl", "probabilities", "none"),
        ("pow", "kl", "probabilities", "none"),
        ("lattice + quota:images=500", "kl", "probabilities", "lattice"),
    ],
)
def test_the_run_that_tells_what_becomes_of_a_cell(
    defence: str, answers: str, mode: str, runs: str
) -> None:
    found = attempt(defence, answers, mode)
    assert (found.runs, found.reason) == (runs, "")
    assert found.limit == (500 if "quota" in defence else None)


@pytest.mark.parametrize(
    ("defence", "answers", "mode", "reason"),
    [
        ("none", "table", "probabilities", "there is nothing to undo"),
        ("quota", "net", "probabilities", "there is nothing to undo"),
        ("misinform+lattice", "net", "probabilities", "what misinform answers cannot"),
        ("lattice", "kl+repeat=4", "probabilities", "an image gets the same answer again"),
        ("lattice", "kl", "label", "answers are labels"),
    ],
)
def test_what_cannot_be_is_said_and_does_not_run(
    defence: str, answers: str, mode: str, reason: str
) -> None:
    comparison = plan(f"{defence}", f"auto,{answers}", label_modes=[mode])
    (row,) = not_applicable(comparison.runs).values()
    assert row.startswith(reason)


def test_labels_and_what_changes_no_answer_are_run_once() -> None:
    comparison = plan("none,modelguard_w,grad2,pow,quota:images=500", "scores,label")
    assert [cell.name.removeprefix("procedural-").removesuffix("-2k-seed3") for cell in comparison.runs] == [
        "probabilities-scores", "probabilities-label", "probabilities-modelguard_w-scores",
        "probabilities-grad2-scores", "probabilities-grad2-label",
    ]  # fmt: skip
    assert len(comparison.cells) == 10


def test_every_defence_can_be_asked_for() -> None:
    for name in DEFENCES:
        assert not attempt(name, "scores", "probabilities").reason
        undone = attempt(name, "table", "probabilities").reason
        assert bool(undone) == (map_of(DEFENCES[name](), torch.Generator()) is None), name
    assert parse_attacker("table+repeat=4") == {"recover": "table", "repeat": "4", "learn": "kl"}


# The table, by hand

BILL = {
    "accuracy_drop": 0.012,
    "top1_changed": 0.5,
    "l1_mean": 1.0,
    "l1_p95": 1.25,
    "confidence_auroc": 0.5,
}


def result() -> ComparisonResult:
    """Undefended .94, .90 and label .74; W's scores far below its label."""
    of = {
        ("none", "scores"): (0.93, 0.95), ("none", "label"): (0.73, 0.75), ("none", "table"): (0, 0),
        ("modelguard_w", "scores"): (0.1, 0.12), ("modelguard_w", "label"): (0.73, 0.75),
        ("modelguard_w", "table"): (0.74, 0.76),
    }  # fmt: skip
    outcomes = [
        defended(*key, seed, value)
        for key, values in of.items()
        for seed, value in enumerate(values)
    ]
    shared = [
        replace(each, shared="none") if each.cell.label.endswith("_w, label") else each
        for each in outcomes
    ]
    bills = {"modelguard_w": {"held_out": BILL, "corrupted": BILL | {"l1_mean": 0.75}}}
    return ComparisonResult("Comparison x", {"teacher": "digits"}, tuple(shared), "", bills)


def line(text: str, defence: str) -> dict[str, str]:
    return next(row for row in table_rows(text) if row["defence"] == defence)


def test_a_line_has_every_attacker_the_best_the_way_to_labels_and_the_bill() -> None:
    row = line(overview(result()), "modelguard_w")
    assert row["scores"] == "11.0 +- 1.4"
    assert row["label"] == "74.0 +- 1.4 (shared)"
    assert row["table"] == "**75.0 +- 1.4 (within the spread)**"
    assert row["best attacker"] == "**table 75.0 +- 1.4**"
    assert row["to label-only"] == "95%"  # (94 - 75) / (94 - 74)
    assert (row["lost"], row["changed"]) == ("1.2% / 1.2%", "50.0% / 50.0%")
    assert (row["L1"], row["L1 95%"], row["AUROC"]) == (
        "1.000 / 0.750",
        "1.25 / 1.25",
        "0.500 / 0.500",
    )
    free = line(overview(result()), "none")
    assert (free["best attacker"], free["to label-only"]) == ("**scores 94.0 +- 1.4**", "0%")
    assert (free["table"], free["L1"]) == ("n/a", "-")
    assert "`frugal, none, table` with probabilities: there is nothing to undo" in overview(
        result()
    )


def test_the_best_renaming_counts_where_it_gains_more_than_the_spread() -> None:
    of = [
        ("kl", (0.01, 0.9), (0.03, 0.9)),
        ("label", (0.5, 0.5), (0.5, 0.6)),
        ("scores", *[(0.5, 0.54)] * 2),
    ]
    runs = [
        defended("misinform", answers, seed, plain, agreement_relabelled=renamed)
        for answers, *pairs in of
        for seed, (plain, renamed) in enumerate(pairs)
    ]
    row = line(overview(ComparisonResult("x", {}, tuple(runs))), "misinform")
    assert row["kl"] == "**2.0 +- 1.4, relabelled 90.0 +- 0.0**"
    # within the spread, and what halves may differ by
    assert row["label"] == row["scores"] == "50.0 +- 0.0"
    assert row["best attacker"] == "**kl 90.0 +- 0.0**"
    assert row.get("to label-only", "-") == "-"  # nothing undefended was run


def test_a_recovery_that_gains_nothing_is_called_so_and_missing_seeds_are_counted() -> None:
    pairs = [("kl", 0, 0.8), ("table", 0, 0.7), ("kl", 1, 0.8)]
    done = [defended("lattice", *pair) for pair in pairs]
    waiting = replace(defended("lattice", "table", 1, 0.7), state="waiting", figures=None)
    row = line(overview(ComparisonResult("x", {}, (*done, waiting))), "lattice")
    assert (row["kl"], row["table"]) == ("**80.0 +- 0.0**", "70.0 (gains nothing, 1 of 2)")


def test_the_report_and_the_data_say_the_same_for_people_and_machines() -> None:
    text = markdown(result())
    assert "A defence's score is its best attacker that was run" in text
    assert "frugal, modelguard_w, table" in text.partition("## Each seed")[2]
    content = json.loads(as_json(result()))
    free, guarded = content["tables"][0]["defences"]
    assert (free["best"], free["to_label_only"], guarded["best"]) == ("scores", 0, "table")
    assert guarded["to_label_only"] == pytest.approx(0.95)
    assert guarded["bill"]["corrupted"]["l1_mean"] == 0.75
    assert guarded["attackers"][2]["agreement"]["mean"] == pytest.approx(0.75)
    assert content["cells"][-1]["run"] == "cells/frugal-probabilities-modelguard_w-table-3k-seed1"
    assert (content["cells"][-1]["defence"], content["cells"][-1]["answers"]) == (
        "modelguard_w",
        "table",
    )


def test_a_quota_is_read_off_the_curve() -> None:
    figures = replace(FIGURES, curve=[(100, 0.5), (200, 0.7), (400, 0.9)])
    at = cut_off(figures, 250)
    assert (at.agreement, at.curve, at.spent) == (0.7, [(100, 0.5), (200, 0.7)], 250)
    assert at.queries_to == {0.5: 100, 0.8: 200, 0.9: None, 0.95: None}
    assert (at.accuracy, at.kl) == (None, None)
    assert cut_off(figures, 50).agreement is None
    assert cut_off(figures, 400) is figures


def test_what_is_shared_is_marked_and_a_quota_is_cut() -> None:
    comparison = plan("none,modelguard_w,quota:images=250", "kl,label")
    session = Session(comparison, {}, StatusLine(io.StringIO()))
    for name, waiting in session._outcomes.items():
        session._outcomes[name] = replace(waiting, state="finished", figures=FIGURES)
    seen = {
        (each.cell.attempt.defence, each.cell.attempt.answers): each
        for each in session.findings().outcomes
    }
    assert {key: each.shared for key, each in seen.items() if each.shared} == {
        ("modelguard_w", "label"): "none", ("quota:images=250", "kl"): "none", ("quota:images=250",
        "label"): "none",
    }  # fmt: skip
    agreements = {key: each.figures.agreement for key, each in seen.items() if each.figures}
    assert agreements["quota:images=250", "kl"] == 0.5
    assert agreements["none", "kl"] == agreements["modelguard_w", "label"] == 0.92
