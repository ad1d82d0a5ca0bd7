"""Gates, permutations, noise and watermarks: what a key draws, and the detector's two rates."""

import math

import pytest
import torch
from defended import defended, queries, truths

from dfme.data import load_dataset


@pytest.mark.parametrize("wrong", ["roll", "permute:key_env=K", "net:key_env=K"])
@pytest.mark.parametrize("gate", ["softmax", "entropy"])
def test_misinformation_leaves_images_at_home_alone_and_answers_the_others_wrongly(
    wrong: str, gate: str
) -> None:
    p = truths()[:1_359].double()
    y = defended(f"misinform:gate={gate}:tau=.7:wrong={wrong}")(queries()[:1_359]).double()
    s = (
        p.amax(1)
        if gate == "softmax"
        else 1 + (p * p.clamp(min=1e-300).log()).sum(1) / math.log(10)
    )
    home, strange = s > 0.71, s < 0.69
    assert 300 < int(home.sum()) < 1_300
    assert int(strange.sum()) > 50
    assert float((y - p)[home].abs().sum(1).max()) < 1e-4
    if wrong.startswith("net"):
        assert float(y[strange].amax(1).max()) < 0.2  # an untrained network is sure of nothing
    else:
        assert (y.argmax(1) != p.argmax(1))[strange].all()
        assert torch.allclose(y[strange].sort(1).values, p[strange].sort(1).values, atol=1e-4)
    if wrong == "roll":
        assert torch.allclose(y[strange], p[strange].roll(1, 1), atol=1e-4)


def test_permutations_are_of_the_key_and_of_the_image_as_its_eight_bits_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "misinform:tau=1:key_env=K"
    images = torch.arange(64).view(1, 1, 8, 8).repeat(500, 1, 1, 1) * 4 / 255 + torch.zeros(
        500, 1, 1, 1
    )
    images[:, 0, 0, 0] = torch.arange(500) % 250 / 255
    (defence,) = defended(text)._stack
    p = torch.softmax(torch.arange(10.0).double(), 0).repeat(500, 1)
    y = defence.answer(p, images)
    assert torch.equal(y, defence.answer(p, images + 0.4 / 255))
    assert torch.equal(y[:250], y[250:])
    moved = torch.bincount(y[:250].argmax(1), minlength=10)
    assert moved[9] == 0
    assert moved[:9].min() >= 10  # 28 expected, a deviation of 5
    monkeypatch.setenv("K", "another")
    (other,) = defended(text)._stack
    assert (other.answer(p, images).argmax(1) != y.argmax(1)).double().mean() > 0.7


def test_the_mahalanobis_gate_is_calibrated_on_every_second_held_out_image() -> None:
    """Of those it is calibrated on, the share tau is flagged."""
    (defence,) = defended("misinform:gate=mahalanobis:data=digits:tau=.1:wrong=roll")._stack
    gate = defence._at_home  # type: ignore[attr-defined]
    test, train = load_dataset("digits", "test").images, load_dataset("digits", "train").images
    streams = (test[::2], test[1::2], train, queries()[359:859])
    flagged = [float((gate(images) < 0.1).double().mean()) for images in streams]
    assert flagged[0] == pytest.approx(0.1, abs=1 / 180)
    assert flagged[1] < 0.2
    # a threshold from training images would flag more held-out ones than it says
    assert flagged[2] < flagged[1]
    assert flagged[3] > 0.9
    scores = gate(test[::2])
    ranks = [(n + 1) / 180 for n in range(180)]
    assert sorted(scores.tolist()) == pytest.approx(ranks, abs=0.006)  # neighbours may tie


def test_fresh_noise_differs_from_answer_to_answer_and_keyed_noise_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh, keyed = defended("noise:key_env=K"), defended("noise:key_env=K:fresh=false")
    images = queries()[:50]
    assert not torch.equal(fresh(images), fresh(images))
    assert torch.equal(keyed(images), keyed(images))
    assert torch.equal(defended("noise:key_env=K")(images), defended("noise:key_env=K")(images))
    answers = keyed(images), defended("noise:key_env=K")(images)
    monkeypatch.setenv("K", "another")
    assert not torch.equal(answers[0], defended("noise:key_env=K:fresh=false")(images))
    assert not torch.equal(answers[1], defended("noise:key_env=K")(images))


def test_a_watermark_marks_its_rate_of_images_always_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, teacher = 0.05, defended("watermark:key_env=K:rate=.05")
    images, n = queries()[:5_000], 5_000
    y, p = teacher(images), truths()[:n]
    marked = y.argmax(1) != p.argmax(1)
    deviation = math.sqrt(n * rate * (1 - rate))
    assert abs(int(marked.sum()) - n * rate) < 4 * deviation
    assert torch.equal(y[~marked], p[~marked])
    assert torch.allclose(y[marked].sort(1).values, p[marked].sort(1).values)
    classes = torch.bincount((y.argmax(1) - p.argmax(1))[marked] % 10, minlength=10)
    assert classes[1:].min() > 0.5 * classes.sum() / 9
    assert teacher.report() == {"watermark": {"marked": int(marked.sum())}}
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    # With the key, an image that was marked can be told from any other.
    again = defended("watermark:key_env=K:rate=.05")(images[order])
    assert torch.equal(again.argmax(1), y.argmax(1)[order])
    monkeypatch.setenv("K", "another")
    other = defended("watermark:key_env=K:rate=.05")(images).argmax(1) != p.argmax(1)
    assert int((other & marked).sum()) < 29  # 12.5 expected of two independent keys
