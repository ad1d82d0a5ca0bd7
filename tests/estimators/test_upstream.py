"""The check of an upstream gradient: what fits goes on into the graph, what does not is refused in
words.
"""

import pytest
import torch
from damage import refused
from torch import Tensor

from dfme.compute.modules import DeferredChecks
from dfme.errors import DfmeError, SeamError
from dfme.estimators.differences import check_upstream

LIKE = (2, 3, 4, 4)


@pytest.fixture
def output() -> Tensor:
    return torch.ones(LIKE, requires_grad=True) * 2


def refusal(output: Tensor, upstream: Tensor, deferred: DeferredChecks | None = None) -> str:
    """A ValueError to who knows torch alone."""
    error = refused("", check_upstream, output, upstream, deferred, error=SeamError)
    assert isinstance(error, (ValueError, DfmeError))
    return str(error)


@pytest.mark.parametrize("cut", ["hidden", "active", "out"])
def test_a_chain_cut_at_any_place_gives_what_autograd_gives(cut: str) -> None:
    """linear - ReLU - linear - mean squared error, the gradient at the cut written by hand."""
    rng = torch.Generator().manual_seed(3)
    x, first, second, target = (
        torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_(shape != (6, 1))
        for shape in ((6, 5), (5, 4), (4, 1), (6, 1))
    )
    hidden = x @ first
    active = hidden.relu()
    out = active @ second
    at = {"hidden": hidden, "active": active, "out": out}
    truth = torch.autograd.grad((out - target).square().mean(), [x, first], retain_graph=True)
    by_hand = {"out": 2 * (out - target) / 6}
    by_hand["active"] = by_hand["out"] @ second.T
    by_hand["hidden"] = by_hand["active"] * (hidden > 0)
    check_upstream(at[cut], by_hand[cut].detach())
    at[cut].backward(gradient=by_hand[cut].detach())
    torch.testing.assert_close((x.grad, first.grad), truth)


@pytest.mark.parametrize(
    ("upstream", "named"),
    [
        *(
            (torch.ones(shape), str(shape))
            for shape in ((2, 3, 4, 5), (3, 4, 4), (1, 3, 4, 4), (), (2, 48))
        ),
        *((torch.ones(LIKE, dtype=dtype), str(dtype)) for dtype in (torch.float64, torch.bfloat16)),
        (torch.ones(LIKE, device="meta"), "device meta"),
        (
            torch.ones(5, device="meta", dtype=torch.float64),
            "shape and dtype and device must match",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_shape_dtype_or_device_is_refused_with_both(
    output: Tensor, upstream: Tensor, named: str
) -> None:
    message = refusal(output, upstream)
    assert f"{LIKE}, dtype torch.float32, device cpu" in message
    assert named in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("deferred", [None, DeferredChecks()])
def test_non_finite_values_are_refused_and_counted(
    output: Tensor, bad: float, deferred: DeferredChecks | None
) -> None:
    upstream = torch.ones(LIKE)
    upstream[1, 2, 3, :2] = bad
    assert "2 of 96" in refusal(output, upstream, deferred)


@pytest.mark.parametrize("output", [torch.ones(3), torch.ones(3, requires_grad=True)])
def test_an_output_without_a_graph_is_refused(output: Tensor) -> None:
    assert f"requires_grad={output.requires_grad} and no grad_fn" in refusal(output, torch.ones(3))


@pytest.mark.gpu
def test_an_accelerator_reports_non_finite_values_when_asked() -> None:
    output = torch.ones(3, device="cuda", requires_grad=True) * 2
    deferred = DeferredChecks()
    check_upstream(output, torch.full_like(output, torch.nan), deferred)
    with pytest.raises(SeamError, match="3 of 3"):
        deferred.verify()
    assert "3 of 3" in refusal(output, torch.full_like(output, torch.nan))
