"""The gradients study as a whole: stages of a recipe, its files, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gradient_toys import SPEC, job, white_box
from torch import Tensor

from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS, LIMIT, PUBLISHED
from dfme.benchmarks.gradients.measure import GradientRow
from dfme.benchmarks.gradients.session import FILES, compare_gradients
from dfme.benchmarks.gradients.stages import Stage, stages
from dfme.benchmarks.gradients.table import GradientsResult, StageFacts, as_json, overview
from dfme.benchmarks.gradients.truth import TrueGradient
from dfme.benchmarks.options import GradientsConfig
from dfme.cli.main import main
from dfme.errors import DfmeError, UserError
from dfme.estimators.build import make_estimator
from dfme.run.directory import LOCK
from dfme.teachers.local.white_box import TorchWhiteBox


@pytest.fixture(scope="module")
def box() -> TorchWhiteBox:
    return white_box()


# Stages


def weights(stage: Stage) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in stage.student.parameters()])


def test_stages_are_copies_taken_on_the_way_of_the_recipe(box):
    first, second = (list(stages(box, job(), (0.0, 0.3, 1.0))) for _ in range(2))
    assert [each.queries for each in first] == [0, 64, 200], "whole steps of 32, and the budget to its end"
    assert not torch.equal(weights(first[0]), weights(first[1]))
    assert not torch.equal(weights(first[1]), weights(first[2]))
    assert [torch.equal(weights(a), weights(b)) for a, b in zip(first, second, strict=True)] == [True] * 3
    assert not first[2].student.training
    assert first[2].generator.training
    assert all(0 <= each.agreement <= 1 for each in first)


def test_a_recipe_that_leaves_its_estimator_open_is_checked_first(box):
    generous = job(kind="auto", step="auto")
    generous = replace(generous, config=replace(generous.config, budget=2_000))
    taken = list(stages(box, generous, (0.0, 0.5)))
    assert taken[0].queries == 0
    assert 1_000 <= taken[1].queries < 1_400


def test_a_gradient_that_stands_in_is_asked_for_nothing(box):
    free = [*stages(box, job(), (0.35, 1.0), lambda squash: TrueGradient(box, squash))]
    assert [each.queries for each in free] == [80, 200], "whole steps of 2 x 8 for the student alone"
    paid = [*stages(box, job(), (0.35, 1.0))]
    assert [each.queries for each in paid] == [96, 200], "of which 16 in 32 were the generator's"
    assert not torch.equal(weights(free[1]), weights(paid[1]))


# The whole


@pytest.mark.exhaustive
def test_a_comparison_tells_and_keeps_what_it_finds(box, tmp_path):
    told: list[str] = []
    names, conditions = ("sphere", "dct", "lattice", "lattice_dct_kl"), ("exact", "8bit_4decimals")
    out = tmp_path / "found"
    config = GradientsConfig(
        batches=2, batch_size=16, stages=(0.0, 0.5), conditions=conditions, estimators=names, free=True, out=str(out)
    )
    state = torch.get_rng_state()
    assert compare_gradients(box, job(), config, told.append) == out
    assert torch.equal(torch.get_rng_state(), state)
    assert told[0].startswith("White box: the teacher's own gradients")
    assert {path.name for path in out.iterdir()} == {*FILES, LOCK}
    assert (out / "gradients.png").read_bytes()[:4] == b"\x89PNG"

    content = json.loads((out / "gradients.json").read_text())
    assert [stage["queries"] for stage in content["stages"]] == [0, 128]
    found = {(row["share"], row["condition"], row["estimator"]): row for row in content["rows"]}
    expected = {("exact", "sphere"), ("exact", "dct"), ("exact", LIMIT)}
    expected |= {("8bit_4decimals", name) for name in ("sphere", *names[2:], LIMIT, f"{LIMIT}_kl")}
    assert set(found) == {(share, *pair) for share in (0.0, 0.5) for pair in expected}

    text = (out / "gradients.md").read_text()
    assert {key[2] for key, each in found.items() if each["objective"] == "kl"} == {"lattice_dct_kl", f"{LIMIT}_kl"}
    row = found[0.5, "8bit_4decimals", "lattice"]
    assert f" {row['weights_cosine']:.3f} +- {row['weights_cosine_sd']:.3f} " in text
    assert "student after 128 queries (50% of the budget)" in text
    assert "- `lattice`: step 1.0, space lattice" in text
    section = text.partition("## The true gradient for nothing")[2].splitlines()
    first, last = ([cell.strip() for cell in line.strip("|").split("|")] for line in section[4:6])
    assert (first[0], last[0]) == ("0%", "50%")
    assert first[1] == first[2], "nothing was learnt yet"
    assert last[1] == f"{content['stages'][1]['agreement']:.1%}"


def row(
    estimator: str, weights_cosine: float, queries: float = 2.0, spread: float = 0.01, condition: str = "exact"
) -> GradientRow:
    objective = "kl" if "kl" in estimator else "l1"
    return GradientRow(
        0.0, condition, estimator, objective, queries, 0.1, 0.01, 1.0, 0.1, weights_cosine, spread, 0.2, 1.0, {}
    )


def best_rows(rows: list[GradientRow]) -> dict[str, list[str]]:
    """The cells of the overview's table of best rows, by condition."""
    table = overview(GradientsResult({}, 64, [StageFacts(0.0, 0, 0.1)], rows, [])).partition("best row")[2]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == 8}


