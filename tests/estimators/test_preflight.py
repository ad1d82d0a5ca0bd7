"""The pre-flight check of teachers with known properties, its choice, and the metrics of a run."""

import copy
import dataclasses

import pytest
import torch
from known_teachers import AUTO, CLASSES, OPEN, PREFLIGHT_SHAPE, Setting, Toy, found
from tables import exhaustive, exhaustive_rows
from torch import Tensor

from dfme.answers.reading import decimals
from dfme.config.sections import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators.build import make_estimator, needs_preflight
from dfme.estimators.preflight.choose import choose, explain, flags, warning
from dfme.estimators.preflight.diagnostics import Resolution, difference_snr, probe_alignment
from dfme.estimators.preflight.measure import preflight_images
from dfme.nets.generators import Generator
from dfme.spec import ImageSpec, LabelMode

pytestmark = pytest.mark.full("generator")


@pytest.mark.parametrize("form", ["forward", *exhaustive("central")])
@pytest.mark.parametrize(
    ("mode", "levels", "gain"),
    [
        ("probabilities:3", None, 2.0),
        ("probabilities:4", 256, 6.0),
        *exhaustive_rows(
            (mode, None, 6.0) for mode in ("probabilities", "logits", "probabilities:6")
        ),
        *exhaustive_rows(
            [("probabilities:4", None, 6.0), ("probabilities:2", None, 2.0), ("logits", 256, 6.0)]
        ),
    ],
)
def test_the_chosen_step_is_about_the_best_of_those_tried(mode, levels, gain, form):
    setting, finding = found(mode, levels, gain)
    config = dataclasses.replace(OPEN, form=form)
    chosen = choose(config, finding, setting.teacher.spec, reuse=False)
    measured = {rung.step: setting.correlation(config, rung.step) for rung in finding.candidates}
    assert max(measured.values()) > 0.7, "the toy would prove nothing"
    assert measured[float(chosen.step)] > 0.95 * max(measured.values())
    assert finding.candidate(float(chosen.step)).of(form) == pytest.approx(
        measured[float(chosen.step)], abs=0.15
    )
    assert dataclasses.replace(chosen, step="auto") == config, "step: auto sets the step alone"


@pytest.mark.parametrize(("mode", "levels"), [("probabilities:4", None), ("logits", 256)])
def test_the_published_step_is_predicted_to_fail_where_it_does(mode, levels):
    setting, finding = found(mode, levels)
    assert setting.correlation(EstimatorConfig(), 1e-3) < 0.35
    assert finding.candidate(1e-3).forward < 0.35
    assert found("logits")[1].candidate(1e-3).forward > 0.99


def test_an_arithmetic_of_few_bits_is_noticed_in_the_differences():
    """Answers look like any others, and repeat; only that small differences are no differences
    gives it away."""
    setting = Setting(
        Toy(gain=1.0, noise=lambda logits: logits.bfloat16().float() * (1 + 1e-4) - logits)
    )
    finding = setting.probe()
    assert (finding.decimals, finding.relative, finding.repeat) == (None, 2.0**-23, 0.0)
    assert finding.candidate(1e-3).central < 0.3
    chosen = choose(OPEN, finding, setting.teacher.spec, reuse=False)
    assert chosen.step >= 0.1
    assert setting.correlation(OPEN, float(chosen.step)) > 0.9


@pytest.mark.parametrize(
    "config", [OPEN, AUTO, EstimatorConfig(step="auto", space="image", direction="rademacher")]
)
@pytest.mark.parametrize("mode", ["probabilities:4", "top_k:2", "label"])
@pytest.mark.parametrize("levels", [256, *exhaustive(None, 16)])
def test_as_many_images_as_stated_all_of_them_checks(config, mode, levels):
    teacher = Toy(mode, levels)
    setting = Setting(teacher)
    finding = setting.probe(config)
    stated = preflight_images(config, teacher.spec, scores=mode != "label")
    assert stated == finding.images == teacher.seen <= 400
    assert setting.oracle.ledger.spent_by_purpose["check"] == setting.oracle.ledger.spent == stated
    settled = choose(config, finding, teacher.spec, reuse=False)
    assert not needs_preflight(settled)
    make_estimator(settled, teacher.spec, setting.generator.squash, None, 0)


def test_a_budget_that_does_not_reach_is_refused_before_the_first_query():
    needed = preflight_images(OPEN, Toy().spec)
    setting = Setting(Toy(), budget=needed - 1)
    with pytest.raises(UserError, match=rf"--budget: .* {needed} images .* {needed - 1} are left"):
        setting.probe()
    assert setting.teacher.seen == 0
    assert Setting(Toy(), budget=needed).probe().images == needed


