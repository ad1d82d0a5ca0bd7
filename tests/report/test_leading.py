"""What the report leads with: warnings, the verdict beside a constant answer, what was audited."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from handmade import DEFENDED, LEADING, SUMMARY, lines, make_run, page_of

from dfme.report.console import agreement_line, end_table
from dfme.report.run_files import Beside
from dfme.run.scores import balanced, compare
from dfme.spec import LabelMode
from dfme.statistics import wilson_interval


def test_the_page_leads_with_what_a_manager_asks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.yaml").write_text(
        "teacher:\n  kind: json\n  authorised_by: ticket 4711\nmethod:\n  name: dfme\n"
    )
    page = page_of(run, **LEADING)
    answer = (
        "1,000 queries at a price of 1.36 gave a copy that agrees with the teacher on 97.5% of the 360 "
        "evaluation images, where one answer to everything would on 50.0%."
    )
    order = [
        *("Warning:", answer, "Target", "Adapter", "Authorised by", "Started", "Ended", "Price"),
        *("What agreement costs", "Answers by class", "Result", "What was spent"),
    ]
    places = [page.text.index(text) for text in order]
    assert places == sorted(places)
    assert page.text[places[0] + 1] == LEADING["warnings"][0] + "."
    assert page.text[0] == "json, cloned by queries"
    assert any(text.startswith("json · run · How many queries") for text in page.text)
    assert page.after("Target") == "POST https://api.example/v1, model <b>cats</b>"
    assert page.after("Adapter") == "adapter.yaml (SHA-256 0123456789abcdef...)"
    assert page.after("Authorised by") == "ticket 4711"
    assert page.after("Constant answer") == "accuracy 45.00%, agreement 50.00%; a guess: 33.33%"


def test_whom_the_copy_agrees_with_is_said_where_it_matters(tmp_path: Path) -> None:
    """Of a service nobody knows what it would answer undefended."""
    service = {"refused": {}, "failed": {}, "seconds_answering": 1.0, "seconds_waited": 0.0}
    run = make_run(tmp_path / "run")
    said = ("whatever defends it", "without its defences", "undefended teacher")
    for more, expected in (({}, ()), ({"service": service}, said[:1]), (DEFENDED, said[1:])):
        page = page_of(run, **LEADING | more)
        assert [item for item in said if item in " ".join(page.text)] == list(expected)
    assert page.after("Defences") == "counting:<b>n</b>=3"
    assert page.after("Defences report") == "counting.<i>asked</i> 400"
    assert page.after("Agreement served") == "70.00%"
    assert "Agreement relabelled" not in page.text


def test_answers_are_shown_by_the_classes_names_with_bars(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = page_of(run, **LEADING)
    heads = ["Teacher, evaluation images", "Student, evaluation images", "Teacher, paid queries"]
    start = page.text.index(heads[0])
    assert page.text[start : start + 3] == heads
    rows = "cat 50.0% 47.2% 99.9% <i>dog</i> 25.0% 27.8% 0.1% cow 25.0% 25.0% 0.0%".split()
    assert page.text[start + 3 : start + 15] == rows
    source = (run / "report.html").read_text()
    assert "--share: 47.2%" in source
    assert "<i>" not in source
    assert "<script" not in source


def test_of_many_classes_the_most_frequent_are_shown(tmp_path: Path) -> None:
    answers = {"classes": [*range(1_000)], "teacher": [*range(1, 1_001)]}
    page = page_of(make_run(tmp_path / "run"), answers=answers)
    shown = [text for text in page.text if text.startswith("class ")]
    assert shown == [f"class {number}" for number in range(980, 1_000)]
    assert any("980 others were answered less often" in text for text in page.text)


@pytest.mark.parametrize(
    "answers",
    [12, {"classes": [7, 8], "teacher": [0, 0], "queries": [0, 3]}],
    ids=["of a retrain", "few"],
)
def test_a_run_with_less_on_record_is_reported_without_what_it_lacks(
    tmp_path: Path, answers: object
) -> None:
    page = page_of(make_run(tmp_path / "run"), answers=answers)
    assert "Result" in page.text
    assert not {"Warning:", "Constant answer", "Adapter", "Started"} & {*page.text}
    assert ("Answers by class" in page.text) == isinstance(answers, dict)


def by_hand(teacher: list[int], student: list[int]) -> float:
    """The mean over classes, one image after the other."""
    said = defaultdict(list)
    for ours, copied in zip(teacher, student, strict=True):
        said[ours].append(ours == copied)
    return sum(sum(hits) / len(hits) for hits in said.values()) / len(said)


@pytest.mark.parametrize("classes", [2, 3, 10, 1_000])
@pytest.mark.parametrize("images", [1, 7, 60])
def test_balanced_agreement_is_the_mean_over_the_classes_that_the_teacher_answers(
    classes: int, images: int
) -> None:
    rng = torch.Generator().manual_seed(classes)
    teacher_N = (torch.rand(images, generator=rng) ** 4 * classes).long().clamp(max=classes - 1)
    drawn_N = torch.randint(classes, (images,), generator=rng)
    student_N = torch.where(torch.rand(images, generator=rng) < 0.5, teacher_N, drawn_N)
    result = compare(
        torch.nn.functional.one_hot(student_N, classes).float(), teacher_N, LabelMode("label")
    )
    assert result["agreement_balanced"] == pytest.approx(
        by_hand(teacher_N.tolist(), student_N.tolist())
    )
    most = max(teacher_N.tolist().count(number) for number in set(teacher_N.tolist()))
    assert result["constant_agreement"] == pytest.approx(most / images)


@pytest.mark.parametrize("counts", [(50, 50), (92, 8), (700, 200, 100), (1,), (3, 0, 1, 0)])
def test_a_constant_answer_has_one_in_as_many_classes_as_occur(counts: tuple[int, ...]) -> None:
    teacher_N = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    constant_N = torch.full_like(teacher_N, int(torch.tensor(counts).argmax()))
    occurring = sum(map(bool, counts))
    assert balanced(constant_N == teacher_N, teacher_N) == pytest.approx(1 / occurring)
    assert balanced(teacher_N == teacher_N, teacher_N) == 1


@pytest.mark.parametrize(
    ("share", "level", "constant", "images", "reaches"),
    [
        (0.94, 0.9, 0.1, 359, True),
        (0.94, 0.9, 0.92, 359, False),  # 91.1 to 96.0: it may be the constant answer's
        (0.99, 0.9, 0.92, 359, True),
        (0.92, 0.9, 0.92, 10_000, False),
        (0.65, 0.5, 0.66, 2_000, False),
        (0.5, 0.5, 0.25, 100, True),
        (0.89, 0.9, 0.1, 359, False),
        (0.94, 0.9, None, 359, True),
        (1.0, 0.9, 1.0, 359, False),
    ],
)
def test_a_level_is_reached_above_a_constant_answer(
    share: float, level: float, constant: float | None, images: int, reaches: bool
) -> None:
    beside = Beside(constant, None, images)
    assert beside.reaches(share, level) == reaches
    assert beside.queries_to([(100, share / 2), (200, share)], level) == (200 if reaches else None)
    if constant is not None:
        assert reaches == (share >= level and wilson_interval(share, images)[0] > constant)


def test_a_line_says_both_and_balanced_figures_where_a_constant_answer_is_large() -> None:
    scores = {"agreement": 0.65, "agreement_balanced": 0.331, "constant_agreement": 0.66}
    assert agreement_line(scores) == ["agreement 65.00%, balanced 33.10% (constant answer 66.00%)"]
    assert agreement_line(scores | {"constant_agreement": 0.5}) == [
        "agreement 65.00% (constant answer 50.00%)"
    ]
    assert agreement_line({"agreement": 0.65}) == ["agreement 65.00%"]
    assert agreement_line({}) == []


ENDED: dict[str, Any] = SUMMARY | {
    "spent_by_purpose": {"student": 1_000},
    "agreement": 0.65,
    "agreement_balanced": 0.331,
    "accuracy": 0.6,
    "baselines": {
        "constant_agreement": 0.66,
        "constant_balanced": 0.1,
        "constant_accuracy": 0.64,
        "chance": 0.1,
    },
    "paid_answers": {
        "classes_reached": 7,
        "classes": 10,
        "most_frequent": "class 3 (cat)",
        "share": 0.624,
        "one_sided": True,
    },
}


def rows(summary: dict[str, Any], folder: Path) -> dict[str, str]:
    text = end_table(summary, folder)
    return {
        name: value.strip()
        for name, _, value in (line.partition("  ") for line in text.splitlines())
    }


def test_the_last_lines_have_both_figures_and_the_classes_that_were_reached(tmp_path: Path) -> None:
    said = rows(ENDED, tmp_path)
    assert said["agreement"] == "65.00% (constant answer 66.00%)"
    balanced_row = "33.10%, the mean over the teacher's classes (constant answer 10.00%)"
    assert said["balanced agreement"] == balanced_row
    assert (
        said["paid answers"]
        == "one-sided: 7 of 10 classes reached, the most frequent, class 3 (cat), 62%"
    )
    before = {
        name: value
        for name, value in ENDED.items()
        if name not in ("agreement_balanced", "paid_answers")
    }
    old = rows(before | {"baselines": {"constant_agreement": 0.66, "chance": 0.1}}, tmp_path)
    assert old["agreement"] == "65.00% (constant answer 66.00%)", "a summary of an earlier release"
    assert "balanced agreement" not in old
    even = ENDED | {"paid_answers": ENDED["paid_answers"] | {"one_sided": False}}
    assert "paid answers" not in rows(even, tmp_path)


def test_the_report_calls_no_copy_what_is_not_above_a_constant_answer(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text(
        lines({"queries": 200, "agreement": 0.5}, {"queries": 900, "agreement": 0.65})
    )
    page = page_of(run, **ENDED)
    (title,) = (text for text in page.text if text.startswith("1,000 queries gave"))
    assert title == (
        "1,000 queries gave no copy: what they taught agrees with the teacher on 65.0% of the 360 "
        "evaluation images, where one answer to everything would on 66.0%; balanced over the "
        "teacher's "
        "classes it agrees on 33.1%, one answer to everything on 10.0%."
    )
    assert page.after("50%") == "not reached"
    assert page.after("Balanced agreement").startswith(
        "33.10%, the mean over the teacher's classes"
    )
    better = page_of(run, **ENDED | {"agreement": 0.9, "agreement_balanced": 0.8})
    assert any("gave a copy that agrees" in text for text in better.text)


def test_an_unfinished_runs_report_has_the_constant_answer_of_its_latest_record(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", finished=False)
    record = {
        "queries": 300,
        "agreement": 0.65,
        "agreement_balanced": 0.331,
        "constant_agreement": 0.66,
    }
    (run / "metrics.jsonl").write_text(lines(record))
    (title,) = (text for text in page_of(run).text if text.startswith("So far"))
    assert "where one answer to everything would on 66.0%; balanced over" in title
