"""The check of an upstream gradient refuses what does not fit, in words, and leaves nothing behind when it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dfme.compute import DeferredChecks
from dfme.errors import DfmeError, SeamError
from dfme.estimators.upstream import backward


@pytest.fixture
def leaf() -> Tensor:
    return torch.ones(2, 3, 4, 4, requires_grad=True)


def refused(leaf: Tensor, upstream: Tensor, deferred: DeferredChecks | None = None) -> str:
    """The message of the refusal, after checking that no gradient got through."""
    with pytest.raises(SeamError) as caught:
        backward(leaf * 2, upstream, deferred)
    assert leaf.grad is None
    assert isinstance(caught.value, (ValueError, DfmeError))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_fits_goes_through_unchanged(leaf: Tensor) -> None:
    upstream = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    backward(leaf * 2, upstream, DeferredChecks())
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, 2 * upstream)
    assert upstream.grad is None


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4, 4), (1, 3, 4, 4), (), (2, 48), (4, 3, 4, 4)])
def test_another_shape_is_refused_with_both_shapes(leaf: Tensor, shape: tuple[int, ...]) -> None:
    message = refused(leaf, torch.ones(shape))
    assert "(2, 3, 4, 4)" in message
    assert str(shape) in message


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_another_dtype_is_refused_with_both(leaf: Tensor, dtype: torch.dtype) -> None:
    message = refused(leaf, torch.ones(2, 3, 4, 4, dtype=dtype))
    assert "torch.float32" in message
    assert str(dtype) in message
    assert message.count("(2, 3, 4, 4)") == 2


def test_another_device_is_refused_with_both(leaf: Tensor) -> None:
    message = refused(leaf, torch.ones(2, 3, 4, 4, device="meta"))
    assert "device cpu" in message
    assert "device meta" in message


def test_all_differences_are_told_at_once(leaf: Tensor) -> None:
    message = refused(leaf, torch.ones(5, device="meta", dtype=torch.float64))
    assert "shape and dtype and device must match" in message


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("deferred", [None, DeferredChecks()])
def test_non_finite_values_are_refused_and_counted(leaf: Tensor, bad: float, deferred: DeferredChecks | None) -> None:
    upstream = torch.ones(2, 3, 4, 4)
    upstream[1, 2, 3, :2] = bad
    message = refused(leaf, upstream, deferred)
    assert "2 of 96" in message
    assert message.count("(2, 3, 4, 4)") == 2


@pytest.mark.parametrize("output", [torch.ones(3), torch.ones(3, requires_grad=True)])
def test_an_output_without_a_graph_is_refused(output: Tensor) -> None:
    with pytest.raises(SeamError, match=f"requires_grad={output.requires_grad} and no grad_fn"):
        backward(output, torch.ones(3))
    assert output.grad is None


@pytest.mark.gpu
def test_an_accelerator_reports_non_finite_values_when_asked() -> None:
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    deferred = DeferredChecks()
    backward(leaf * 2, torch.full_like(leaf, torch.nan), deferred)
    with pytest.raises(SeamError, match="3 of 3"):
        deferred.verify()
    with pytest.raises(SeamError, match="3 of 3"):
        backward(leaf * 2, torch.full_like(leaf, torch.nan))
