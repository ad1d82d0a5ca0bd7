"""Each defence keeps to its stated facts, and what a key draws: gates, permutations, noise, watermarks."""

import math

import pytest
import torch
from defended import defended, digits, queries, truths

from dfme.config.defences import DEFENCES as OPTIONS
from dfme.config.defences import parse_defences
from dfme.data import load_dataset
from dfme.spec import LabelMode
from dfme.teachers.custom import wrap_callable
from dfme.teachers.owner.defences import DEFENCES
from dfme.teachers.owner.defences.wrapper import Defended

TABLE = (
    "lattice:n=10 lattice:n=3 temperature:t=2 temperature:t=.5 modelguard_w modelguard_w:margin=0 "
    "modelguard_s modelguard_s:epsilon=.3 reverse_sigmoid:beta=.7 reverse_sigmoid:beta=2 mad "
    "mad:epsilon=.4:q=net mad:vertices=extreme grad2 grad2:keep_top=true:q=net "
    "misinform:wrong=roll "
    "misinform:key_env=K misinform:wrong=net:gate=entropy:key_env=K "
    "misinform:gate=mahalanobis:data=digits:key_env=K noise:key_env=K "
    "noise:fresh=false:keep_top=true:key_env=K watermark:key_env=K:rate=.1 quota:images=20000 "
    "quota:images=20000:window=60 pow"
)
EVERY = TABLE.split()
WITHOUT_EFFECT = (
    "temperature:t=1 modelguard_w:epsilon=0 modelguard_s:epsilon=0:limit=20000 "
    "reverse_sigmoid:beta=0 "
    "reverse_sigmoid:gamma=0 mad:epsilon=0 mad:epsilon=0:q=net mad:epsilon=0:vertices=extreme "
    "grad2:epsilon=0 grad2:epsilon=0:keep_top=true:q=net noise:sigma=0:key_env=K "
    "watermark:rate=0:key_env=K quota:images=20000 pow quota:images=20000+pow+temperature:t=1"
)
ZERO = WITHOUT_EFFECT.split()
MOVING = [text for text in EVERY if "quota" not in text and "pow" not in text]


def test_every_defence_of_the_settings_is_carried_out_and_in_these_tables() -> None:
    assert DEFENCES.keys() == OPTIONS.keys() == {text.partition(":")[0] for text in EVERY}


@pytest.mark.parametrize("text", EVERY)
def test_what_it_states_is_true(text: str) -> None:
    p, y = truths()[:859], defended(text)(queries()[:859])
    (options,) = parse_defences(text)
    facts = options.facts(10)
    assert y.dtype == torch.float32
    assert float(y.min()) >= 0
    assert float((y.double().sum(1) - 1).abs().max()) < 1e-6
    same_top = y.argmax(1) == p.argmax(1)
    if facts.keeps_top == "yes":
        assert same_top.all()
    else:
        assert bool((~same_top).any()) or "net" in text or "beta=.7" in text
    if facts.keeps_top == "p_top>=1/2":
        assert same_top[p.amax(1) >= 0.5].all()
    if facts.l1 is not None:
        assert float((y.double() - p.double()).abs().sum(1).max()) <= facts.l1 + 1e-6
    assert text not in MOVING or not torch.equal(y, p), "without effect"


@pytest.mark.parametrize("text", ZERO)
def test_at_zero_strength_it_answers_bit_by_bit_as_without(text: str) -> None:
    images = queries()[:389]
    assert torch.equal(defended(text)(images), truths()[:389])
    for mode in ("label", "top_k:3:6"):
        truth = digits("none", mode)(images[300:]).nan_to_num()
        assert torch.equal(defended(text, mode)(images[300:]).nan_to_num(), truth)


@pytest.mark.parametrize("text", EVERY)
def test_how_images_are_split_changes_no_bit_of_answers_and_state(text: str) -> None:
    """Of the defence itself: a network's own last bits depend on the batch."""
    images, p = queries()[340:380], torch.softmax(3 * truths()[340:380].double().log(), 1)
    answers, states = [], []
    for sizes in (40, [1] * 12 + [7] * 4, [33, 7]):
        (defence,) = defended(text)._stack
        parts = zip(p.split(sizes), images.split(sizes), strict=True)
        answers.append(torch.cat([defence.answer(*part) for part in parts]))
        states.append(
            {name: value for name, value in defence.state_dict().items() if name != "window"}
        )
    for other, state in zip(answers[1:], states[1:], strict=True):
        exact = "mahalanobis" not in text  # which asks the network
        assert (
            torch.equal(other, answers[0])
            if exact
            else torch.allclose(other, answers[0], atol=1e-6)
        )
        assert str(state) == str(states[0])


def test_the_order_is_that_of_the_text_and_the_label_mode_comes_last() -> None:
    rounded = defended("temperature:t=2+lattice:n=10")(queries()[:100])
    assert torch.equal(rounded, (rounded * 10).round().div(10))
    assert not torch.equal(rounded, defended("lattice:n=10+temperature:t=2")(queries()[:100]))
    labels = defended("mad:vertices=extreme", "label")(queries()[:100])
    assert labels.dtype == torch.int64
    assert torch.equal(labels, defended("mad:vertices=extreme")(queries()[:100]).argmax(1))
    assert (defended("modelguard_w", "top_k:2")(queries()[:100]).isnan().sum(1) == 8).all()


def test_a_top_class_that_float32_would_tie_stays_ahead() -> None:
    """The first image's scores differ by 1e-9; the second has a clear top, and is answered as the
    first.
    """
    scores = torch.tensor([[0.0] * 9 + [1e-9], [0.0] * 9 + [1.0]])
    teacher = wrap_callable(
        lambda x: scores[: len(x)], shape=(1, 8, 8), num_classes=10, label_mode="logits"
    )
    first, second = Defended(teacher, parse_defences("modelguard_s"), LabelMode("probabilities"))(
        queries()[:2]
    )
    assert int(second.argmax()) == 9
    assert float((second - first).abs().max()) < 1e-7


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
