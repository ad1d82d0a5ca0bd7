"""Estimators made from settings: every choice in every space, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from toys import OverImages, composed, point, rng

from dfme.config.estimator_settings import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators.base import DIRECTIONS, SPACES
from dfme.estimators.build import make_estimator
from dfme.estimators.differences import FORMS
from dfme.spec import ImageSpec

every_form = pytest.mark.parametrize("form", list(FORMS))
EIGHT_BIT = ImageSpec((1, 8, 8), (-1.0, 1.0), levels=256)


EVERY = [
    *({"direction": name} for name in DIRECTIONS),
    {"kind": "synthetic"},
]


@every_form
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_every_kind_and_direction_works_in_every_space(
    form: str, settings: dict[str, Any], space: str
) -> None:
    """As many images as stated reach the API, within bounds; forward differences ask the points
    first.
    """
    step = 2.0 if space == "lattice" else 1e-3
    config = EstimatorConfig(directions=2, form=form, space=space, step=step, **settings)
    objective, u_BCHW = composed(OverImages(EIGHT_BIT.shape)), point(3, EIGHT_BIT.shape)
    objective = replace(objective, features_BFHW=torch.randn(3, 5, 8, 8, generator=rng(11)))
    estimator = make_estimator(config, EIGHT_BIT, torch.tanh, 4, seed=0)
    cost = estimator.cost(3)
    estimate = estimator.estimate(objective, u_BCHW, rng())
    assert estimate.grad_BCHW.shape == u_BCHW.shape
    assert estimate.grad_BCHW.isfinite().all()
    assert not estimate.grad_BCHW.requires_grad
    asked_NCHW = torch.cat([x_NCHW for x_NCHW, _ in objective.asked])
    assert len(asked_NCHW) == estimate.queries == cost
    assert float(asked_NCHW.abs().max()) <= 1
    if form == "forward":
        torch.testing.assert_close(
            asked_NCHW[:3], EIGHT_BIT.quantise(u_BCHW.tanh()), atol=5 / 255, rtol=0
        )


@pytest.mark.gpu
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("settings", EVERY[:-1], ids=str)
def test_on_a_gpu_directions_are_drawn_there_and_nothing_waits(
    settings: dict[str, Any], space: str
) -> None:
    spec, toy = ImageSpec((1, 8, 8), (-1.0, 1.0), 256), OverImages((1, 8, 8))
    toy.toy.student, toy.toy.teacher = toy.toy.student.cuda(), toy.toy.teacher.cuda()
    u_BCHW, generator = point(64, spec.shape).cuda(), torch.Generator("cuda").manual_seed(0)
    config = EstimatorConfig(space=space, step=1.0 if space == "lattice" else 1e-3, **settings)
    estimator = make_estimator(config, spec, torch.tanh, 100, 0)
    objective = replace(composed(toy), features_BFHW=torch.ones(64, 2, 8, 8, device="cuda"))
    estimator.estimate(objective, u_BCHW, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimate = estimator.estimate(objective, u_BCHW, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert estimate.grad_BCHW.device == u_BCHW.device
    assert estimate.grad_BCHW.isfinite().all()


FLOATS = ImageSpec((1, 8, 8))


@pytest.mark.parametrize(
    ("changes", "spec", "named"),
    [
        (
            {"space": "lattice", "step": 1.0},
            FLOATS,
            "--estimator.space lattice: .*--teacher.levels",
        ),
        (
            {"space": "lattice"},
            EIGHT_BIT,
            "--estimator.step 0.001: .* whole number of levels from 1 to 127",
        ),
        (
            {"space": "lattice", "step": 1.5},
            EIGHT_BIT,
            "--estimator.step 1.5: expected a whole number",
        ),
        ({"space": "lattice", "step": 128.0}, EIGHT_BIT, "--estimator.step 128: .*from 1 to 127"),
        (
            {"space": "lattice", "step": 1.0},
            ImageSpec((1, 8, 8), levels=2),
            "at least 3 levels.*got 2",
        ),
        (
            {"space": "image", "step": 0.6},
            FLOATS,
            "--estimator.step: .*got 0.6; take a smaller step",
        ),
        ({"kind": "auto"}, FLOATS, "--estimator.kind: expected another by now"),
        ({"step": "auto"}, FLOATS, "--estimator.step: expected a number"),
    ],
)
def test_impossible_settings_are_refused_by_their_flag(
    changes: dict[str, Any], spec: ImageSpec, named: str
) -> None:
    with pytest.raises(UserError, match=named) as refusal:
        make_estimator(replace(EstimatorConfig(), **changes), spec, torch.tanh, None, 0)
    assert "\n" not in str(refusal.value)
