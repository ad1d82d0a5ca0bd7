"""Heads that a test made are recovered from their answers, or are not, as the algebra says."""

import pytest
import torch

from dfme.answers.reading import NO_ANSWER
from dfme.audits.backbone import verdict
from dfme.errors import UserError
from dfme.spec import LabelMode
from dfme.students.heads import EXACT, FROZEN, Head, answers_needed, fit, solve

FULL = LabelMode("probabilities")
WIDTH = 60


def random_features(images: int, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    return torch.randn(images, width, generator=torch.Generator().manual_seed(seed))


def real_like_features(images: int, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    """Few directions carry most of the variance, and a ReLU cuts it: condition about 1,000."""
    rng = torch.Generator().manual_seed(9)
    mixing = torch.randn(12, width, generator=rng)
    size = torch.logspace(0, -2.5, width)
    rng.manual_seed(seed)
    hidden = torch.randn(images, 12, generator=rng) @ mixing
    return size * (hidden + torch.randn(images, width, generator=rng)).relu()


def true_head(classes: int, width: int = WIDTH, size: float = 0.5) -> Head:
    rng = torch.Generator().manual_seed(5)
    weight = size * torch.randn(classes, width, generator=rng)
    return Head(weight, torch.randn(classes, generator=rng))


def probabilities(head: Head, features: torch.Tensor) -> torch.Tensor:
    """As a network in float32 answers them."""
    return head(features).softmax(dim=1)


def rounded(answers: torch.Tensor, decimals: int) -> tuple[torch.Tensor, LabelMode]:
    step = 10.0**decimals
    return (answers * step).round() / step, LabelMode("probabilities", decimals=decimals)


def error(head: Head, truth: Head, features: torch.Tensor) -> float:
    """Of log-odds on other features, as a share of their size."""
    wrong = head(features) - truth(features)
    size = truth(features) - truth(features).mean(dim=1, keepdim=True)
    return float((wrong - wrong.mean(dim=1, keepdim=True)).norm() / size.norm())


def agreement(head: Head, truth: Head, features: torch.Tensor) -> float:
    return float((head(features).argmax(1) == truth(features).argmax(1)).float().mean())


@pytest.mark.parametrize("features", [random_features, real_like_features])
def test_a_head_is_recovered_by_a_fifth_more_answers_than_features_and_not_by_a_tenth_less(
    features,
):
    truth = true_head(9)
    asked = features(round(1.2 * WIDTH))
    solved = solve(asked, probabilities(truth, asked), FULL, 9)
    elsewhere = features(500, seed=1)
    assert error(solved.head, truth, elsewhere) < 1e-4
    assert solved.residual < 1e-4
    few = features(round(0.9 * WIDTH))
    assert error(solve(few, probabilities(truth, few), FULL, 9).head, truth, elsewhere) > 1e-3


def test_the_weights_themselves_are_recovered_up_to_a_constant_for_all_classes():
    truth = true_head(4)
    asked = random_features(100)
    head = solve(asked, probabilities(truth, asked), FULL, 4).head
    centred = truth.weight_KD - truth.weight_KD.mean(dim=0)
    torch.testing.assert_close(
        head.weight_KD - head.weight_KD.mean(dim=0), centred, atol=1e-4, rtol=0
    )
    shift = (head.bias_K - truth.bias_K) - (head.bias_K - truth.bias_K).mean()
    assert shift.abs().max() < 1e-4


def test_the_residual_tells_an_owner_whose_features_are_others():
    asked = random_features(300)
    owner = torch.tanh(asked @ random_features(WIDTH, WIDTH, seed=3) / 4)
    solved = solve(asked, probabilities(true_head(5), owner), FULL, 5)
    assert 0.1 < solved.residual < 2


@pytest.mark.parametrize("classes", [2, 5, 20])
@pytest.mark.parametrize(("size", "bias"), [(0.05, 4.0), (1e-3, 1.0), (0.0, 1.0)])
def test_a_teacher_that_says_nearly_the_same_of_all_images_is_not_taken_for_the_backbone(
    classes: int, size: float, bias: float
) -> None:
    """Its classes' usual answers explain nearly all of the log-odds, and any head knows them."""
    asked = random_features(300)
    owner = torch.tanh(asked @ random_features(WIDTH, WIDTH, seed=3) / 4)
    often = bias * torch.randn(classes, generator=torch.Generator().manual_seed(1))
    scores = size * true_head(classes)(owner) + often
    assert solve(asked, scores.softmax(dim=1), FULL, classes).residual > 5 * FROZEN
    assert solve(asked, scores, LabelMode("logits"), classes).residual > 5 * FROZEN


@pytest.mark.parametrize("images", [8, 20, 39, WIDTH + 7])
def test_a_few_answers_held_back_tell_nothing_of_the_owner(images: int) -> None:
    """By chance a head comes near single ones: of 100 owners of noise to none."""
    for seed in range(25):
        asked = random_features(images, seed=seed)
        noise = torch.randn(images, 2, generator=torch.Generator().manual_seed(100 + seed))
        assert solve(asked, noise.softmax(dim=1), FULL, 2).residual > FROZEN


def test_the_checks_words_and_the_solve_mean_the_same_by_exact() -> None:
    assert verdict.EXACT == EXACT


def test_answers_of_zero_are_bounds_and_the_head_is_exact_all_the_same():
    truth = true_head(6, size=6.0)
    asked = random_features(150)
    answers = probabilities(truth, asked)
    assert (answers == 0).any(dim=1).float().mean() > 0.2
    assert error(solve(asked, answers, FULL, 6).head, truth, random_features(200, seed=1)) < 1e-3


def test_logits_may_be_shifted_for_each_image():
    truth = true_head(5)
    asked = random_features(80)
    shift = 30 * random_features(80, 1, seed=2)
    solved = solve(asked, truth(asked) + shift, LabelMode("logits"), 5)
    assert error(solved.head, truth, random_features(200, seed=1)) < 1e-4
    assert solved.resolved == 1.0


@pytest.mark.parametrize(("decimals", "most"), [(6, 0.02), (4, 0.05), (2, 0.3)])
def test_rounded_answers_weighed_by_what_survives_beat_their_logarithms(decimals, most):
    truth = true_head(6, width=20, size=1.2)
    asked = random_features(130, 20)
    answers, mode = rounded(probabilities(truth, asked), decimals)
    weighed = solve(asked, answers, mode, 6)
    logs = answers.double().clamp_min(0.5 * 10.0**-decimals).log()
    inputs = torch.cat([asked, torch.ones(len(asked), 1)], dim=1).double()
    plain = torch.linalg.lstsq(inputs, logs).solution.float()
    unweighed = Head(plain[:-1].T, plain[-1])
    elsewhere = random_features(500, 20, seed=1)
    assert error(weighed.head, truth, elsewhere) < min(most, error(unweighed, truth, elsewhere))


@pytest.mark.parametrize("mode", ["probabilities", "probabilities:3", "top_k:1", "label"])
def test_two_classes(mode):
    truth = true_head(2)
    asked = random_features(400)
    answers = probabilities(truth, asked)
    form = LabelMode.parse(mode)
    if form.kind == "label":
        answers = answers.argmax(dim=1)
    elif form.kind == "top_k":
        answers = answers.masked_fill(answers < answers.amax(dim=1, keepdim=True), torch.nan)
    elif form.decimals:
        answers, _ = rounded(answers, form.decimals)
    assert agreement(fit(asked, answers, form, 2).head, truth, random_features(500, seed=1)) > 0.85


def test_a_thousand_classes():
    truth = true_head(1000, width=20)
    asked = random_features(60, 20)
    solved = solve(asked, probabilities(truth, asked), FULL, 1000)
    assert error(solved.head, truth, random_features(100, 20, seed=1)) < 1e-4


def test_of_the_k_largest_only_the_revealed_entries_count():
    truth = true_head(6, width=20)
    asked = random_features(200, 20)
    answers = probabilities(truth, asked)
    least = answers.topk(3, dim=1).values[:, -1:]
    answers = answers.masked_fill(answers < least, torch.nan)
    solved = solve(asked, answers, LabelMode("top_k", k=3), 6)
    assert error(solved.head, truth, random_features(300, 20, seed=1)) < 0.02
    assert solved.resolved == pytest.approx(0.5)


def test_a_fit_to_labels_is_the_minimum_of_the_penalised_cross_entropy():
    """The gradient, written here anew, vanishes; scores of the minimum are those of another
    descent.
    """
    asked = random_features(200, 5)
    rng = torch.Generator().manual_seed(1)
    noisy = true_head(3, 5)(asked) + torch.randn(200, 3, generator=rng)
    labels = noisy.argmax(dim=1)
    fitted = fit(asked, labels, LabelMode("label"), 3)
    centred = asked.double() - asked.double().mean(dim=0)
    size = centred.square().sum(dim=1).mean()
    weight = fitted.head.weight_KD.double().requires_grad_()
    bias = fitted.head.bias_K.double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(asked.double() @ weight.T + bias, labels)
    loss = loss + 0.5 * fitted.ridge * size * weight.square().sum()
    (by_weight, by_bias) = torch.autograd.grad(loss, (weight, bias))
    assert max(by_weight.abs().max(), by_bias.abs().max()) < 1e-4
    flat = torch.nn.functional.cross_entropy(torch.zeros(200, 3).double(), labels)
    assert loss < 0.9 * flat


def test_features_that_are_constant_or_the_same_twice():
    truth = true_head(4)
    asked = random_features(150)
    asked[:, 7] = 3.0
    asked[:, 8] = asked[:, 9]
    asked[50:70] = asked[:20]
    solved = solve(asked, probabilities(truth, asked), FULL, 4)
    assert (solved.dead, solved.rank) == (1, WIDTH - 2)
    elsewhere = random_features(200, seed=1)
    elsewhere[:, 7] = 3.0
    elsewhere[:, 8] = elsewhere[:, 9]
    assert error(solved.head, truth, elsewhere) < 1e-4


def test_all_features_constant_answer_the_most_frequent_class():
    labels = torch.tensor([1, 1, 1, 0, 1, 2, 1, 1, 1, 1])
    fitted = fit(torch.ones(10, 4), labels, LabelMode("label"), 3)
    assert fitted.head(torch.ones(1, 4)).argmax() == 1


def test_fewer_images_than_classes():
    asked = random_features(8)
    truth = true_head(20)
    solved = solve(asked, probabilities(truth, asked), FULL, 20)
    assert agreement(solved.head, truth, asked) == 1.0
    fitted = fit(asked, truth(asked).argmax(dim=1), LabelMode("label"), 20)
    assert bool(fitted.head(asked).isfinite().all())


def test_a_class_that_no_answer_names_is_never_answered():
    asked = random_features(300)
    labels = true_head(3)(asked).argmax(dim=1) + 1
    fitted = fit(asked, labels, LabelMode("label"), 5)
    scores = fitted.head(random_features(300, seed=1))
    assert bool(scores.isfinite().all())
    assert not set(scores.argmax(dim=1).tolist()) & {0, 4}


def test_images_without_an_answer_are_left_out():
    truth = true_head(4)
    asked = random_features(120)
    answers = probabilities(truth, asked)
    answers[::10] = torch.nan
    assert error(solve(asked, answers, FULL, 4).head, truth, random_features(200, seed=1)) < 1e-4
    labels = truth(asked).argmax(dim=1)
    labels[::10] = NO_ANSWER
    left = labels >= 0
    whole = fit(asked, labels, LabelMode("label"), 4)
    part = fit(asked[left], labels[left], LabelMode("label"), 4)
    assert torch.equal(whole.head.weight_KD, part.head.weight_KD)


def test_the_same_seed_gives_the_same_head():
    asked = random_features(80, 20)
    answers, mode = rounded(probabilities(true_head(4, width=20), asked), 2)
    first = fit(asked, answers, mode, 4, seed=3)
    second = fit(asked, answers, mode, 4, seed=3)
    assert torch.equal(first.head.weight_KD, second.head.weight_KD)
    assert first.held_back_agreement == second.held_back_agreement


def test_what_cannot_be_solved_is_said():
    asked = random_features(10)
    with pytest.raises(UserError, match="got labels"):
        solve(asked, torch.zeros(10, dtype=torch.int64), LabelMode("label"), 3)
    with pytest.raises(UserError, match="finite features"):
        fit(asked / 0, torch.zeros(10, dtype=torch.int64), LabelMode("label"), 3)
    with pytest.raises(UserError, match="two answers"):
        fit(asked[:1], torch.zeros(1, dtype=torch.int64), LabelMode("label"), 3)
    assert answers_needed(1280) == 1346
