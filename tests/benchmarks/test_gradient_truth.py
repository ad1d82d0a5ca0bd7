"""The gradients study: its truth against arithmetic, and each row against the truth of its own objective."""

from __future__ import annotations

import pytest
import torch
from gradient_toys import CPU, L1, SPEC, TEACHER, figures, net, untrained, white_box
from torch import Tensor, nn

from dfme.benchmarks.gradients.candidates import CANDIDATES, CONDITIONS, LIMIT
from dfme.benchmarks.gradients.measure import Sizes, measure
from dfme.benchmarks.gradients.stages import Stage
from dfme.benchmarks.gradients.truth import TrueGradient, true_gradients, weights_gradient
from dfme.estimators.base import Objective
from dfme.randomness import Streams
from dfme.spec import LabelMode
from dfme.students.losses import make_distance
from dfme.teachers.local.white_box import TorchWhiteBox


@pytest.fixture(scope="module")
def box() -> TorchWhiteBox:
    return white_box()


@pytest.fixture(scope="module")
def stage() -> Stage:
    return untrained()


# The truth


def test_the_truth_is_the_slope_of_the_objective_written_out_by_hand(box, stage):
    truth = true_gradients(box, stage, {"l1": L1}, 4, Streams(0, CPU)["latent"])["l1"]
    student, teacher = net(2).double(), net(1, TEACHER).double()
    u_BCHW, v_BCHW = truth.gen_op.detach().double(), torch.randn(4, *SPEC.shape, dtype=torch.double)

    def objective(u: Tensor) -> Tensor:
        log_p = teacher(u.tanh()).softmax(1).log()
        return -(student(u.tanh()) - (log_p - log_p.mean(1, keepdim=True))).abs().mean(1)

    slope_B = (objective(u_BCHW + 1e-7 * v_BCHW) - objective(u_BCHW - 1e-7 * v_BCHW)) / 2e-7
    torch.testing.assert_close((truth.grad_BCHW * v_BCHW).sum((1, 2, 3)), slope_B, rtol=1e-3, atol=1e-4)

    # In place of an estimate it is the same, whatever a query would answer.
    distance = make_distance("l1", LabelMode("probabilities"))
    known = Objective(pytest.fail, lambda x, answers: -distance(net(2)(x).double(), answers))
    stand_in = TrueGradient(box, torch.tanh).estimate(known, truth.gen_op.detach(), Streams(0, CPU)["directions"])
    torch.testing.assert_close((stand_in.grad_BCHW * v_BCHW).sum((1, 2, 3)), slope_B, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(stand_in.value_B, objective(u_BCHW), rtol=1e-4, atol=1e-5)
    assert stand_in.queries == 0


def test_truths_by_several_distances_are_of_one_batch_each_by_its_own(box, stage):
    kl = make_distance("kl", LabelMode("logits"))
    both = true_gradients(box, stage, {"l1": L1, "kl": kl}, 4, Streams(0, CPU)["latent"])
    alone = true_gradients(box, stage, {"l1": L1}, 4, Streams(0, CPU)["latent"])["l1"]
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
