"""The laboratory: its truth against arithmetic, its figures against theory, its files, what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dfme.benchmarks.gradients.arithmetic import Within, arithmetic
from dfme.benchmarks.gradients.candidates import CANDIDATES, LIMIT, PUBLISHED
from dfme.benchmarks.gradients.conditions import CONDITIONS
from dfme.benchmarks.gradients.measure import GradientRow, Setting, Sizes, measure
from dfme.benchmarks.gradients.options import GradientsConfig
from dfme.benchmarks.gradients.session import FILES, compare_gradients
from dfme.benchmarks.gradients.stages import Stage, stages
from dfme.benchmarks.gradients.table import GradientsResult, StageFacts, as_json, overview
from dfme.benchmarks.gradients.truth import true_gradient, true_gradients, weights_gradient
from dfme.cli.main import main
from dfme.compute import ieee_fp32, tf32
from dfme.config.settings import EstimatorConfig, EvaluationConfig, ExtractConfig, Job, StudentConfig, TeacherConfig
from dfme.errors import DfmeError
from dfme.estimators.build import make_estimator
from dfme.methods.configs import DfmeConfig
from dfme.nets.generators import Generator
from dfme.randomness import Streams
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance
from teachers.local.pytorch import TorchTeacher
from teachers.local.white_box import TorchWhiteBox

SPEC = ImageSpec((1, 8, 8), (-1.0, 1.0))
CPU = torch.device("cpu")
TEACHER = 12.0  # sharpness that makes its answers confident, as trained ones are
L1 = make_distance("l1", LabelMode("logits"))


def net(seed: int, sharpness: float = 3.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))
    made[-1].weight.data.mul_(sharpness)
    return made.eval()


@pytest.fixture(scope="module")
def box() -> TorchWhiteBox:
    return TorchWhiteBox(TorchTeacher(net(1, TEACHER), SPEC, 5))


@pytest.fixture(scope="module")
def stage() -> Stage:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        generator = Generator(16, SPEC)
    return Stage(0.0, 0, 0.2, net(2), generator)


def figures(box: TorchWhiteBox, stage: Stage, condition: str, *names: str, batches: int = 3) -> dict[str, GradientRow]:
    candidates = {name: CANDIDATES[name] for name in names}
    rows = measure(box, stage, condition, CONDITIONS[condition], candidates, Sizes(batches, 64, 0))
    return {row.estimator: row for row in rows}


# The truth


def test_the_truth_is_the_slope_of_the_objective_written_out_by_hand(box, stage):
    truth = true_gradient(box, stage, L1, 4, Streams(0, CPU)["latent"])
    student, teacher = net(2).double(), net(1, TEACHER).double()
    u_BCHW, v_BCHW = truth.gen_op.detach().double(), torch.randn(4, *SPEC.shape, dtype=torch.double)

    def objective(u: Tensor) -> Tensor:
        log_p = teacher(u.tanh()).softmax(1).log()
        return -(student(u.tanh()) - (log_p - log_p.mean(1, keepdim=True))).abs().mean(1)

    slope_B = (objective(u_BCHW + 1e-7 * v_BCHW) - objective(u_BCHW - 1e-7 * v_BCHW)) / 2e-7
    torch.testing.assert_close((truth.grad_BCHW * v_BCHW).sum((1, 2, 3)), slope_B, rtol=1e-3, atol=1e-4)


def test_truths_by_several_distances_are_of_one_batch_each_by_its_own(box, stage):
    kl = make_distance("kl", LabelMode("logits"))
    both = true_gradients(box, stage, {"l1": L1, "kl": kl}, 4, Streams(0, CPU)["latent"])
    alone = true_gradient(box, stage, L1, 4, Streams(0, CPU)["latent"])
    assert torch.equal(both["l1"].grad_BCHW, alone.grad_BCHW)
    x_BCHW = both["kl"].gen_op.detach().tanh().requires_grad_()
    log_p, log_q = net(1, TEACHER)(x_BCHW).log_softmax(1), net(2)(x_BCHW).log_softmax(1)
    (grad_BCHW,) = torch.autograd.grad(-nn.functional.kl_div(log_q, log_p, reduction="sum", log_target=True), x_BCHW)
    chained_BCHW = grad_BCHW * (1 - x_BCHW.detach() ** 2)
    torch.testing.assert_close(both["kl"].grad_BCHW, chained_BCHW, rtol=1e-3, atol=1e-5)


def test_the_weights_gradient_is_what_the_seam_leaves_in_the_weights(stage):
    gen_op = stage.generator(torch.randn(6, 16))
    grad_BCHW = torch.randn_like(gen_op)
    weights_P = weights_gradient(stage.generator, gen_op, grad_BCHW)
    assert all(parameter.grad is None for parameter in stage.generator.parameters())
    gen_op.backward(grad_BCHW / 6)
    left = torch.cat([parameter.grad.flatten() for parameter in stage.generator.parameters()])
    stage.generator.zero_grad()
    torch.testing.assert_close(weights_P, left)


def test_the_limit_is_the_truth_where_nothing_is_lost_and_less_where_answers_are_rounded(box, stage):
    exact, rounded = (figures(box, stage, name, "sphere")[LIMIT] for name in ("exact", "2decimals"))
    assert exact.cosine == pytest.approx(1.0, abs=1e-4)
    assert exact.scale == pytest.approx(1.0, abs=1e-3)
    assert rounded.cosine < 0.98
    assert exact.queries == rounded.queries == 0


def test_a_row_is_held_against_the_truth_of_its_own_objective(box, stage):
    found = figures(box, stage, "2decimals", "sphere", "dct_kl", "auto")
    assert {name: row.objective for name, row in found.items()} == {
        "sphere": "l1",
        "dct_kl": "kl",
        "auto": "kl",
        LIMIT: "l1",
        f"{LIMIT}_kl": "kl",
    }
    assert found[f"{LIMIT}_kl"].cosine > 0.99 > 0.98 > found[LIMIT].cosine, "kl outlives the rounding, l1 does not"
    assert found["dct_kl"].weights_cosine > found["sphere"].weights_cosine
    assert set(figures(box, stage, "2decimals", "dct_kl", batches=2)) == {"dct_kl", f"{LIMIT}_kl"}


def test_a_student_that_learns_by_kl_has_one_truth(box, stage):
    names = ("sphere", "sphere_kl")
    sizes = Sizes(2, 16, 0, "kl")
    rows = measure(box, stage, "4decimals", CONDITIONS["4decimals"], {name: CANDIDATES[name] for name in names}, sizes)
    assert [(row.estimator, row.objective) for row in rows] == [*((name, "kl") for name in names), (LIMIT, "kl")]
    assert rows[0].cosine == rows[1].cosine


def test_where_no_row_says_anything_there_is_nothing_to_measure(box, stage):
    assert figures(box, stage, "exact", "lattice") == {}


# The figures


def expected_cosine(directions: int, pixels: int = 64) -> float:
    """Mean cosine to a fixed gradient of the sum of slopes times random unit directions, by drawing them."""
    rng = torch.Generator().manual_seed(9)
    v_NMD = nn.functional.normalize(torch.randn(4_000, directions, pixels, generator=rng), dim=2)
    estimate_ND = (v_NMD[:, :, :1] * v_NMD).sum(1)  # the gradient is the first axis
    return float((estimate_ND[:, 0] / estimate_ND.norm(dim=1)).mean())


def test_random_directions_do_as_well_as_theory_says(box, stage):
    found = figures(box, stage, "exact", "sphere", "sphere_9")
    assert found["sphere"].cosine == pytest.approx(math.sqrt(2 / (math.pi * 64)), rel=0.2)
    for name, directions in (("sphere", 1), ("sphere_9", 9)):
        assert found[name].cosine == pytest.approx(expected_cosine(directions), rel=0.2)
        assert found[name].scale == pytest.approx(1.0, abs=0.5)
        assert found[name].queries == directions + 1
    assert found["sphere"].weights_cosine < found["sphere_9"].weights_cosine
    assert found["sphere_9"].sum_cosine > found["sphere_9"].weights_cosine, "summing leaves noise behind"


def test_eight_bits_kill_the_published_step_and_whole_levels_survive(box, stage):
    exact = figures(box, stage, "exact", "sphere")["sphere"]
    found = figures(box, stage, "8bit", "sphere", "lattice", "sphere_step_0.1")
    assert abs(found["sphere"].cosine) < 0.4 * exact.cosine
    assert found["lattice"].cosine > 0.7 * exact.cosine
    assert found["sphere_step_0.1"].cosine > 0.7 * exact.cosine
    assert found["lattice"].scale == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize(("condition", "survivor"), [("bf16", "sphere_step_0.1"), ("3decimals", "dct_kl")])
def test_lost_precision_kills_the_published_step(box, stage, condition, survivor):
    exact = figures(box, stage, "exact", "sphere")["sphere"]
    found = figures(box, stage, condition, "sphere", survivor)
    assert abs(found["sphere"].cosine) < 0.4 * exact.cosine
    assert found[survivor].weights_cosine > 0.5 * exact.weights_cosine


def test_a_reused_answer_is_not_among_the_queries_of_the_estimate(box, stage):
    found = figures(box, stage, "exact", "sphere", "sphere_reused")
    assert found["sphere"].queries == found["sphere_reused"].queries == 2
    assert found["sphere_reused"].cosine > found["sphere"].cosine


def test_rows_have_a_spread_a_time_and_come_again_the_same(box, stage):
    first, second = (figures(box, stage, "exact", "sphere", "dct") for _ in range(2))
    for name, row in first.items():
        assert row.milliseconds > 0
        assert replace(row, milliseconds=0.0) == replace(second[name], milliseconds=0.0)
    assert first["sphere"].cosine_sd > 0
    assert first["sphere"].weights_cosine_sd > 0


def test_what_the_check_chooses_is_estimated_with(box, stage):
    row = figures(box, stage, "8bit", "auto")["auto"]
    assert row.settings["kind"] == "finite_difference"
    assert isinstance(row.settings["step"], float)
    assert row.queries <= 2, "what the check asked is charged to it"
    assert row.cosine > 0.05


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_row_can_be_estimated(box, stage, name):
    condition = next(key for key, each in CONDITIONS.items() if CANDIDATES[name].fits(each))
    row = figures(box, stage, condition, name, batches=2)[name]
    assert math.isfinite(row.cosine)
    assert row.queries == (10 if name.endswith("_9") else 2), "all the others at the published price"


def test_the_conditions_are_what_they_are_called(box, stage):
    seen = {name: Setting(box, stage, each, Sizes(2, 8, 0)).oracle for name, each in CONDITIONS.items()}
    x_BCHW = 2 * torch.rand(8, *SPEC.shape) - 1
    answers = {name: oracle(x_BCHW) for name, oracle in seen.items() if name != "tf32"}
    exact = answers["exact"]
    torch.testing.assert_close(answers["4decimals"], exact.round(decimals=4))
    torch.testing.assert_close(answers["8bit"], seen["exact"](seen["8bit"].spec.quantise(x_BCHW)))
    assert int(answers["top3"].isnan().sum()) == 8 * 2
    assert 1e-6 < (answers["bf16"] - exact).abs().max() < 0.1
    assert {oracle.spec.levels for name, oracle in seen.items() if "8bit" in name} == {256}


# Arithmetic


def test_a_net_keeps_its_arithmetic_inside_an_estimate():
    x_BCHW, plain = torch.randn(4, *SPEC.shape), net(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse_BK = plain(x_BCHW).float()
    with ieee_fp32():
        assert torch.equal(Within(plain, "bf16", CPU)(x_BCHW), coarse_BK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(Within(plain, "ieee", CPU)(x_BCHW), plain.float()(x_BCHW.clone()).float()) is False
    assert torch.equal(Within(plain, "ieee", CPU)(x_BCHW), plain(x_BCHW))


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="older switches")
def test_tf32_holds_inside_and_everything_is_put_back():
    def switches() -> list[str]:
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return [cuda.fp32_precision, cudnn.conv.fp32_precision, torch.backends.fp32_precision]

    before = switches()
    with ieee_fp32():
        assert switches()[:2] == ["ieee", "ieee"]
        with tf32(), arithmetic("tf32", CPU):
            assert switches()[:2] == ["tf32", "tf32"]
        assert switches()[:2] == ["ieee", "ieee"]
    assert switches() == before


# Stages


def job(**changes: object) -> Job:
    config = ExtractConfig(
        budget=200,
        student=StudentConfig(arch="cnn_small", lr=0.05, replay_steps=1, replay_batch=8),
        evaluation=EvaluationConfig(dataset="none"),
    )
    method = DfmeConfig(batch_size=8, student_steps=2, latent_size=16)
    return Job(config, TeacherConfig(), {}, "dfme", method, EstimatorConfig(**changes))


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


# The whole


def test_a_comparison_tells_and_keeps_what_it_finds(box, tmp_path):
    told: list[str] = []
    names, conditions = ("sphere", "dct", "lattice", "lattice_dct_kl"), ("exact", "8bit_4decimals")
    out = tmp_path / "found"
    config = GradientsConfig(
        batches=2, batch_size=16, stages=(0.0, 0.5), conditions=conditions, estimators=names, out=str(out)
    )
    state = torch.get_rng_state()
    assert compare_gradients(box, job(), config, told.append) == out
    assert torch.equal(torch.get_rng_state(), state)
    assert told[0].startswith("White box: the teacher's own gradients")
    assert {path.name for path in out.iterdir()} == set(FILES)
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
        (["--teacher", "test_laboratory:network"], "--teacher test_laboratory:network: expected a network on this"),
        (["--conditions", "tf32", "--device", "cpu"], "--conditions tf32: expected a CUDA device"),
        (["--out", "."], "--out: expected a new or empty directory"),
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