def test_nothing_is_left_changed_and_the_same_seed_finds_the_same():
    setting = Setting(Toy("probabilities:4", 256))
    setting.student.train()
    before, chance = copy.deepcopy(setting.generator.state_dict()), torch.get_rng_state()
    first = setting.probe(AUTO)
    assert setting.student.training
    assert setting.generator.training
    assert torch.equal(torch.get_rng_state(), chance)
    for name, tensor in setting.generator.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert setting.probe(AUTO) == first
    assert setting.probe(AUTO, seed=9) != first


class Moody(Toy):
    """Answers that depend on how often it was asked, or on the other images of the batch."""

    def __init__(self, per_image: float = 0.0, per_batch: float = 0.0) -> None:
        super().__init__(noise=self._mood)
        self._per_image, self._per_batch = per_image, per_batch

    def _mood(self, logits: Tensor) -> Tensor:
        return self.seen * self._per_image + self._per_batch * logits.mean(0)


def test_answers_that_do_not_repeat_are_found():
    assert (found("logits")[1].repeat, found("logits")[1].batch) == (
        0.0,
        pytest.approx(0.0, abs=1e-5),
    )
    assert Setting(Moody(per_image=1e-3)).probe().repeat == pytest.approx(16e-3, rel=1e-3)
    tied = Setting(Moody(per_batch=0.1)).probe()
    assert tied.repeat == 0.0
    assert tied.batch > 1e-3


def test_noise_is_counted_in_and_larger_steps_are_taken():
    rng = torch.Generator().manual_seed(0)
    noisy = Setting(Toy(noise=lambda logits: 0.05 * torch.randn(logits.shape, generator=rng)))
    finding = noisy.probe()
    value_noise = 0.05 / CLASSES**0.5
    assert finding.candidate(1e-3).noise == pytest.approx(2**0.5 * value_noise, rel=0.7)
    assert finding.candidate(1e-3).central < 0.1
    chosen = choose(OPEN, finding, noisy.teacher.spec, reuse=False)
    assert chosen.step > choose(OPEN, found("logits")[1], noisy.teacher.spec, reuse=False).step
    assert "not repeatable" in explain(finding, chosen)[1]


