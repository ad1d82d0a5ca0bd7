"""How much likelier are a suspect's answers of a copy than of a model like the references? No
torch.

If a model of the references' kind gives the owner's answer with a probability of at most
``p_reference``, whatever it answered before, the product of likelihood ratios is an e-value: the
probability that it ever reaches 100 is at most 1/100 (Ville's inequality), however often one looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfme.statistics import e_value

SURE = 100.0  # e-value from which on a suspect is more alike than every reference
BATCH = 10  # images asked at once
MIN_ASKED = 50
"""Images after which a sure verdict may end the asking; few would be luck if p_reference is off."""
MIN_P_COPY = (
    0.5  # share of images on which a copy is held to match, fixed before a suspect is asked
)
MISTAKEN = (
    "gets wrong",
    "the same training data, the same pretrained weights, a common ancestor that both were "
    "fine-tuned from, "
    "one fine-tuned from the other with permission",
)
MARKED = (
    "was made to answer wrongly",
    "it learnt from your service's answers with permission, or from a model that did",
)
REPEATED = (
    "it was fine-tuned from your marked model, or learnt from its answers, with permission; or "
    "somebody who has the key taught it the marks; or it is a poor model that errs this way by "
    "chance, as some 5 in 100 of those did that were 68 to 86 % accurate (8x8 digits)"
)
NOT_TOLD = (
    "The figure is a likelihood, and no proof of copying. A copy of your model as it was before "
    "it was marked does not repeat the marks, nor does one out of which they were taken, by the "
    "key or by images with other labels: so few repeated marks acquit nobody."
)


class Evidence(NamedTuple):
    """Evidence of ``matches`` among the images ``asked``."""

    asked: int
    matches: int
    p_reference: float

    @property
    def p_copy(self) -> float:
        """Share of matches that a copy is held to have, above the references'."""
        return max(MIN_P_COPY, min(self.p_reference + 0.1, (1 + self.p_reference) / 2))

    @property
    def e_value(self) -> float:
        return e_value(self.matches, self.asked, self.p_copy, self.p_reference)

    @property
    def sure(self) -> bool:
        return self.e_value >= SURE

    @property
    def told(self) -> dict[str, Any]:
        return {**self._asdict(), "p_copy": self.p_copy, "e_value": self.e_value, "sure": self.sure}


class MarkEvidence(NamedTuple):
    """Answers to the marks and the controls of a key, of the images that were given a class.

    ``repeated``: marks that are answered as marked, ``controls_repeated``: controls that are
    answered so, too. ``p_reference``: of the references.
    """

    asked: int
    repeated: int
    controls: int
    controls_repeated: int
    p_reference: float

    @property
    def p_null(self) -> float:
        """The larger of the references' share and of this model's own on the controls: who gives
        the marked answer to most images of the class repeats the marks without being a copy.

        A control for every mark is counted: one that was given no class may hide such an answer.
        """
        missing = max(0, self.asked - self.controls)
        anyway = _cautious(self.controls_repeated + missing, self.controls + missing)
        return max(self.p_reference, anyway)

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.asked, self.repeated, self.p_null)

    @property
    def told(self) -> dict[str, Any]:
        seen = self.evidence
        figures = {"p_null": self.p_null, "p_copy": seen.p_copy, "e_value": seen.e_value}
        return {**self._asdict(), **figures, "sure": seen.sure}


def share(matches: int, images: int) -> float:
    """A share that is never 0 or 1, since a few images prove neither."""
    return (matches + 0.5) / (images + 1)


def _cautious(matches: int, images: int) -> float:
    """A share of controls, some more than was seen.

    So much more that a model with one rate on marks and controls, whatever the rate, is called a
    copy in less than 1 % of cases: .85 % at most of 50 marks and 50 controls, summed over both
    binomials (tests/audits/test_mark_evidence.py); with ``share`` it would be 1.4 %.
    """
    return (matches + 1.5) / (images + 2)


def follow(batches: Iterable[Sequence[bool]], p_reference: float) -> Evidence:
    """Count matches by batches, until the evidence is sure (from ``MIN_ASKED`` on) or no batch is
    left.
    """
    seen = Evidence(0, 0, p_reference)
    for batch in batches:
        seen = Evidence(seen.asked + len(batch), seen.matches + sum(batch), p_reference)
        if seen.asked >= MIN_ASKED and seen.sure:
            break
    return seen


def sentences(result: Mapping[str, Any]) -> list[str]:
    """For people: matches, how likely these are, what else explains them, what references came
    to.
    """
    figures = _of_marks(result) if result["marks"] else _of_mistakes(result)
    return [*figures, _of_references(result["references"])]


def _verdict(result: Mapping[str, Any]) -> str:
    return "More alike than every reference" if result["sure"] else "It cannot be told"


def _of_mistakes(result: Mapping[str, Any]) -> list[str]:
    wrong, why = MARKED if result["marked"] else MISTAKEN
    return [
        f"{_verdict(result)}: of {result['asked']} images that your model ({result['model']}) "
        f"{wrong}, "
        f"the suspect ({result['suspect']}) gave your model's answer to {result['matches']}, and "
        f"no reference to more than {result['p_reference']:.0%}.",
        f"This is {result['e_value']:.3g} times as likely of a copy, held to match on "
        f"{result['p_copy']:.0%}, as of a model like the references; from {SURE:.0f} times on, it "
        "is called more alike.",
        f"What else explains likeness: {why}; the figure is a likelihood, and no proof of copying.",
    ]


def _of_marks(result: Mapping[str, Any]) -> list[str]:
    marks = result["marks"]
    return [
        f"{_verdict(result)}: of {marks['asked']} secret images that your model "
        f"({result['model']}) was marked with, the suspect ({result['suspect']}) answers "
        f"{marks['repeated']} as marked, and no reference more than {marks['p_reference']:.0%}. "
        f"Of {marks['controls']} controls, images of the same class that were not marked, it "
        f"answers {marks['controls_repeated']} so, too.",
        f"This is {marks['e_value']:.3g} times as likely of a copy, held to repeat "
        f"{marks['p_copy']:.0%} of the marks, as of a model that repeats {marks['p_null']:.0%}: "
        "the larger of the references' most and of the suspect's own share of the controls. From "
        f"{SURE:.0f} times on, it is called more alike.",
        f"What else explains it: {REPEATED}. {NOT_TOLD}",
    ]


def _of_references(rows: Sequence[Mapping[str, Any]]) -> str:
    figures = ", ".join(f"{row['file']} {row['e_value']:.2g}" for row in rows)
    copies = " and ".join(row["file"] for row in rows if row["sure"])
    spoilt = (
        f"; but {copies} looks like a copy itself, so that little can be told" if copies else ""
    )
    return (
        f"Held to the same test, each left out, the references came to {figures}; with "
        f"{len(rows)} of them no rate of false alarms below {min(1.0, 3 / len(rows)):.0%} is "
        f"claimed{spoilt}."
    )
