"""What the pre-flight check makes of what it found, and says of it."""

from __future__ import annotations

import dataclasses

import pytest
from preflight_toys import AUTO, OPEN, Setting, Toy, found

from dfme.config.estimator_settings import EstimatorConfig
from dfme.estimators.preflight import (
    choose,
    explain,
    flags,
    warning,
)

# The choice, and what is said of it


@pytest.mark.parametrize(
    ("levels", "directions", "reuse", "space", "form"),
    [
        (None, 1, False, "pre_squash", "central"),
        (None, 1, True, "pre_squash", "forward"),
        (256, 1, False, "lattice", "central"),
        (256, 4, True, "lattice", "forward"),
        (None, 16, False, "pre_squash", "forward"),
        (2, 1, False, "pre_squash", "central"),
        (2**24, 1, False, "pre_squash", "central"),
    ],
)
def test_auto_chooses_space_form_and_directions(levels, directions, reuse, space, form):
    setting = Setting(Toy("probabilities", levels))
    config = dataclasses.replace(AUTO, directions=directions, frequencies=0.25)
    chosen = choose(config, setting.probe(config), setting.teacher.spec, reuse)
    assert (chosen.kind, chosen.direction) == ("finite_difference", "dct")
    assert (chosen.space, chosen.form) == (space, form)
    assert (chosen.directions, chosen.frequencies) == (directions, 0.25)
    assert space != "lattice" or chosen.step % 1 == 0


@pytest.mark.parametrize("kind", ["prior_guided", "synthetic"])
def test_other_kinds_get_their_step(kind):
    setting, finding = found("logits")
    config = EstimatorConfig(kind=kind, step="auto", every=7)
    chosen = choose(config, finding, setting.teacher.spec, reuse=False)
    assert dataclasses.replace(chosen, step="auto") == config
    assert 3e-4 <= chosen.step <= 0.1


def test_two_lines_say_what_was_chosen_and_why_and_no_warning_where_all_is_well():
    setting, finding = found("logits")
    chosen = choose(OPEN, finding, setting.teacher.spec, reuse=False)
    what, why = explain(finding, chosen)
    assert f"step {chosen.step:g} in space pre_squash" in what
    assert "2 images a point" in what
    assert f"{finding.images} images" in what
    assert "logits not rounded" in why
    assert "correlation with the true slope 1.00" in why
    assert "\n" not in what + why
    assert warning(finding, chosen) is None
    assert flags(chosen) == (
        f"--estimator.kind finite_difference --estimator.objective student --estimator.space pre_squash "
        f"--estimator.direction sphere "
        f"--estimator.form forward --estimator.step {chosen.step:g}"
    )


def test_a_run_whose_answers_are_saturated_is_warned_with_number_cause_and_remedy():
    saturated = Setting(Toy("probabilities:2", gain=60.0))
    finding = saturated.probe()
    chosen = choose(OPEN, finding, saturated.teacher.spec, reuse=False)
    line = warning(finding, chosen)
    assert line is not None
    assert "\n" not in line
    assert f"{finding.candidate(float(chosen.step)).forward:.2f}" in line
    assert "rounded to 2 decimals" in line
    assert "--estimator.objective kl" in line
    assert saturated.correlation(OPEN, float(chosen.step)) < 0.5


def test_a_step_that_8_bit_images_swallow_is_warned_of_as_such():
    finding = found("logits", 256)[1]
    line = warning(finding, EstimatorConfig(step=1e-3))
    assert line is not None
    assert "256 levels" in line
    assert "lattice" in line


# The objective


@pytest.mark.parametrize(
    ("mode", "taken"),
    [("logits", "student"), ("probabilities", "student"), ("probabilities:4", "kl"), ("top_k:2", "kl")],
)
def test_kind_auto_descends_on_kl_where_answers_are_rounded_or_hidden(mode: str, taken: str) -> None:
    setting = Setting(Toy(mode))
    finding = setting.probe(AUTO)
    assert finding.objective == taken
    assert choose(AUTO, finding, setting.teacher.spec, reuse=False).objective == taken


def test_the_objective_is_left_alone_where_the_step_alone_is_open() -> None:
    assert Setting(Toy("probabilities:4")).probe(OPEN).objective == "student"
