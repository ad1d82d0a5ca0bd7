"""A recipe's blocks `when`: which hold for a teacher, what is taken of them, and what beats them."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import parse

import dfme
from dfme.cli.main import main
from dfme.config.settings import Job
from dfme.config.values import leaves
from dfme.config.yaml_files import dump_yaml, load_yaml, sealed
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.run.job import differing_keys, document
from dfme.run.recipes import with_variants
from dfme.spec import LabelMode

SMALL, LARGE = (3, 16, 16), (1, 17, 8)
SCORES, LABELS = LabelMode("probabilities"), LabelMode("label")
TEACHER = "--teacher.checkpoint weights.pt"


def settled_job(words: str, mode: LabelMode = SCORES, shape: tuple[int, int, int] = LARGE) -> Job:
    """The job of these words with what holds for a teacher of such answers and images."""
    return with_variants(parse(f"{TEACHER} {words}"), mode, shape)[0]


def optimized_by(
    optimizer: str, lr: float, weight_decay: float, loss: str = "auto"
) -> dict[str, Any]:
    return {"optimizer": optimizer, "lr": lr, "weight_decay": weight_decay, "loss": loss}


ON_SMALL = {"passes": 50, "replay_batch": 256, "shrink": 0.4, "augment": "none"}
ON_LARGE = {"passes": 25, "replay_batch": "growing", "shrink": 1.0, "augment": "affine"}
MEASURED: list[tuple[str, LabelMode, tuple[int, int, int], dict[str, Any], tuple[int, float]]] = [
    ("--recipe frugal", SCORES, SMALL, optimized_by("sgd", 0.2, 2e-3) | ON_SMALL, (4, 1.0)),
    ("--recipe frugal", LABELS, SMALL, optimized_by("adam", 0.2 / 50, 0.0) | ON_SMALL, (4, 1.0)),
    (
        "--recipe frugal",
        SCORES,
        LARGE,
        optimized_by("adamw", 0.2 / 100, 1.0, "kl") | ON_LARGE,
        (2, 0.0),
    ),
    ("--recipe frugal", LABELS, LARGE, optimized_by("adamw", 0.2 / 100, 1.0) | ON_LARGE, (4, 1.0)),
    ("", SCORES, SMALL, optimized_by("sgd", 0.1, 5e-4) | {"augment": "none"}, (1, 0.0)),
    ("", SCORES, LARGE, optimized_by("adamw", 1e-3, 0.25, "kl") | {"augment": "affine"}, (1, 0.0)),
]
"""What the recipes were measured with (docs/results/real_size.md and comparison.md)."""


@pytest.mark.parametrize(("words", "mode", "shape", "student", "pool_and_evolve"), MEASURED)
def test_a_recipe_has_the_values_that_were_measured(
    words: str,
    mode: LabelMode,
    shape: tuple[int, int, int],
    student: dict[str, Any],
    pool_and_evolve: tuple[int, float],
) -> None:
    job = settled_job(words, mode, shape)
    assert asdict(job.config.student) == asdict(job.config.student) | student
    assert (job.queries.pool, job.queries.evolve) == pool_and_evolve
    assert job.when == ()


@pytest.mark.parametrize("mode", [SCORES, LABELS], ids=str)
def test_knockoff_trains_on_larger_images_as_frugal_does(mode: LabelMode) -> None:
    by_knockoff = settled_job("--method knockoff", mode).config.student
    assert by_knockoff == replace(
        settled_job("--recipe frugal", mode).config.student, replay_steps=0
    ), "which passes make idle"
    assert settled_job("--recipe knockoff", mode).config.student == by_knockoff


@pytest.mark.parametrize(
    "words",
    [
        *(f"--method {name}" for name in METHODS if name not in ("dfme", "knockoff")),
        "--recipe paper",
        "--recipe paper --method knockoff",
        "--recipe cifar10_dfme",
        "--recipe cifar10_knockoff --method.pool procedural",
        "--method knockoff --method.epochs 7",
        "--method knockoff --student.replay-steps 3",
    ],
)
def test_what_says_its_whole_training_keeps_it(words: str) -> None:
    job = parse(f"{TEACHER} {words}")
    assert job.when == ()
    for shape in (SMALL, LARGE):
        assert with_variants(job, SCORES, shape) == (job, "")


GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("--student.lr .05", {"student.lr": 0.05, "student.optimizer": "adamw"}),
    ("--student.weight-decay 0", {"student.weight_decay": 0.0, "student.lr": 0.002}),
    ("--student.loss l1", {"student.loss": "l1"}),
    ("--student.augment none", {"student.augment": "none"}),
    ("--student.steps 800", {"student.steps": 800, "student.lr": 0.002}),
    ("--student.replay-batch 32", {"student.replay_batch": 32}),
    ("--student.shrink .4", {"student.shrink": 0.4}),
]


@pytest.mark.parametrize(("words", "expected"), GIVEN, ids=[words for words, _ in GIVEN])
@pytest.mark.parametrize("recipe", ["--recipe frugal", "--method knockoff"])
def test_a_number_that_is_given_is_the_one_that_is_used(
    recipe: str, words: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    """By a flag, and by a file above the recipe."""
    (tmp_path / "mine.yaml").write_text(
        dump_yaml({"recipe": "frugal", **expected})
        if recipe == "--recipe frugal"
        else dump_yaml({"method": "knockoff", **expected})
    )
    for line in (f"{recipe} {words}", f"--config {tmp_path / 'mine.yaml'}"):
        held = leaves(settled_job(line).config)
        assert {name: held[name] for name in expected} == expected


def test_queries_that_are_given_are_asked() -> None:
    job = settled_job("--recipe frugal --queries.pool 6 --queries.evolve .5")
    assert (job.queries.pool, job.queries.evolve, job.config.student.loss) == (6, 0.5, "kl")


def test_a_number_without_effect_beside_what_holds_is_refused() -> None:
    job = parse(f"{TEACHER} --method knockoff --student.momentum 0")
    assert with_variants(job, SCORES, SMALL)[0].config.student.momentum == 0
    with pytest.raises(UserError, match=r"^--student\.momentum: takes effect only with"):
        with_variants(job, SCORES, LARGE)
    with pytest.raises(UserError, match=r"^--student\.rounds: expected at most as many"):
        settled_job("--method knockoff --student.steps 3")


def test_an_attacker_says_what_is_learnt() -> None:
    """A label that is made of scores is a label; what ``learn`` says of the loss is not unsaid."""
    labels = settled_job("--recipe frugal --answers.learn label", SCORES, SMALL).config.student
    assert labels.optimizer == "adam"
    assert settled_job("--recipe frugal --answers.learn scores").config.student.loss == "auto"


LAYERS = """
recipe: frugal
student: {lr: 0.5}
when:
  - {side_above: 8, set: {student.passes: 3, schedule: {kind: constant}}}
  - {answers: label, set: {queries: {pool: 9}}}
  - {side_above: 12, set: {student: {passes: 4}}}
