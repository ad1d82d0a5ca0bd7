"""Checks of an accelerator's values: collected, read by one transfer, and the first that fails is
raised.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from numerics import pretended
from torch import Tensor, nn

from dfme.compute import modules
from dfme.compute.modules import DeferredChecks, evaluating


def failing(text: str) -> Callable[[], Exception]:
    return lambda: ValueError(text)


def test_flags_are_read_by_one_transfer_and_the_first_that_fails_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = list[torch.Size]()
    tolist = Tensor.tolist
    monkeypatch.setattr(
        Tensor, "tolist", lambda flags: (reads.append(flags.shape), tolist(flags))[1]
    )
    monkeypatch.setattr(Tensor, "__bool__", lambda flag: pytest.fail("a flag is read alone"))
    with pretended():
        checks = DeferredChecks()
        for number in range(1_000):
            checks.expect(torch.tensor(number not in (700, 300)), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 300"):
            checks.verify()
        checks.verify()  # what was read is read
    assert reads == [(1_000,)]


def test_flags_that_nobody_reads_do_not_pile_up_and_on_the_cpu_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(modules, "MAX_PENDING", 8)
    with pretended():
        checks = DeferredChecks()
        for number in range(7):
            checks.expect(torch.tensor(number != 3), failing(f"flag {number}"))
        with pytest.raises(ValueError, match="flag 3"):
            checks.expect(torch.tensor(True), failing("the eighth"))
    with pytest.raises(ValueError, match="now"):
        DeferredChecks().expect(torch.tensor(False), failing("now"))


class Frozen(nn.BatchNorm1d):
    """One that never trains, as people write it."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [True, False])
def test_every_module_is_in_eval_mode_meanwhile_and_in_its_own_afterwards(training: bool) -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), Frozen(2))
    inner.register_module("absent", None)
    scripted = torch.jit.script(nn.Sequential(nn.Dropout()))
    net = nn.Sequential(inner, nn.ModuleList([nn.Dropout()]), scripted).train(training)
    before = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        x = torch.ones(64, 1)
        assert torch.equal(scripted(x), x)
    assert [module.training for module in net.modules()] == before
    assert not inner[2].training
    assert (scripted(torch.ones(64, 1)).count_nonzero() < 64) == training
