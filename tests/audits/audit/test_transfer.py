"""Adversarial images: the optimum of a linear model, the ball and the bounds."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from toys import small_net

from dfme.audits.audit.parts import Interval, SourceKind, TransferRow
from dfme.audits.audit.transfer import ATTACKS, Surrogate, adversarial, eps_of, gains, measure
from dfme.spec import ImageSpec

FLOATS = ImageSpec((1, 4, 4))
SPECS = (
    FLOATS,
    ImageSpec((1, 4, 4), (-1.0, 1.0)),
    ImageSpec((1, 4, 4), (-2.0, 3.0), 256),
    ImageSpec((1, 4, 4), levels=17),
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(spec: ImageSpec, count: int = 6) -> Tensor:
    low, high = spec.bounds
    return spec.quantise(torch.rand(count, *spec.shape, generator=rng(1)) * (high - low) + low)


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["unsure", "sure"])
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_linear_model_is_attacked_as_far_as_can_be(spec: ImageSpec, name: str, scale: float):
    """Its loss rises along one direction, so the worst image has every pixel at the end of its
    interval.

    A sure class has a gradient of 1e-40 and less, which float32 does not hold.
    """
    weight = scale * torch.randn(spec.numel, generator=rng(2))
    x, labels = images(spec), torch.tensor([0, 1] * 3)
    logits = lambda x: torch.stack([-(x.flatten(1) @ weight), x.flatten(1) @ weight], 1)  # noqa: E731
    (low, high), eps = spec.bounds, 0.25  # four seventeenths; sixty-four of 255
    result = adversarial(name, Surrogate("", "clone", logits), x, labels, eps, spec, rng())
    radius = eps * (high - low)
    if spec.levels:
        radius = int(eps * (spec.levels - 1)) * (high - low) / (spec.levels - 1)
    sign = torch.where(labels == 0, 1.0, -1.0)[:, None, None, None] * weight.sign().view(spec.shape)
    assert torch.allclose(result, (x + radius * sign).clamp(low, high), atol=1e-5)


@pytest.mark.parametrize("name", [*ATTACKS, "random signs"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_image_leaves_the_ball_the_bounds_or_the_wire(spec: ImageSpec, name: str):
    x, labels, net = images(spec, 20), torch.arange(20) % 3, small_net(spec).eval()
    source = Surrogate("", "clone", None if name == "random signs" else net)
    for eps in (0.01, 0.1, 0.9):
        result = adversarial(
            name if name in ATTACKS else "fgsm", source, x, labels, eps, spec, rng()
        )
        assert float((result - x).abs().max()) <= eps * (spec.bounds[1] - spec.bounds[0]) + 1e-6
        assert spec.bounds[0] <= float(result.min()) <= float(result.max()) <= spec.bounds[1]
        assert torch.equal(result, spec.quantise(result))


def test_random_signs_move_every_pixel_as_far_as_they_may_either_way():
    x, source = torch.full((50, *FLOATS.shape), 0.5), Surrogate("", "stranger", None)
    result = adversarial("fgsm", source, x, torch.zeros(50).long(), 0.1, FLOATS, rng())
    assert torch.allclose((result - x).abs(), torch.tensor(0.1))
    assert float((result > x).float().mean()) == pytest.approx(
        0.5, abs=0.06
    )  # three deviations of 800


@pytest.mark.parametrize("name", ATTACKS)
def test_on_a_network_the_steps_are_the_published_ones(name: str):
    spec, eps = ImageSpec((1, 4, 4), (-1.0, 1.0)), 0.1
    net, x, labels = small_net(spec).eval(), images(spec), torch.tensor([0, 1, 2] * 2)
    step, steps = {"fgsm": (0.2, 1), "pgd20": (0.025, 20), "mifgsm": (0.02, 10)}[name]
    y, speed = x.clone(), torch.zeros_like(x)
    if name == "pgd20":
        y = (x + 0.2 * (2 * torch.rand(x.shape, generator=rng(3)) - 1)).clamp(-1, 1)
    for _ in range(steps):
        y = y.detach().requires_grad_()
        cross_entropy(net(y), labels).backward()
        speed = speed + y.grad / y.grad.abs().mean((1, 2, 3), keepdim=True)
        direction = speed if name == "mifgsm" else y.grad
        y = torch.max(torch.min(y.detach() + step * direction.sign(), x + 0.2), x - 0.2).clamp(
            -1, 1
        )
    result = adversarial(name, Surrogate("", "clone", net), x, labels, eps, spec, rng(3))
    assert torch.allclose(result, y, atol=1e-5)


@pytest.mark.integration
def test_foolbox_fools_as_many():
    foolbox: Any = pytest.importorskip("foolbox")
    spec, eps = ImageSpec((1, 8, 8)), 0.1
    net, x = small_net(spec).eval(), images(spec, 1_000)
    labels = net(x).argmax(1)
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    theirs = {
        "fgsm": foolbox.attacks.LinfFastGradientAttack(),
        "pgd20": foolbox.attacks.LinfProjectedGradientDescentAttack(
            rel_stepsize=2.5 / 20, steps=20
        ),
    }
    for name, attack in theirs.items():
        fooled = attack(model, x, labels, epsilons=eps)[2].float().mean()
        moved = adversarial(name, Surrogate("", "clone", net), x, labels, eps, spec, rng())
        own = net(moved).argmax(1) != labels
        assert 0.05 < float(fooled) < 1
        # its MI-FGSM normalises otherwise
        assert float(own.float().mean()) == pytest.approx(float(fooled), abs=0.01)


def test_success_is_counted_and_random_signs_are_asked_once():
    spec, asked = ImageSpec((1, 8, 8)), list[tuple[str, float, int]]()
    x, labels, net = images(spec, 40), torch.zeros(40).long(), small_net(spec).eval()

    def ask(source: Surrogate, eps: float, y: Tensor) -> Tensor:
        asked.append((source.name, eps, len(y)))
        return torch.arange(40) < (20 if source.logits is None else 30)  # ones, which are wrong

    sources = [
        Surrogate("random signs", "stranger", None),
        Surrogate("clone: a, b", "clone", net, 0.9),
    ]
    rows = measure(sources, x, labels, spec, eps_of(spec), 0, ask)
    assert asked == [(name, eps, 40) for name, times in (("random signs", 1), ("clone: a, b", 3))
                     for eps in (0.05, 0.1, 0.2) for _ in range(times)]  # fmt: skip
    assert len(rows) == 2 * 3 * 3
    assert {(row.source, row.success) for row in rows} == {
        ("random signs", 0.5),
        ("clone: a, b", 0.75),
    }
    assert rows[-1].interval == pytest.approx([0.598, 0.858], abs=1e-3)  # Wilson of 30 of 40
    assert {row.eps for row in rows} == {0.05, 0.1, 0.2}


def test_the_gain_is_over_the_best_stranger_and_not_over_the_teacher():
    def row(source: str, kind: SourceKind, success: float, attack: str = "pgd20") -> TransferRow:
        return TransferRow(
            source=source,
            kind=kind,
            agreement=None,
            attack=attack,
            eps=0.1,
            success=success,
            images=100,
            interval=Interval(0.0, 1.0),
        )

    rows = [
        row("random signs", "stranger", 0.03),
        row("twin", "stranger", 0.15),
        row("twin", "stranger", 0.9, "fgsm"),
        row("teacher", "ceiling", 0.77),
    ]
    rows.append(row("clone: a", "clone", 0.54))
    (result,) = gains(rows)
    assert (result.source, result.attack, result.over) == ("clone: a", "pgd20", "twin")
    assert result.gain == pytest.approx(0.39)