"""


def test_a_file_s_own_blocks_follow_those_of_its_recipe(here: Path) -> None:
    (here / "mine.yaml").write_text(LAYERS)
    words = "--config mine.yaml --queries.evolve .25"
    small, large = settled_job(words, LABELS, (1, 12, 12)), settled_job(words, LABELS)
    assert (small.config.student.passes, large.config.student.passes) == (3, 4)
    assert (small.config.schedule.kind, small.queries.pool, small.queries.evolve) == (
        "constant",
        9,
        0.25,
    )
    assert large.config.student.lr == 0.5, "a file's own value beats the blocks below it"
    assert large.config.student.optimizer == "adamw"
    assert settled_job(words, LABELS, (1, 8, 8)).config.student.passes == 50


def test_a_job_that_is_not_settled_is_a_document_like_any_other(here: Path) -> None:
    """A cell of a comparison is written, and read again, before its teacher is known."""
    job = parse(f"{TEACHER} --recipe frugal --student.lr .3")
    (here / "written.yaml").write_text(sealed(dump_yaml(document(job))))
    again = parse("--config written.yaml")
    assert (again.when, document(again)) == (job.when, document(job))
    for mode, shape in ((SCORES, SMALL), (LABELS, SMALL), (SCORES, LARGE), (LABELS, LARGE)):
        settled = document(with_variants(job, mode, shape)[0])
        assert "when" not in settled
        assert differing_keys(settled, job) == [], "a run goes on with what it took"
    settled["student"]["passes"] = 26
    assert differing_keys(settled, job) == ["student.passes"]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ("7", ": expected blocks such as"),
        ("[{side_abov: 3, set: {student: {lr: 1}}}]", "block 1: side_abov: unknown .* side_above?"),
        (
            "[{answers: labels, set: {student: {lr: 1}}}]",
            "block 1: answers: expected one of any, scores, label, got",
        ),
        ("[{side_above: -1, set: {student: {lr: 1}}}]", "block 1: side_above: expected"),
        ("[{set: {student: {lr: 1}}}, {set: {}}]", "block 2: expected values to set"),
        ("[{set: {student: {lrr: 1}}}]", r"set: student\.lrr: unknown option; did you mean lr"),
        ("[{set: {student: {lr: 0}}}]", r"set: student\.lr: expected"),
        (
            "[{set: {teacher: {levels: 2}}}]",
            "set: expected options of student, schedule, queries, got teacher",
        ),
        ("[{set: {student: 3}}]", "set: expected options of .*, got student: 3"),
    ],
)
def test_a_block_that_is_wrong_is_named_in_a_line(here: Path, blocks: str, message: str) -> None:
    (here / "mine.yaml").write_text(f"when: {blocks}\n")
    with pytest.raises(UserError, match=rf"^mine\.yaml: when.*{message}"):
        parse("--config mine.yaml")


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("--student.optimizer auto", "expected sgd, adam or adamw, no longer auto"),
        ("--student.shrink auto", "expected a share"),
        ("--student.replay-batch auto", "or growing"),
        ("--student.augment auto", "expected none, flip, shift, both or affine"),
        ("--queries.choose auto", "expected margin"),
        ("--student.final-share .5", "no longer an option"),
    ],
)
def test_what_is_gone_is_answered_with_what_to_write(words: str, instead: str) -> None:
    with pytest.raises(UserError, match=re.escape(instead)):
        parse(f"{TEACHER} {words}")
    section, name, value = re.split(r"[. ]", words.removeprefix("--").replace("-", "_"), maxsplit=2)
    with pytest.raises(UserError, match=re.escape(instead)):
        dfme.extract(dark, shape=(1, 9, 9), num_classes=3, **{section: {name: value}})


def dark(images: torch.Tensor) -> torch.Tensor:
    """Scores of three classes by the mean of three parts of an image."""
    return images.flatten(1)[:, :287].unflatten(1, (7, 41)).mean(2)[:, :3].mul(9).softmax(1)


def test_config_yaml_has_the_values_that_hold_and_the_run_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    settings: dict[str, Any] = {"shape": (1, 17, 17), "num_classes": 3, "out": out}
    student = {"arch": "cnn_small", "steps": 10}
    dfme.extract(dark, budget=64, recipe="frugal", student=student, progress=True, **settings)
    line = " ".join(capsys.readouterr().err.split())
    assert "hold: side_above 16; side_above 16 and answers scores: student.optimizer adamw" in line
    config = load_yaml(out / "config.yaml", own=True)
    held = config["student"]
    assert (held["optimizer"], held["lr"], held["steps"]) == ("adamw", 0.002, 10)
    assert (held["augment"], config["queries"]["pool"], "when" in config) == ("affine", 2, False)
    assert dfme.extract(dark, budget=80, resume=True, **settings).summary["spent"] == 80
    assert load_yaml(out / "config.yaml", own=True)["student"] == held


ANSWERING = """
def scores():
    return lambda images: images.flatten(1)[:, :3].softmax(1)


