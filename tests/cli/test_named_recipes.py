"""Recipes by name: they hold for any teacher, and what names none has the same as the embedded
run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from begun import refused_words
from command_line import parse, run

import dfme
from dfme.cli.arguments import Arguments
from dfme.cli.check import INPUTS as CHECK
from dfme.cli.compare import plan_of
from dfme.cli.flags import Flag
from dfme.config.settings import Job
from dfme.config.values import flatten
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.run.job import PROJECT, config_hash, document
from dfme.run.recipes import with_variants
from dfme.spec import LabelMode

DIGITS = (
    f"--teacher.checkpoint {PROJECT}/teachers/checkpoints/digits.safetensors "
    "--evaluation.dataset digits"
)
SERVICE = "--teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model m"


def options(job: Job) -> dict[str, Any]:
    """What decides the student, its teacher apart."""
    apart = (
        "recipe",
        "out",
        "teacher.",
        "evaluation.",
        "student.arch",
    )  # auto is cnn_small for the digits
    return {key: value for key, value in flatten(document(job), ()) if not key.startswith(apart)}


@pytest.mark.parametrize("budget", ["2k", "5k", "30k", "300k"])
def test_naming_the_embedded_teacher_changes_where_the_generator_begins_alone(budget: str) -> None:
    bare, named = parse(f"--budget {budget}"), parse(f"{DIGITS} --budget {budget}")
    apart: dict[str, Any] = {
        "queries.base": "none",
        "queries.procedural": 0.75,
    }  # docs/results/dfme.md
    apart["queries.programs"] = ["leaves", "strokes"]
    assert options(bare) == options(named) | apart
    assert options(named) == options(parse(f"{DIGITS} --recipe dfme --budget {budget}"))
    assert (named.config.student.replay_steps, named.config.schedule.kind) == (8, "cosine")


@pytest.mark.parametrize(
    ("name", "budget"), [("frugal", "12k"), ("paper", "300k"), ("maze", "100k"), ("dfms", "60k")]
)
def test_a_recipe_by_name_is_its_digits_recipe_for_any_teacher(name: str, budget: str) -> None:
    on_digits = parse(f"--config configs/digits_{name}.yaml")
    job = parse(f"--recipe {name} --teacher.checkpoint weights.pt --budget {budget}")
    assert job.teacher_options["checkpoint"] == "weights.pt"
    assert (job.config.student.arch, job.config.evaluation.dataset) == ("auto", "none")
    loss = {"student.loss": "l1"} if name == "paper" else {}  # what auto is for scores
    assert options(job) == options(on_digits) | loss
    assert parse(f"--recipe {name}").teacher == on_digits.teacher, (
        "without a teacher the digits are meant"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_method_alone_has_a_recipe_that_replays_or_trains_afterwards(method: str) -> None:
    job = parse(f"--teacher.checkpoint weights.pt --method {method}")
    assert (job.config.recipe, job.config.schedule.kind) == (f"{method} (default)", "cosine")
    assert bool(job.config.student.replay_steps) is (method != "knockoff")


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("", "digits"),
        ("--teacher.checkpoint weights.pt", "dfme (default)"),
        ("--teacher.checkpoint weights.pt --method static", "static (default)"),
        ("--recipe frugal", "frugal"),
        ("--recipe digits_disguide --teacher.checkpoint weights.pt", "digits_disguide"),
        ("--recipe frugal --method disguide", "frugal over disguide"),
        ("--config configs/digits_frugal.yaml", "digits_frugal"),
        ("--config recipe.yaml", "recipe.yaml over dfme (default)"),
        ("--config recipe.yaml --recipe paper", "recipe.yaml over paper"),
        ("--config base.yaml", "base.yaml over frugal"),
    ],
)
def test_the_record_says_which_recipe_holds(here: Path, line: str, recipe: str) -> None:
    (here / "base.yaml").write_text("recipe: frugal\nteacher: {checkpoint: weights.pt}\n")
    job = parse(line)
    assert job.config.recipe == document(job)["recipe"] == recipe
    assert config_hash(job) == config_hash(
        replace(job, config=replace(job.config, recipe="another"))
    )


def test_a_file_lies_above_the_recipe_and_a_flag_above_both(here: Path) -> None:
    (here / "mine.yaml").write_text(
        "teacher: {checkpoint: weights.pt}\nstudent: {lr: 0.3, steps: 900}\n"
    )
    student = parse("--config mine.yaml --recipe frugal --student.steps 700").config.student
    assert (student.lr, student.steps, student.decay_images) == (0.3, 700, 5000)
    mixed = parse("--recipe frugal --method disguide --teacher.checkpoint weights.pt")
    assert (mixed.method, mixed.queries.evolve, mixed.config.student.passes) == ("disguide", 1, 50)


def test_a_resumed_run_keeps_its_recipe_and_its_batch(here: Path) -> None:
    begun = parse("--teacher.checkpoint weights.pt --budget 5k --out runs/x")
    assert begun.method_config.batch_size == 8
    (here / "runs/x").mkdir(parents=True)
    (here / "runs/x/config.yaml").write_text(sealed(dump_yaml(document(begun))))
    again = parse("--resume --out runs/x --budget 300k")
    assert (again.config.recipe, again.method_config.batch_size) == ("dfme (default)", 8)
    assert (again.config.resume, again.config.budget) == (True, 300_000)
    assert config_hash(again) == config_hash(begun)
    assert parse("--resume --out runs/x --recipe dfme").config.recipe == "dfme (default)"
    with pytest.raises(UserError, match="--recipe: a run's own file says every option"):
        parse("--resume --out runs/x --recipe frugal")


@pytest.mark.parametrize(
    ("line", "batches"),
    [
        (
            "--budget 300k",
            837,
        ),  # of 7 images of an iteration, 5 are the student's: 300,000 * 5 / 7 / 256
        ("--budget 1k", 89),  # no smaller than 8
        ("--budget 30k --method.batch-size 256", 84),
        (
            "--budget 30k --method.batch-size auto --estimator.form central "
            "--estimator.directions 2",
            260,
        ),
        ("--budget 30k --method static", 469),
    ],
)
def test_a_batch_fits_the_budget(line: str, batches: int) -> None:
    job = parse(f"--teacher.checkpoint weights.pt {line}")
    asked = {"static": 0, "dfme": 2}[job.method]
    asked = 4 if job.estimator.form == "central" else asked
    assert round(job.config.budget * 5 / (5 + asked) / job.method_config.batch_size) == batches


# Services


@pytest.mark.parametrize("line", ["", "--recipe frugal", "--config configs/digits.yaml"])
def test_a_service_is_asked_for_as_many_images_as_the_user_says(here: Path, line: str) -> None:
    with pytest.raises(
        UserError, match=r"budget: expected how many images .*--teacher\.price-per-1000"
    ):
        parse(f"{SERVICE} {line}".replace("--config", "--method dfme --config"))
    assert parse(f"{SERVICE} {line} --budget 10k").config.budget == 10_000
    (here / "mine.yaml").write_text("budget: 4k\n")
    assert parse(f"{SERVICE} --config mine.yaml").config.budget == 4000


def test_a_comparison_asks_for_the_budgets_of_a_service_too() -> None:
    words = [*SERVICE.split(), "--teacher.num-classes", "10", "--out", "c"]
    with pytest.raises(UserError, match=r"^--budgets: expected how many images"):
        plan_of(words)
    assert {cell.budget for cell in plan_of([*words, "--budgets", "1k"]).cells} == {1000}


def test_a_comparison_has_rows_by_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    cells = plan_of(["--methods", "static,frugal,paper", "--budgets", "5k", "--out", "c"]).cells
    jobs = {cell.row: cell.job for cell in cells}
    assert (jobs["frugal"].method, jobs["frugal"].queries.evolve) == ("procedural", 1)
    assert (jobs["paper"].config.schedule.kind, jobs["paper"].method_config.batch_size) == (
        "steps",
        256,
    )
    assert {row: job.config.recipe for row, job in jobs.items()} == {row: row for row in jobs}
    assert "--recipe: say methods and rows in a comparison" in refused_words(
        "compare --recipe frugal", capsys
    )


# Python


def ask(images: Any) -> Any:
    return images


@pytest.mark.parametrize("recipe", [None, "frugal", "paper"])
def test_python_has_the_same_defaults(
    fake_build: list[tuple[Any, ...]], recipe: str | None
) -> None:
    dfme.extract(ask, shape=(1, 8, 8), num_classes=10, budget="12k", recipe=recipe)
    flags = f"--recipe {recipe}" if recipe else ""
    line = parse(f"--teacher.checkpoint weights.pt --budget 12k {flags}")
    assert options(fake_build[0][0]) == options(line)
    assert fake_build[0][0].config.recipe == line.config.recipe


def test_python_takes_methods_of_a_recipe_and_refuses_unknown_ones(
    fake_build: list[tuple[Any, ...]],
) -> None:
    dfme.extract(ask, recipe="frugal", student={"steps": 100})
    job = fake_build.pop()[0]
    assert (job.method, job.config.budget) == ("procedural", 12_000)
    assert (job.config.student.steps, job.config.student.lr) == (100, 0.2)
    with pytest.raises(UserError, match=r"recipe=\.\.\.: expected a recipe .* did you mean frugal"):
        dfme.extract(ask, recipe="fruga")
    assert fake_build == []


def test_python_resumes_with_what_the_run_has(
    here: Path, fake_build: list[tuple[Any, ...]]
) -> None:
    dfme.extract(
        ask, shape=(1, 8, 8), num_classes=10, budget="12k", recipe="frugal", out="runs/x", seed=3
    )
    begun, _ = with_variants(fake_build.pop()[0], LabelMode("label"), (1, 8, 8))
    (here / "runs/x").mkdir(parents=True)
    (here / "runs/x/config.yaml").write_text(sealed(dump_yaml(document(begun))))
    dfme.extract(ask, shape=(1, 8, 8), num_classes=10, out="runs/x", seed=3, resume=True)
    assert document(fake_build.pop()[0]) == {**document(begun), "resume": True}
    with pytest.raises(UserError, match="was begun with frugal"):
        dfme.extract(ask, out="runs/x", seed=3, resume=True, recipe="paper")


def test_a_file_without_a_teacher_takes_the_digits_as_flags_do() -> None:
    Path("mine.yaml").write_text("evaluation: {points: 7}\n")
    job = parse("--config mine.yaml --budget 5k")
    assert job.config.evaluation.points == 7
    assert (
        parse("--config mine.yaml --teacher.checkpoint weights.pt").config.evaluation.dataset
        == "none"
    )
    Path("mine.yaml").write_text("methods: [static]\n")
    for each in (job, plan_of(["--config", "mine.yaml", "--out", "out"]).cells[0].job):
        assert each.teacher_options["checkpoint"].endswith(
            "teachers/checkpoints/digits.safetensors"
        )
        assert each.config.evaluation.dataset == "digits"
    Path("mine.yaml").write_text("")
    checked = Arguments([Flag("config", "mine.yaml")], CHECK).teacher()[1]
    assert checked["checkpoint"] == job.teacher_options["checkpoint"]


@pytest.mark.parametrize(("recipe", "warned"), [("cifar10_dfme", True), ("frugal", False)])
def test_a_recipe_for_images_of_another_shape_is_warned_of(
    recipe: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "recipe cifar10_dfme is made for images of 3x32x32, this teacher's are 1x8x8: "
        "its budget (now 20"
    )
    assert run(f"--recipe {recipe} --dry-run") == 0
    assert (text in " ".join(capsys.readouterr().out.split())) is warned
