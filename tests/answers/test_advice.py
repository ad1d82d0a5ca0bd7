"""What a run says of scores that are no probabilities: a cure that works, by the values alone."""

import pytest
import torch
from torch import Tensor

from dfme.answers.advice import decimals, rounded_to, what_to_do
from dfme.answers.reading import read_answers
from dfme.compute.modules import DeferredChecks
from dfme.errors import TeacherError
from dfme.spec import LabelMode

CPU = torch.device("cpu")
P_BK = (
    (torch.randn(32, 10, generator=torch.Generator().manual_seed(0)) * 1.5)
    .double()
    .softmax(1)
    .float()
)
TOP_BK = torch.zeros_like(P_BK).scatter(1, P_BK.topk(5).indices, P_BK.topk(5).values)

CUT: dict[str, tuple[Tensor, str]] = {
    "two decimals": (P_BK.round(decimals=2), "probabilities:2"),
    "one decimal": (P_BK.round(decimals=1), "probabilities:1"),
    "cut off at two decimals": ((P_BK * 100).floor() / 100, "probabilities:2"),
    "8 bits": ((P_BK * 255).floor() / 255, "probabilities:2"),
    "the five largest": (TOP_BK, "top_k:5"),
    "the five largest, rounded": (TOP_BK.round(decimals=3), "top_k:5:3"),
    "the largest alone": (P_BK * (P_BK.amax(1, keepdim=True) == P_BK), "top_k:1"),
}


def read(scores_BK: Tensor, mode: LabelMode) -> Tensor:
    deferred = DeferredChecks()
    return read_answers(scores_BK, len(scores_BK), scores_BK.shape[1], mode, deferred, CPU)


@pytest.mark.parametrize("name", CUT)
def test_the_advised_label_mode_reads_what_was_refused(name: str) -> None:
    scores_BK, mode = CUT[name]
    with pytest.raises(TeacherError, match=rf"start a new run with --teacher\.label-mode {mode}$"):
        read(scores_BK, LabelMode())
    known_BK = read(scores_BK, LabelMode.parse(mode))
    assert torch.equal(known_BK.nan_to_num(nan=-1.0).argmax(1), scores_BK.argmax(1))


OTHERS = {
    "logits": (P_BK.log() + 3, "--teacher.label-mode logits"),
    "logarithms of probabilities": (P_BK.log(), "--teacher.label-mode logits"),
    "logits above zero": (P_BK.log() + 20, "--teacher.label-mode logits"),
    "percentages": (100 * P_BK, "divide them by 100"),
    "a sigmoid for every class": (P_BK.log().add(1).sigmoid(), "a sigmoid of its own"),
    "NaN": (P_BK.log().sqrt(), "NaN or infinite values"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_scores_are_named_for_what_they_are(name: str) -> None:
    scores_BK, words = OTHERS[name]
    with pytest.raises(TeacherError) as caught:
        read(scores_BK, LabelMode())
    assert str(caught.value).endswith(words) or words in str(caught.value)
    assert ("label-mode logits" in str(caught.value)) == ("logits" in words)


def test_probabilities_that_are_not_rounded_have_no_decimals() -> None:
    assert decimals(P_BK) is None
    assert rounded_to(P_BK * 0.98) is None
    assert rounded_to(P_BK.round(decimals=3)) == 3
    assert what_to_do(P_BK * 0.5).startswith("each lies within 0 and 1")
