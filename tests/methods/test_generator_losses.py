"""What generators without queries descend on: by hand on small numbers, and in the right
direction.
"""

import math

import pytest
import torch
from tables import exhaustive_rows
from toys import LinearTeacher, make_method, make_parts, small_net

from dfme.methods.generator_losses import (
    class_diversity,
    pairwise_distance,
    predict,
    students_disagreement,
)
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))


def logs(*probabilities: list[list[float]]) -> torch.Tensor:
    return torch.tensor(probabilities).log()


def test_spread_is_disguides_deviation_by_hand():
    """Two students at .9/.1 and .5/.5: n - 1 deviations of .4 / sqrt 2 in both classes."""
    scores_EBK = logs([[0.9, 0.1], [0.3, 0.7]], [[0.5, 0.5], [0.3, 0.7]])
    assert students_disagreement(scores_EBK).item() == pytest.approx(
        0.4 / math.sqrt(2) / 2, abs=1e-5
    )


def test_spread_has_a_finite_slope_where_the_students_agree():
    scores_EBK = logs([[0.3, 0.7]], [[0.3, 0.7]]).requires_grad_()
    students_disagreement(scores_EBK).backward()
    assert scores_EBK.grad.isfinite().all()


def test_apart_is_the_mean_over_pairs_by_hand():
    scores_EBK = torch.tensor([[[0.0, 0.0]], [[1.0, 3.0]], [[2.0, 2.0]]])
    assert pairwise_distance(scores_EBK[:2]).item() == 2.0
    assert pairwise_distance(scores_EBK).item() == pytest.approx((2.0 + 2.0 + 1.0) / 3)


def test_diversity_is_least_where_all_classes_are_alike():
    assert class_diversity(logs([[0.5, 0.5], [0.5, 0.5]])).item() == pytest.approx(-math.log(2))
    assert class_diversity(logs([[0.99, 0.01], [0.01, 0.99]])).item() == pytest.approx(-math.log(2))
    one_sided = class_diversity(logs([[0.9, 0.1], [0.7, 0.3]])).item()
    assert one_sided == pytest.approx(0.8 * math.log(0.8) + 0.2 * math.log(0.2))


def test_what_is_seen_is_seen_in_eval_mode_and_the_mode_stays():
    nets = [small_net(SPEC, seed=seed) for seed in (0, 1)]
    x_BCHW = torch.rand(6, 1, 8, 8)
    scores_EBK = predict(nets, x_BCHW)
    assert all(net.training for net in nets)
    with torch.no_grad():
        assert torch.allclose(scores_EBK[1], nets[1].eval()(x_BCHW))


def test_before_tanh_shows_the_students_what_the_squashing_has_not_seen():
    parts = make_parts(LinearTeacher(SPEC), 10**9, count=2)
    u_BCHW = 3 * torch.randn(4, 1, 8, 8)
    of_output = make_method("dual_students", parts, before_tanh=True).generator_loss(u_BCHW)
    of_image = make_method("dual_students", parts).generator_loss(u_BCHW)
    assert of_output == -pairwise_distance(predict(parts.students.nets, u_BCHW))
    assert of_image == -pairwise_distance(
        predict(parts.students.nets, parts.generator.squash(u_BCHW))
    )
    assert of_output != of_image


@pytest.mark.parametrize(
    ("name", "measure", "options"),
    [
        ("disguide", students_disagreement, {}),
        ("disguide", lambda scores_EBK: -class_diversity(scores_EBK), {"diversity": 100.0}),
        *exhaustive_rows([("dual_students", pairwise_distance, {})]),
    ],
)
def test_the_generator_learns_what_its_loss_asks_for(name, measure, options):
    """With the students held still: images that they differ on, or of all classes; on fresh
    latents.
    """
    parts = make_parts(LinearTeacher(SPEC), 10**9, count=2)
    method = make_method(name, parts, batch_size=64, generator_lr=3e-2, **options)
    z = torch.randn(256, 8, generator=torch.Generator().manual_seed(5))

    def measured() -> float:
        with torch.no_grad():
            return measure(
                predict(parts.students.nets, parts.generator.squash(parts.generator(z)))
            ).item()

    before = measured()
    for _ in range(8):
        method.generator_step()
    assert measured() > (1.0 if options else 1.1) * before
