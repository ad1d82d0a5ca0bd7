"""The metrics that say during a run how much of a difference the wire lets through."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from preflight_toys import SHAPE
from torch import Tensor

from dfme.config.estimator_settings import EstimatorConfig
from dfme.estimators.preflight import (
    Resolution,
    difference_snr,
    probe_alignment,
)
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec

# The metrics


def test_alignment_is_the_cosine_of_what_is_sent():
    u = torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    spec, config = ImageSpec(SHAPE, levels=256), EstimatorConfig(step=0.03)
    rng = torch.Generator().manual_seed(1)
    v = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).view(8, *SHAPE)
    v = v / v.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    squash = Generator(8, spec).squash
    plus, base = squash(u + 0.03 * v), squash(u)
    sent = ((plus * 255).round() - (base * 255).round()).flatten(1)
    by_hand = ((plus - base).flatten(1) * sent).sum(1) / (plus - base).flatten(1).norm(dim=1) / sent.norm(dim=1)
    assert probe_alignment(config, spec, squash, u, rng).item() == pytest.approx(by_hand.mean().item(), abs=1e-3)
    finer = probe_alignment(dataclasses.replace(config, step=1.0), spec, squash, u, rng)
    assert finer > 0.99
    on_lattice = dataclasses.replace(config, space="lattice", step=1.0)
    assert probe_alignment(on_lattice, spec, squash, u, rng).item() == pytest.approx(1.0, abs=1e-6)
    assert probe_alignment(config, ImageSpec(SHAPE), squash, u, rng) == 1.0


def test_signal_to_noise_by_arithmetic():
    """A value that is the first score: rounding to 2 decimals hides an error uniform over a step of 0.01."""
    answers = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    differences = torch.full((20_000, 2), 0.05, dtype=torch.float64)

    def first_score(images: Tensor, answers: Tensor) -> Tensor:
        return answers[:, 0].double()

    rng = torch.Generator().manual_seed(1)
    ratio = difference_snr(differences, first_score, answers, answers, Resolution(2), rng)
    assert ratio.item() == pytest.approx(0.05 / (2**0.5 * 0.01 / 12**0.5), rel=0.02)
    exact = difference_snr(differences, first_score, answers, answers, Resolution(), rng)
    assert exact > 1e5


def test_what_is_unknown_or_zero_stays_so():
    answers = torch.tensor([[0.97, torch.nan, 0.03, 0.0]])
    moved = Resolution(2).jitter(answers.repeat(100, 1), torch.Generator().manual_seed(0))
    assert moved[:, 1].isnan().all()
    assert (moved[:, 3] == 0).all()
    assert (moved[:, 0] - 0.97).abs().max() <= 0.005 + 1e-7
    assert moved[:, 0].std() == pytest.approx(0.01 / 12**0.5, rel=0.2)
