"""The arithmetic of the student's part of a difference: IEEE fp32, or a GPU's TF32, flagged on a
CPU.
"""

from functools import partial
from typing import Any

import pytest
import torch
from numerics import flagged
from torch import Tensor
from torch.nn.functional import cosine_similarity
from toys import LinearTeacher, make_method, make_parts

from dfme.compute import device as device_module
from dfme.estimators import approximate
from dfme.estimators.base import Objective
from dfme.nets import build_net
from dfme.spec import ImageSpec

pytestmark = pytest.mark.full("generator")

SPEC = ImageSpec((1, 8, 8), levels=256)


def method_with(spec: ImageSpec = SPEC, **settings: Any) -> Any:
    return make_method("dfme", make_parts(LinearTeacher(spec), 10**6), batch_size=40, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "central", "directions": 3},
        {"kind": "synthetic", "every": 2},
    ],
)
def test_tf32_is_in_the_students_part_alone(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    inside, asked = flagged(monkeypatch), list[str]()
    monkeypatch.setattr(approximate, "has_tf32", lambda device: True)
    method = method_with(arithmetic="tf32", **settings)
    assert method.prepare() == ("arithmetic: TF32 in differences, whatever that leaves of them",)

    def query(x_NCHW: Tensor) -> Tensor:
        asked.append("query" + "".join(inside))
        return x_NCHW.flatten(1)

    def value(x_NCHW: Tensor, answers_ND: Tensor) -> Tensor:
        asked.append("value" + "".join(inside))
        return (x_NCHW.flatten(1) * answers_ND).sum(1)

    method.approximate_gradients(
        Objective(query, value), torch.randn(40, *SPEC.shape), torch.Generator()
    )
    assert set(asked) == {"query", "valuetf32"}


def test_where_there_is_no_tf32_it_is_ieee_and_a_line_says_so() -> None:
    tf32, ieee = method_with(arithmetic="tf32"), method_with()
    (line,) = tf32.prepare()
    assert "--estimator.arithmetic tf32 is idle on cpu" in line
    assert ieee.prepare() == ()
    for method in (tf32, ieee):
        method.step()
    for left, right in zip(tf32.generator.parameters(), ieee.generator.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_check_tries_steps_in_the_arithmetic_that_they_are_taken_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is coarser needs a longer step: here values that jump by .05."""
    inside, steps = flagged(monkeypatch), {}
    monkeypatch.setattr(approximate, "has_tf32", lambda device: True)
    for setting in ("ieee", "tf32"):
        method = method_with(arithmetic=setting, step="auto")
        value = method.disagreement

        def jumping(value, *given):
            return (20 * value(*given)).round() / 20 if inside else value(*given)

        method.disagreement = partial(jumping, value)
        method.prepare()
        steps[setting] = method.facts["estimator"]["step"]
    assert steps["tf32"] > steps["ieee"]


@pytest.mark.gpu
def test_a_gpus_own_tf32() -> None:
    """It changes the differences with tf32 and not with ieee, whatever holds outside."""
    cuda, spec = torch.device("cuda"), ImageSpec((3, 32, 32))
    net = build_net("cnn_small", spec.shape, 10).to(cuda).eval()
    u_BCHW = torch.randn(128, *spec.shape, device=cuda)

    def differences(setting: str) -> Tensor:
        gradients = method_with(spec, arithmetic=setting).approximate_gradients
        gradients._in_tf32, gradients._device = setting == "tf32", cuda
        objective = Objective(lambda x: x.flatten(1), lambda x, _: net(x).double().square().sum(1))
        return gradients(
            objective, u_BCHW, torch.Generator(cuda).manual_seed(0)
        ).differences_BM.flatten()

    exact = differences("ieee")
    with device_module.tf32():
        torch.testing.assert_close(differences("ieee"), exact, rtol=1e-3, atol=1e-6)
    assert cosine_similarity(exact, differences("tf32"), dim=0) < 0.5