def labels():
    return lambda images: images.flatten(1)[:, :3].argmax(1)
"""
OWN = "--teacher.num-classes 3 --budget 64 --student.steps 10 --student.arch lenet5"


@pytest.fixture
def answering(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "answering.py").write_text(ANSWERING)
    monkeypatch.syspath_prepend(here)


@pytest.mark.usefixtures("answering")
def test_a_dry_run_says_which_hold_and_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for shape, function, mode in (
        ("1,20,20", "labels", "label"),
        ("1,9,9", "scores", "probabilities"),
        ("1,9,9", "labels", "label"),
    ):
        words = (
            f"--teacher answering:{function} --teacher.shape {shape} {OWN} --recipe frugal"
            f" --dry-run --teacher.label-mode {mode}"
        )
        assert main(words.split()) == 0
        lines.append(" ".join(capsys.readouterr().out.split()))
    assert (
        "variants answers label; side_above 16: student.optimizer adamw, student.lr 0.0" in lines[0]
    )
    assert "variants none of 3: student.optimizer sgd, student.lr 0.2, student.wei" in lines[1]
    assert "variants answers label: student.optimizer adam, student.lr 0.004" in lines[2]


@pytest.mark.usefixtures("answering")
def test_one_line_begins_a_run_and_goes_on_with_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--teacher answering:scores --teacher.shape 1,9,9 {OWN} --recipe frugal --out run"
    line = [*words.split(), "--resume", "auto"]
    assert main(line) == 0
    assert main(line) == 0
    assert "finished before with all of its 64 queries" in capsys.readouterr().err
    (here / "mine.yaml").write_text(
        "recipe: frugal\nwhen: [{set: {student: {passes: 3, lr: 2}}}]\n"
    )
    line[line.index("--recipe") : line.index("--out")] = ["--config", "mine.yaml"]
    assert "was started with other values of student.lr, student.passes" in refused_words(
        line, capsys
    )
