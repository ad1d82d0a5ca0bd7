"""The only place where a gradient made without autograd enters a graph.

The teacher behind an API gives answers, not gradients. Its part of the chain rule is estimated from answers alone
(``dfme.estimators``): a graph cut at a tensor ``t`` needs to know of everything behind the cut only d loss / d t.
autograd would accept some wrong ones in silence (it casts dtypes, and a NaN reaches every weight), so they are
refused here, in words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dfme.compute import DeferredChecks
from dfme.errors import SeamError


def check_upstream(output: Tensor, upstream_grads: Tensor, deferred: DeferredChecks | None = None) -> None:
    """Refuse, in words, a gradient that autograd must not be handed at ``output``.

    ``upstream_grads``, d loss / d output, has exactly the output's shape, dtype and device. With ``deferred``,
    non-finite values on an accelerator are reported by its ``verify`` instead of stalling the queue here; on the
    CPU, or without it, they are reported at once.

    Raises:
        SeamError: the output has no graph, or the gradient does not fit it or is not finite
    """
    if output.grad_fn is None:
        raise SeamError(
            "generator output: expected a tensor with a graph behind it, "
            f"got requires_grad={output.requires_grad} and no grad_fn; "
            "was it detached, or made under no_grad? Hand over the output itself"
        )
    advice = {
        "shape": "give one number per element, without broadcasting",
        "dtype": "convert it with .to(output.dtype)",
        "device": "move it with .to(output.device)",
    }
    unlike = [name for name in advice if getattr(output, name) != getattr(upstream_grads, name)]
    if unlike:
        raise SeamError(
            f"upstream gradient: expected {_describe(output)} like the output, got {_describe(upstream_grads)}; "
            f"{' and '.join(unlike)} must match: {'; '.join(advice[name] for name in unlike)}"
        )
    finite = torch.isfinite(upstream_grads).sum()
    total, described = upstream_grads.numel(), _describe(upstream_grads)

    def error() -> Exception:  # keeps a count, not the tensor, until it is read
        return SeamError(
            f"upstream gradient: expected finite numbers for an output of {described}, got "
            f"{total - int(finite)} of {total} that are NaN or infinite in a gradient of {described}; "
            "look at the objective's values, the step and the learning rates"
        )

    checker = deferred if deferred is not None else DeferredChecks()
    checker.expect(finite == total, error)
    if deferred is None:
        checker.verify()


def backward(output: Tensor, upstream_grads: Tensor, deferred: DeferredChecks | None = None) -> None:
    """Back-propagate through ``output``'s graph, with ``upstream_grads`` for d loss / d output, once it is checked.

    Gradients add up in the leaves' ``grad``, as after any backward pass; averaging over the batch is the caller's.
    """
    check_upstream(output, upstream_grads, deferred)
    output.backward(gradient=upstream_grads)


def _describe(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, dtype {tensor.dtype}, device {tensor.device}"