EXACT = CONDITIONS["exact"].title


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("sphere", 0.1), row("dct", 0.25), row("sphere_9", 0.9, 10.0), row(LIMIT, 1.0, 0.0)], ("dct", "2.5")),
        ([row("sphere", 0.1), row("dct", 0.05)], ("sphere", "1.0")),
        ([row("sphere", 0.001, spread=0.02), row("dct", 0.3)], ("dct", "noise")),
        ([row("sphere", -0.1, spread=0.2), row("dct", 0.1, spread=0.2)], ("none is clear", "")),
    ],
)
def test_the_best_row_is_named_at_the_published_price(rows, said):
    best = best_rows(rows)[EXACT]
    assert (best[0], best[4]) == said


def test_the_best_row_is_held_against_the_published_one_here_and_where_nothing_is_lost():
    rounded = "4decimals"
    rows = [row(PUBLISHED, 0.2), row(PUBLISHED, 0.05, condition=rounded), row("dct_kl", 0.3, condition=rounded)]
    expected = ["dct_kl", "kl", "0.300 +- 0.010", "0.050 +- 0.010", "6.0", "0.200 +- 0.010", "1.5"]
    assert best_rows(rows)[CONDITIONS[rounded].title] == expected
    assert best_rows(rows[1:])[CONDITIONS[rounded].title] == [*expected[:5], "", ""], "exact was not measured"
    assert best_rows(rows[2:]) == {}, "there is nothing to be held against"


def test_figures_that_are_no_numbers_are_null_in_the_file():
    findings = GradientsResult({}, 64, [StageFacts(0.0, 0, 0.1)], [row("sphere", math.nan)], [])
    assert json.loads(as_json(findings))["rows"][0]["weights_cosine"] is None


# What is asked for on the command line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--conditions", "exakt"], "--conditions: expected a condition (all, exact"),
        (["--estimators", "dtc"], "did you mean dct?"),
        (["--method", "knockoff"], "--method: expected a method with a generator, whose gradients are measured"),
        (["--stages", "0.5,0.1"], "--stages: expected increasing shares of the budget from 0 to 1, got 0.5,0.1"),
        (["--batches", "1"], "--batches: expected at least 2, for a spread, got 1"),
        (["--student.lr", "-1"], "--student.lr: expected a positive number"),
        (["--budget", "many"], "--budget: expected a number of images"),
        (["--teacher.label-mode", "label"], "--teacher.label-mode: expected scores"),
        (
            ["--teacher", "test_gradient_session:network"],
            "--teacher test_gradient_session:network: expected a network on this",
        ),
        (["--conditions", "tf32", "--device", "cpu"], "--conditions tf32: expected a CUDA device"),
        (["--out", "."], "--out: expected a new or empty directory"),
        (["--free", "true", "--method", "static"], "--free: expected a method that estimates gradients, got static"),
    ],
)
def test_a_mistake_is_one_line(flags, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    assert main(["gradients", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def network(images: Tensor) -> Tensor:
    return images


def test_the_command_measures_the_recipes_own_teacher(tmp_path: Path, capsys):
    words = ["--budget", "600", "--batches", "2", "--batch-size", "8", "--stages", "0", "--conditions", "exact"]
    assert main(["gradients", *words, "--estimators", "sphere", "--out", str(tmp_path / "x")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("White box: ")
    assert "digits.safetensors" in (tmp_path / "x" / "gradients.md").read_text()
    assert "| sphere    |        l1 |       2 |" in told


def test_memory_that_is_not_enough_is_one_line_with_this_commands_own_flag(box, tmp_path, monkeypatch):
    def too_large(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("dfme.benchmarks.gradients.session.measure", too_large)
    config = GradientsConfig(batches=2, stages=(0.0,), out=str(tmp_path / "x"))
    with pytest.raises(DfmeError, match=r"smaller --batch-size or --method\.batch-size"):
        compare_gradients(box, job(), config, lambda _: None)


def test_all_rows_fit_a_wire_of_eight_bits():
    spec = replace(SPEC, levels=256)
    for name, candidate in CANDIDATES.items():
        if candidate.config.kind != "auto":
            estimator = make_estimator(candidate.config, spec, torch.tanh, None, 0)
            assert estimator.cost(4) > 0, name


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_measured(box, tmp_path):
    """0.5.0 measured a stage first."""
    out, told = tmp_path / "found", []
    (out / LOCK).mkdir(parents=True)  # which stands for a read-only directory: root writes into those
    config = GradientsConfig(batches=2, batch_size=16, stages=(0.0,), conditions=("exact",), out=str(out))
    with pytest.raises(UserError, match="cannot write to the directory"):
        compare_gradients(box, job(), config, told.append)
    assert len(told) == 1
