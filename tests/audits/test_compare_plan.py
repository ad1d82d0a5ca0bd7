"""What a comparison's file and flags mean, cell by cell."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damage import refused

from dfme.audits.compare.plan import Cell, ComparisonPlan
from dfme.audits.compare.rehearsal import not_applicable
from dfme.audits.compare.rows import unequal
from dfme.cli.compare import plan_of
from dfme.config.yaml_files import dump_yaml, load_yaml, sealed
from dfme.errors import UserError
from dfme.run.job import PROJECT, document

pytestmark = pytest.mark.usefixtures("here")

SHARED: dict[str, Any] = {
    "methods": ["static", "dfme"],
    "seeds": [3],
    "budgets": ["2k"],
    "label_modes": ["probabilities"],
    "student_steps": 40,
    "teacher": {"checkpoint": "teachers/checkpoints/digits.safetensors"},
    "student": {"arch": "cnn_small", "lr": 0.05},
    "evaluation": {"dataset": "digits", "points": 4},
}


def plan(flags: str = "", **changes: Any) -> ComparisonPlan:
    """The plan of the shared file with some keys changed, and these flags."""
    Path("c.yaml").write_text(dump_yaml(SHARED | changes))
    return plan_of(["--config", "c.yaml", *shlex.split(flags)])


def cell(comparison: ComparisonPlan, row: str) -> Cell:
    return next(cell for cell in comparison.cells if cell.row == row)


def refusal(flags: str = "", **changes: Any) -> str:
    return str(refused("", plan, flags, **changes))


# Cells


def test_every_row_seed_budget_and_mode_is_a_cell_the_first_seed_of_all_first() -> None:
    comparison = plan(seeds=[3, 1], budgets=["2k", 500], label_modes=["probabilities:4", "label"])
    assert len(comparison.cells) == len({each.name for each in comparison.cells}) == 16
    assert [each.seed for each in comparison.cells] == [3] * 8 + [1] * 8
    assert comparison.cells[0].name == "static-probabilities_4-2k-seed3"
    assert comparison.cells[-1].name == "dfme-label-500-seed1"
    assert {(each.job.config.seed, each.job.config.budget) for each in comparison.cells} == {
        (seed, budget) for seed in (3, 1) for budget in (2000, 500)
    }
    assert comparison.cells[0].job.teacher.label_mode == "probabilities:4"


def test_cells_share_student_steps_teacher_and_evaluation() -> None:
    comparison = plan("--student-steps 77 --student.arch cnn_medium --evaluation.points 9")
    for each in comparison.cells:
        config = each.job.config
        assert (config.student.steps, config.student.arch, config.student.lr) == (
            77,
            "cnn_medium",
            0.05,
        )
        assert (config.evaluation.points, config.evaluation.dataset) == (9, "digits")
        assert config.out == str(comparison.out / "cells" / each.name)


def test_a_single_value_is_a_list_of_one_and_a_flag_beats_the_file_in_every_row() -> None:
    comparison = plan(seeds=5, budgets=3000, label_modes="label", methods="static")
    assert [each.name for each in comparison.cells] == ["static-label-3k-seed5"]
    rows = {"wild": {"method": "static", "student": {"lr": 9.0}}}
    comparison = plan("--methods wild,static --seeds 1,2 --student.lr .3", rows=rows)
    assert [(each.seed, each.job.config.student.lr) for each in comparison.cells] == [
        (1, 0.3)
    ] * 2 + [(2, 0.3)] * 2


def test_rows_depart_from_the_shared_recipe_key_by_key() -> None:
    soft = {"method": {"name": "dfme", "generator-lr": 1e-3}, "student": {"momentum": 0.5}}
    rows = {
        "soft": soft | {"estimator.directions": 4},
        "dfme": {"method": {"reuse": True}},
        "unused": {"method": "static"},
    }
    comparison = plan(methods=["soft", "dfme", "static"], rows=rows, estimator={"step": 0.01})
    soft, dfme, static = (cell(comparison, row).job for row in ("soft", "dfme", "static"))
    assert (soft.method, soft.method_config.generator_lr, soft.estimator.directions) == (
        "dfme",
        1e-3,
        4,
    )
    assert (soft.config.student.momentum, soft.config.student.lr) == (0.5, 0.05)
    assert (dfme.method, dfme.method_config.reuse) == ("dfme", True)
    assert {job.estimator.step for job in (soft, dfme)} == {0.01}, (
        "shared, by the rows that estimate"
    )
    assert (static.method, static.config.student.momentum) == ("static", 0.9)


def test_a_row_of_a_file_has_that_file_s_method_student_and_schedule_alone() -> None:
    recipe = {
        "teacher": {"checkpoint": "elsewhere.pt"},
        "evaluation": {"dataset": "none"},
        "budget": "9M",
        "seed": 8,
        "schedule": {"kind": "cosine"},
        "method": {"name": "static", "batch_size": 32},
        "student": {"arch": "wrn16_1", "steps": 5, "momentum": 0.7},
    }
    Path("own.yaml").write_text(dump_yaml(recipe))
    job = cell(plan(methods="ours", rows={"ours": "own.yaml"}), "ours").job
    assert (job.method, job.method_config.batch_size, job.config.schedule.kind) == (
        "static",
        32,
        "cosine",
    )
    student = job.config.student
    assert (student.arch, student.steps, student.momentum, student.lr) == (
        "cnn_small",
        40,
        0.7,
        0.1,
    )
    assert (job.config.budget, job.config.seed, job.config.evaluation.dataset) == (
        2000,
        3,
        "digits",
    )
    assert job.teacher_options["checkpoint"].endswith("digits.safetensors")


def test_a_row_departs_from_the_recipe_that_it_names() -> None:
    rows = {"plain": "frugal", "told": {"recipe": "frugal", "queries": {"domain": "text"}}}
    comparison = plan(methods="plain,told", rows=rows)
    plain, told = (cell(comparison, name).job for name in rows)
    assert (plain.queries.domain, told.queries.domain) == ("unknown", "text")
    assert told.queries.programs == ("text",)
    assert replace(told.queries, domain="unknown", programs=plain.queries.programs) == plain.queries
    assert (told.method_config, told.config.student) == (plain.method_config, plain.config.student)


def test_a_flag_of_a_section_is_for_the_rows_that_heed_it_and_wandb_groups_the_cells() -> None:
    comparison = plan("--wandb.mode offline --out first --estimator.directions 3")
    assert {each.row: each.job.estimator.directions for each in comparison.cells} == {
        "static": 1,
        "dfme": 3,
    }
    assert all(
        (each.job.config.wandb.group, each.job.config.wandb.name) == ("first", each.name)
        for each in comparison.cells
    )
    assert {each.job.config.wandb.group for each in plan("--wandb.group mine").cells} == {"mine"}


OWN_TEACHER = """
class Own:
    def __init__(self, label_mode, defences="none", scale: float = 1.0):
        raise AssertionError("a plan only reads the signature")