@pytest.mark.parametrize("places", [1, 4, 6, *exhaustive(2, 3, 5)])
def test_decimals_are_counted(places):
    scores = torch.rand(200, 10, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert decimals(scores.round(decimals=places)) == places
    assert decimals(scores) is None
    assert Resolution.seen(scores.round(decimals=places)) == Resolution(places)


def test_scores_near_zero_and_large_ones_are_not_taken_for_rounded():
    assert decimals(torch.tensor([[1.0, 3e-9, 2e-12], [1.0, 1e-8, 5e-10]])) is None
    large = 30 * torch.randn(100, 10, generator=torch.Generator().manual_seed(0))
    assert decimals(large) is None
    assert decimals(large.round(decimals=2)) == 2


@pytest.mark.parametrize(
    ("dtype", "relative"), [(torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)]
)
def test_short_formats_are_seen(dtype, relative):
    scores = torch.randn(100, 10, generator=torch.Generator().manual_seed(0)).to(dtype).float()
    assert Resolution.seen(scores) == Resolution(None, relative)


@pytest.mark.parametrize(
    "mode", ["logits", "probabilities", "probabilities:3", "top_k:2", "top_k:2:4", "label"]
)
def test_the_form_of_the_answers(mode):
    finding = Setting(Toy(mode)).probe()
    kind = mode.partition(":")[0]
    assert finding.answers == ("labels" if kind == "label" else kind)
    assert finding.decimals == LabelMode.parse(mode).decimals
    assert finding.declared == mode


def test_one_hot_answers_are_as_good_as_labels():
    hard = Setting(
        Toy("probabilities", noise=lambda logits: 1e4 * (logits == logits.amax(1, keepdim=True)))
    )
    finding = hard.probe()
    assert finding.answers == "one-hot"
    assert "one-hot" in str(warning(finding, choose(OPEN, finding, hard.teacher.spec, reuse=False)))


def test_rounding_that_was_not_declared_is_told(monkeypatch):
    asked = Toy.__call__
    monkeypatch.setattr(Toy, "__call__", lambda toy, images: asked(toy, images).round(decimals=4))
    finding = Setting(Toy("probabilities")).probe()
    chosen = choose(OPEN, finding, Toy().spec, reuse=False)
    assert "rounded to 4 decimals, declared as probabilities" in explain(finding, chosen)[1]


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


def test_another_kind_gets_its_step():
    setting, finding = found("logits")
    config = EstimatorConfig(kind="synthetic", step="auto", every=7)
    chosen = choose(config, finding, setting.teacher.spec, reuse=False)
    assert dataclasses.replace(chosen, step="auto") == config
    assert 3e-4 <= chosen.step <= 0.1


def test_two_lines_say_what_was_chosen_and_why_and_no_warning_where_all_is_well():
    setting, finding = found("logits")
    chosen = choose(OPEN, finding, setting.teacher.spec, reuse=False)
    what, why = explain(finding, chosen)
    assert f"step {chosen.step:g} in space pre_squash" in what
    assert f"(2 images a point); the check took {finding.images} images" in what
    assert "correlation with the true slope 1.00" in why
    assert "\n" not in what + why
    assert warning(finding, chosen) is None
    assert flags(chosen).endswith(f"--estimator.form forward --estimator.step {chosen.step:g}")


def test_a_run_whose_answers_are_saturated_is_warned_with_number_cause_and_remedy():
    saturated = Setting(Toy("probabilities:2", gain=60.0))
    finding = saturated.probe()
    chosen = choose(OPEN, finding, saturated.teacher.spec, reuse=False)
    line = str(warning(finding, chosen))
    correlation = f"{finding.candidate(float(chosen.step)).forward:.2f}"
    assert all(
        word in line for word in (correlation, "rounded to 2 decimals", "--estimator.objective kl")
    )
    assert "\n" not in line
    assert saturated.correlation(OPEN, float(chosen.step)) < 0.5


def test_a_step_that_8_bit_images_swallow_is_warned_of_as_such():
    line = str(warning(found("logits", 256)[1], EstimatorConfig(step=1e-3)))
    assert "256 levels" in line
    assert "lattice" in line


@pytest.mark.parametrize(
    ("mode", "taken"),
    [
        ("logits", "student"),
        ("probabilities", "student"),
        ("probabilities:4", "kl"),
        ("top_k:2", "kl"),
    ],
)
def test_kind_auto_descends_on_kl_where_answers_are_rounded_or_hidden(
    mode: str, taken: str
) -> None:
    setting = Setting(Toy(mode))
    finding = setting.probe(AUTO)
    assert finding.objective == taken
    assert choose(AUTO, finding, setting.teacher.spec, reuse=False).objective == taken
    assert setting.probe(OPEN).objective == "student", "the step alone is open"


def test_alignment_is_the_cosine_of_what_is_sent():
    u = torch.randn(8, *PREFLIGHT_SHAPE, generator=torch.Generator().manual_seed(0))
    spec, config = ImageSpec(PREFLIGHT_SHAPE, levels=256), EstimatorConfig(step=0.03)
    rng = torch.Generator().manual_seed(1)
    v = torch.randn(8, 64, generator=torch.Generator().manual_seed(1)).view(8, *PREFLIGHT_SHAPE)
    v = v / v.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    squash = Generator(8, spec).squash
    plus, base = squash(u + 0.03 * v), squash(u)
    sent = ((plus * 255).round() - (base * 255).round()).flatten(1)
    by_hand = (
        ((plus - base).flatten(1) * sent).sum(1)
        / (plus - base).flatten(1).norm(dim=1)
        / sent.norm(dim=1)
    )
    assert probe_alignment(config, spec, squash, u, rng).item() == pytest.approx(
        by_hand.mean().item(), abs=1e-3
    )
    assert probe_alignment(dataclasses.replace(config, step=1.0), spec, squash, u, rng) > 0.99
    on_lattice = dataclasses.replace(config, space="lattice", step=1.0)
    assert probe_alignment(on_lattice, spec, squash, u, rng).item() == pytest.approx(1.0, abs=1e-6)
    assert probe_alignment(config, ImageSpec(PREFLIGHT_SHAPE), squash, u, rng) == 1.0


def test_signal_to_noise_by_arithmetic():
    """A value that is the first score: rounding to 2 decimals hides an error uniform over a step of
    0.01.
    """
    answers = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    differences = torch.full((20_000, 2), 0.05, dtype=torch.float64)

    def first_score(images: Tensor, answers: Tensor) -> Tensor:
        return answers[:, 0].double()

    rng = torch.Generator().manual_seed(1)
    ratio = difference_snr(differences, first_score, answers, answers, Resolution(2), rng)
    assert ratio.item() == pytest.approx(0.05 / (2**0.5 * 0.01 / 12**0.5), rel=0.02)
    assert difference_snr(differences, first_score, answers, answers, Resolution(), rng) > 1e5


def test_what_is_unknown_or_zero_stays_so():
    answers = torch.tensor([[0.97, torch.nan, 0.03, 0.0]])
    moved = Resolution(2).jitter(answers.repeat(100, 1), torch.Generator().manual_seed(0))
    assert moved[:, 1].isnan().all()
    assert (moved[:, 3] == 0).all()
    assert (moved[:, 0] - 0.97).abs().max() <= 0.005 + 1e-7
    assert moved[:, 0].std() == pytest.approx(0.01 / 12**0.5, rel=0.2)
