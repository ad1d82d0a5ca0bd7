"""Each defence keeps to its stated facts on the digits teacher's answers to real images and to
noise.
"""

import pytest
import torch
from defended import defended, digits, queries, truths

from dfme.config.defences import DEFENCES as OPTIONS
from dfme.config.defences import parse_defences
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
    count = 859 if "net" in text else 2_359  # a surrogate network is asked image by image
    p, y = truths()[:count], defended(text)(queries()[:count])
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
    images = queries()[:459]
    assert torch.equal(defended(text)(images), truths()[:459])
    for mode in ("label", "top_k:3:6"):
        truth = digits("none", mode)(images).nan_to_num()
        assert torch.equal(defended(text, mode)(images).nan_to_num(), truth)


@pytest.mark.parametrize("text", EVERY)
def test_how_images_are_split_changes_no_bit_of_answers_and_state(text: str) -> None:
    """Of the defence itself: a network's own last bits depend on the batch."""
    images, p = queries()[320:400], torch.softmax(3 * truths()[320:400].double().log(), 1)
    answers, states = [], []
    for sizes in (80, [1] * 24 + [7] * 8, [64, 16]):
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