"""


def test_a_custom_teacher_s_parameters_vary_with_the_cells_that_they_are_named_like(
    here: Path,
) -> None:
    (here / "own_cells.py").write_text(OWN_TEACHER)
    comparison = plan(
        "--defences none,lattice:n=10 --methods static",
        teacher={"kind": "own_cells:Own", "scale": 3},
        label_modes=["probabilities", "label"],
    )
    stack = "lattice:n=10"
    assert [
        (each.job.teacher.label_mode, each.job.teacher_options) for each in comparison.cells
    ] == [
        ("probabilities", {"label_mode": "probabilities", "defences": "none", "scale": 3.0}),
        ("probabilities", {"label_mode": "probabilities", "defences": stack, "scale": 3.0}),
        ("label", {"label_mode": "label", "defences": "none", "scale": 3.0}),
        ("label", {"label_mode": "label", "defences": "none", "scale": 3.0}),
    ]
    assert [each.job.teacher.defences for each in comparison.cells] == [(), (stack,), (), ()]


def test_variables_lie_below_flags_and_a_flag_on_record_beats_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "by variable")
    rows = {"wild": {"method": "static", "student": {"lr": 9.0}}}
    changes = {"rows": rows, "methods": ["wild"], "overrides": {"student.lr": "0.2"}}
    (named, unnamed) = (
        plan(flags, **changes).cells[0].job.config
        for flags in ("--wandb.project mine --student.lr .3", "")
    )
    assert (named.wandb.project, named.student.lr) == ("mine", 0.3)
    assert (unnamed.wandb.project, unnamed.student.lr) == ("by variable", 0.2)


def test_it_is_said_in_which_options_rows_differ_besides_their_methods() -> None:
    small = {"name": "static", "batch_size": 8, "latent_size": 7}
    rows = {
        "a": {"method": {"name": "static", "batch_size": 64}},
        "b": {"method": {"name": "procedural", "batch_size": 64}, "student": {"lr": 0.3}},
        "c": {"method": small, "student": {"rounds": [0.5, 1.0]}},
    }
    comparison = plan(methods=list(rows), rows=rows)
    message = unequal({each.row: each.job for each in comparison.cells})
    assert message == "batch_size 64 (c: 8); lr 0.05 (b: 0.3); rounds none (c: [0.5, 1.0])"
    assert unequal({each.row: each.job for each in comparison.cells if each.row == "a"}) == ""


# What cannot be compared


@pytest.mark.parametrize(
    ("flags", "changes", "message"),
    [
        ("", {"budget": "3k"}, "c.yaml: budget: say budgets in a comparison"),
        ('', {'teacher': {'label_mode': 'label'}}, 'c.yaml: teacher.label_mode: say label_modes in a'),
        ("", {"methods": []}, "methods: expected rows to compare"),
        ("", {"methods": ["a/b"]}, "c.yaml: methods: expected names of letters, digits"),
        ("", {"seeds": []}, "c.yaml: seeds: expected at least one, got none"),
        ("", {"rows": ["static"]}, "c.yaml: rows: expected a mapping"),
        ('', {'rows': {'static': 3}}, 'c.yaml: rows.static: expected sections such as method, or a'),
        ("", {"rows": {"static": "nowhere.yaml"}}, "rows.static: expected a recipe, or its file ("),
        ('', {'rows': {'x': {'student': {'lr': 1}}}, 'methods': ['x']}, 'c.yaml: rows.x: expected'),
        ('', {'rows': {'static': {'method': {'name': 'x'}}}}, 'c.yaml: rows.static.method.name: expected'),
        ('', {'rows': {'static': {'teacher': {'kind': 'v2'}}}}, 'c.yaml: rows.static.teacher: expected'),
        ("", {"rows": {"static": {"shedule": {}}}}, "the rest is shared; did you mean schedule?"),
        ('', {'rows': {'static': {'student': {'steps': 9}}}}, 'rows.static.student.steps: is equal in'),
        ('', {'rows': {'static': {'student': {'arch': 'lenet5'}}}}, 'rows.static.student.arch: is equal'),
        ('', {'rows': {'static': {'method': {'batchsize': 9}}}}, 'static: c.yaml: method.batchsize:'),
        ("--out c.yaml", {}, "--out: expected a directory, got 'c.yaml'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(flags: str, changes: Mapping[str, Any], message: str) -> None:
    assert message in refusal(flags, **changes)


def test_what_is_wrong_with_all_rows_is_said_once_and_everything_is_said() -> None:
    message = refusal("--student.lr 0", evaluation={"dataset": "digits", "pionts": 4})
    assert message.count("--student.lr: expected a positive number, got 0") == 1
    assert (
        message.count("c.yaml: evaluation.pionts: unknown key; did you mean evaluation.points?")
        == 1
    )
    rows = {"static": {"method": {"batch_size": 0}}, "dfme": {"schedule": {"kind": "none"}}}
    message = refusal(rows=rows)
    assert "static: c.yaml: method.batch_size: expected at least 1, got 0" in message
    assert "dfme: c.yaml: schedule.kind: expected one of" in message


def test_without_methods_all_rows_are_compared_and_each_may_repeat_what_is_equal_anyway() -> None:
    comparison = plan(
        methods=[], rows={"a": {"method": "static", "student": {"arch": "cnn_small"}}}
    )
    assert [each.row for each in comparison.cells] == ["a"]


def test_methods_that_cannot_use_a_mode_are_known_before_anything_runs() -> None:
    why = not_applicable(plan(label_modes=["probabilities", "label"]).cells)["dfme-label-2k-seed3"]
    assert why == "dfme needs answers of logits or probabilities or top_k"
    with pytest.raises(UserError, match="row dfme: dfme needs answers"):
        not_applicable(plan("--methods dfme --label-modes label").cells)
    with pytest.raises(UserError, match=r"row static: --student.loss l1 cannot use a teacher"):
        not_applicable(plan("--student.loss l1", label_modes=["label", "probabilities"]).cells)


# The directory


def test_a_directory_with_something_in_it_is_left_alone(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "precious.txt").touch()
    assert "--out: 'out' exists; give another --out, or --resume" in refusal("--out out")
    with pytest.raises(UserError, match=r"but 'out' has no comparison.yaml"):
        plan_of(["--resume", "--out", "out"])
    assert plan().out == Path("runs/c")
    (here / "runs" / "c").mkdir(parents=True)
    assert plan().out == Path("runs/c-2")


def test_the_comparison_s_own_file_gives_it_again_with_its_flags() -> None:
    comparison = plan(
        "--methods wild,dfme --student.lr .3 --estimator.directions 2 --out out --jobs 3",
        rows={"wild": {"method": "static", "student": {"lr": 9.0}}},
    )
    comparison.out.mkdir()
    (comparison.out / "comparison.yaml").write_text(sealed(dump_yaml(comparison.options)))
    again = plan_of(["--resume", "--out", "out"])
    assert again.cells == comparison.cells
    assert (again.jobs, again.config.student_steps) == (3, 40)
    assert json.dumps(again.options) == json.dumps(comparison.options)
    narrower = plan_of(["--resume", "--out", "out", "--methods", "wild", "--student.lr", ".4"])
    assert [each.job.config.student.lr for each in narrower.cells] == [0.4]


def test_a_cell_that_was_run_with_other_values_is_refused() -> None:
    comparison = plan("--out out")
    folder = comparison.directory(comparison.cells[0])
    folder.mkdir(parents=True)
    (comparison.out / "comparison.yaml").write_text(sealed(dump_yaml(comparison.options)))
    (folder / "config.yaml").write_text(sealed(dump_yaml(document(comparison.cells[0].job))))
    assert plan("--out out --resume").cells == comparison.cells
    message = refusal("--out out --resume --student-steps 41")
    assert "static-probabilities-2k-seed3 was run with other values of student.steps" in message


# The recipes and the command


@pytest.mark.parametrize(
    "name", ["compare_digits", "compare_shapes", "compare_small", "compare_generators"]
)
def test_our_comparisons_name_the_baselines(name: str) -> None:
    content = load_yaml(PROJECT / "configs" / f"{name}.yaml")
    assert {"static", "procedural"} <= set(content["methods"])
    assert plan_of(["--config", f"configs/{name}.yaml", "--methods", "static,procedural"]).cells


@pytest.mark.integration
def test_reading_and_adding_up_a_comparison_needs_no_torch() -> None:
    rooms = {path.stem for path in (PROJECT / "dfme/audits/compare").glob("*.py")}
    modules = [
        f"dfme.audits.compare.{stem}" for stem in rooms - {"__init__", "rehearsal", "session"}
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert len(modules) > 5
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0
