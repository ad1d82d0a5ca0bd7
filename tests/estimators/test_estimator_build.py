"""Estimators made from settings: every choice in every space, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
import torch
from tiers import exhaustive
from torch import Tensor
from toy_objectives import OverImages, agreement, composed, featured, point, rng

from dfme.config.estimator_settings import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators import (
    DIRECTIONS,
    FORMS,
    MAKERS,
    SPACES,
    DirectionName,
    Form,
    Space,
    make_estimator,
)
from dfme.spec import ImageSpec

every_form = pytest.mark.parametrize("form", list(FORMS))
every_direction = pytest.mark.parametrize("direction", list(DIRECTIONS))
EIGHT_BIT = ImageSpec((1, 8, 8), (-1.0, 1.0), levels=256)


@pytest.mark.parametrize("form", ["forward", *exhaustive("central")])
@pytest.mark.parametrize(("space", "step"), [("pre_squash", 1e-3), ("image", 1e-3), ("lattice", 1.0)])
def test_every_space_gives_the_gradient_before_the_squashing(form: Form, space: Space, step: float) -> None:
    """Direction and scale, by a squashing onto [0, 1], with enough directions to be near the truth."""
    spec, toy = ImageSpec((1, 4, 4), (0.0, 1.0), 256), OverImages((1, 4, 4))
    u_BCHW = point(4, spec.shape)
    x_BCHW = u_BCHW.clone().requires_grad_()
    truth_BCHW = torch.autograd.grad(toy(torch.sigmoid(x_BCHW)).sum(), x_BCHW)[0]
    config = EstimatorConfig(directions=2048, form=form, direction="orthogonal", space=space, step=step)
    estimator = make_estimator(config, spec, torch.sigmoid, 1000, seed=0)
    estimate = estimator.estimate(toy, u_BCHW, rng())
    assert agreement(estimate.grad_BCHW, truth_BCHW) == pytest.approx((1, 1), abs=0.03)
    assert estimate.queries == estimator.cost(4) == 4 * (4096 if form == "central" else 2049)


@every_form
@every_direction
@pytest.mark.parametrize("space", list(SPACES))
def test_every_direction_works_in_every_space(form: Form, direction: DirectionName, space: Space) -> None:
    config = EstimatorConfig(directions=2, form=form, direction=direction, space=space)
    config = replace(config, step=2.0) if space == "lattice" else config
    objective, u_BCHW = OverImages(EIGHT_BIT.shape), point(3, EIGHT_BIT.shape)
    count: list[int] = []

    def counted(x_NCHW: Tensor) -> Tensor:
        count.append(len(x_NCHW))
        assert float(x_NCHW.abs().max()) <= 1  # images, whatever the space
        return objective(x_NCHW)

    estimator = make_estimator(config, EIGHT_BIT, torch.tanh, None, 0)
    estimate = estimator.estimate(featured(counted, u_BCHW), u_BCHW, rng())
    assert estimate.grad_BCHW.shape == u_BCHW.shape
    assert estimate.grad_BCHW.isfinite().all()
    assert sum(count) == estimator.cost(3) == estimate.queries


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize(("space", "step"), [("pre_squash", 1e-3), ("image", 1e-3), ("lattice", 1.0)])
def test_every_kind_works_in_every_space(kind: Any, space: Space, step: float) -> None:
    """Images reach the API within their bounds, the points first, and as many as stated."""
    spec, asked = ImageSpec((1, 4, 4), (-1.0, 1.0), 256), []
    objective, u_BCHW = composed(OverImages(spec.shape)), point(3, spec.shape)

    def observe(x_NCHW: Tensor) -> Tensor:
        asked.append(x_NCHW)
        return objective.query(x_NCHW)

    config = EstimatorConfig(kind=kind, directions=2, space=space, step=step)
    estimator = make_estimator(config, spec, torch.tanh, 4, seed=0)
    estimate = estimator.estimate(replace(objective, query=observe), u_BCHW, rng())
    assert estimate.grad_BCHW.shape == u_BCHW.shape
    assert estimate.grad_BCHW.isfinite().all()
    assert not estimate.grad_BCHW.requires_grad
    asked_NCHW = torch.cat(asked)
    assert len(asked_NCHW) == estimate.queries == 3 * (2 + 1)
    assert float(asked_NCHW.abs().max()) <= 1
    centre_BCHW = spec.quantise(u_BCHW.tanh()) if space == "lattice" else u_BCHW.tanh()
    torch.testing.assert_close(asked_NCHW[:3], centre_BCHW, atol=2.5 / 255, rtol=0)


@pytest.mark.gpu
@every_direction
def test_on_a_gpu_nothing_waits_on_the_lattice_either(direction: DirectionName) -> None:
    spec, toy = ImageSpec((3, 32, 32), (-1.0, 1.0), 256), OverImages((3, 32, 32))
    toy.toy.student, toy.toy.teacher = toy.toy.student.cuda(), toy.toy.teacher.cuda()
    u_BCHW, generator = point(8, spec.shape).cuda(), torch.Generator("cuda").manual_seed(0)
    config = EstimatorConfig(directions=4, direction=direction, space="lattice", step=1.0)
    estimator, objective = make_estimator(config, spec, torch.tanh, 16, 0), featured(toy, u_BCHW)
    estimator.estimate(objective, u_BCHW, generator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        estimate = estimator.estimate(objective, u_BCHW, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert estimate.grad_BCHW.isfinite().all()


def test_the_choices_are_the_registries() -> None:
    options = get_type_hints(EstimatorConfig)
    assert set(get_args(options["kind"])) == {"auto", *MAKERS}
    assert set(get_args(options["space"])) == set(SPACES)
    assert set(get_args(options["direction"])) == set(DIRECTIONS)
    assert set(get_args(options["form"])) == set(FORMS)


FLOATS = ImageSpec((1, 8, 8))


@pytest.mark.parametrize(
    ("changes", "spec", "named"),
    [
        ({"space": "lattice", "step": 1.0}, FLOATS, r"--estimator.space lattice: .*--teacher.levels.*pre_squash"),
        ({"space": "lattice"}, EIGHT_BIT, r"--estimator.step 0.001: expected a whole number of levels from 1 to 127"),
        ({"space": "lattice", "step": 1.5}, EIGHT_BIT, "--estimator.step 1.5: expected a whole number"),
        ({"space": "lattice", "step": 128.0}, EIGHT_BIT, "--estimator.step 128: .*from 1 to 127"),
        ({"space": "lattice", "step": 1.0}, ImageSpec((1, 8, 8), levels=2), "at least 3 levels.*got 2"),
        ({"space": "image", "step": 0.6}, FLOATS, "--estimator.step 0.6: .*smaller step"),
        ({"kind": "auto"}, FLOATS, "--estimator.kind: expected finite_difference"),
        ({"step": "auto"}, FLOATS, "--estimator.step: expected a number"),
        ({"kind": "prior_guided", "prior": "neighbours"}, FLOATS, r"--estimator.prior neighbours: .*image or lattice"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_by_their_flag(changes: dict[str, Any], spec: ImageSpec, named: str) -> None:
    with pytest.raises(UserError, match=named) as refusal:
        make_estimator(replace(EstimatorConfig(), **changes), spec, torch.tanh, None, 0)
    assert "\n" not in str(refusal.value)
