"""The gradients study: its figures against theory, and the conditions it measures under."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from gradient_toys import CPU, SPEC, figures, net, untrained, white_box
from tiers import exhaustive, exhaustive_rows
from torch import nn

from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS
from dfme.benchmarks.gradients.measure import Setting, Sizes, arithmetic, within
from dfme.benchmarks.gradients.stages import Stage
from dfme.precision import ieee_fp32, tf32
from dfme.teachers.local.white_box import TorchWhiteBox


@pytest.fixture(scope="module")
def box() -> TorchWhiteBox:
    return white_box()


@pytest.fixture(scope="module")
def stage() -> Stage:
    return untrained()


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


@pytest.mark.parametrize(
    ("condition", "survivor"), [("3decimals", "dct_kl"), *exhaustive_rows([("bf16", "sphere_step_0.1")])]
)
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


TELLING = ["range_reused", "neighbour_prior", "dct_9", "lattice_student_prior", "lattice_dct_kl"]


@pytest.mark.parametrize("name", [*TELLING, *exhaustive(*(name for name in CANDIDATES if name not in TELLING))])
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
        assert torch.equal(within(plain, "bf16", CPU)(x_BCHW), coarse_BK)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(within(plain, "ieee", CPU)(x_BCHW), plain.float()(x_BCHW.clone()).float()) is False
    assert torch.equal(within(plain, "ieee", CPU)(x_BCHW), plain(x_BCHW))


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
