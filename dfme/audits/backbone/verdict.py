"""What one look says of a teacher and the backbones that it may be made of: facts and words. No
torch.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dfme.report.terminal import aligned

VerdictKind = Literal["frozen", "tuned", "other", "unknown"]
"""``frozen``: this backbone as it was published, under a linear head. ``tuned``: its features
explain the answers, and clearly less so in any other form of the images, but not exactly.
``other``: nothing speaks for this backbone. ``unknown``: the answers are too few or too coarse.
"""

EXACT = 1e-3
"""As ``EXACT`` of dfme/students/heads.py, which loads torch."""

MUCH = 0.9
"""Agreement above which a model counts as vulnerable (OWASP AITG-APP-09): no advice leads there."""

AS_GIVEN = "as they are"
TWO = "2 decimals"
LABELS = "labels alone"


@dataclass(frozen=True)
class Leak:
    """What somebody who has the backbone gets from the same answers in another form.

    ``answers``: the form, in words. ``agreement``: of the head that they give, on held-back ones.
    """

    answers: str
    agreement: float


@dataclass(frozen=True)
class CandidateVerdict:
    """One backbone beside the answers.

    ``form``: how images reach the backbone; of all forms that were tried the one that explains
    most. ``lead``: how much more of the variance it explains than those of another mean and
    deviation, in the fifth of the images where that is least. ``residual``: of the solve, on
    held-back answers, as a share of a constant answer's error; None of labels, and where it says
    nothing. ``explained``: share of the held-back answers' variance that a linear head on the
    features explains. ``agreement``: of that head on held-back answers. ``needed``: answers that an
    exact copy needs.
    """

    name: str
    arch: str
    digest: str
    width: int
    form: str
    kind: VerdictKind
    reason: str
    lead: float
    residual: float | None
    explained: float
    agreement: float
    needed: int

    @property
    def is_exact(self) -> bool:
        """True if the solve leaves nothing but rounding errors of float32 answers."""
        return self.kind == "frozen" and (self.residual or 0) < EXACT

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.kind == "frozen":
            what = "a frozen public backbone with a linear head: copied exactly"
            if not self.is_exact:
                what = "this backbone, frozen or hardly tuned, with a linear head: copied "
                what += f"({self.agreement:.1%})"
            return f"{what} by {self.needed:,} answers"
        if self.kind == "unknown":
            return f"cannot be told: {self.reason}"
        explain = f"explain {self.explained:.0%} of the answers' variance"
        if self.kind == "tuned":
            ways = "likely tuned, or under a head of several layers, or answers that are changed"
            return f"{ways}: its features still {explain}"
        return f"not this backbone, or tuned far away: its features {explain}"


@dataclass(frozen=True)
class BackboneVerdict:
    """What one look at a teacher says; plain data, the best candidate first.

    ``images``, ``answers``: their form, in words. ``asked``: images charged, in ``requests``.
    ``answered``: those with an answer. ``constant``: agreement of the most frequent answer with all
    of them; ``classes``: how many of ``of_classes`` they name. ``leaks``: of the best candidate.
    ``price_per_1000`` and ``rate`` (images a second): as stated of the teacher, or None.
    """

    images: str
    answers: str
    asked: int
    requests: int
    answered: int
    classes: int
    of_classes: int
    constant: float
    candidates: tuple[CandidateVerdict, ...]
    leaks: tuple[Leak, ...]
    price_per_1000: float | None = None
    rate: float | None = None

    @property
    def best(self) -> CandidateVerdict:
        """The candidate that explains most."""
        return self.candidates[0]

    @property
    def is_frozen(self) -> bool:
        """True if one of the candidates is copied exactly."""
        return self.best.kind == "frozen"

    @property
    def bill(self) -> str:
        """What an exact copy costs, in words."""
        return f"{self.best.needed:,} answers{self.cost_of(self.best.needed)}"

    def cost_of(self, images: int) -> str:
        """What so many images cost, and take at the stated rate; "" where nothing is stated."""
        parts = []
        if self.price_per_1000 is not None:
            parts.append(f"{images * self.price_per_1000 / 1000:,.2f} at the price given")
        if self.rate is not None:
            parts.append(f"{spoken(images / self.rate)} at the rate given")
        return "".join(f", {part}" for part in parts)

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        leaks = {leak.answers: leak.agreement for leak in self.leaks}
        if self.is_frozen and TWO in leaks:
            left = (
                f"two decimals leave {leaks[TWO]:.0%} of it, labels alone {leaks[LABELS]:.0%}, a "
                f"constant answer has {self.constant:.0%}"
            )
            if leaks[TWO] < MUCH:
                return f"answer probabilities of two decimals: the exact copy is gone; {left}"
            return (
                "answer labels alone, or tune the backbone: two decimals end the exact copy, and "
                f"hardly more; {left}"
            )
        if self.is_frozen:
            return "these answers give the head away: answer labels alone, or tune the backbone"
        if self.best.kind == "unknown":
            return (
                "what cannot be told is no safety: somebody with these weights and pictures like "
                "yours trains a head (run.py audit --student.weights FILE measures it)"
            )
        return (
            "no exact copy by linear equations, which is no safety: a student that starts from "
            "these weights was not tried here (run.py audit --student.weights FILE measures it)"
        )

    def document(self) -> dict[str, Any]:
        """The same as JSON has it, with the sentences."""
        content = asdict(self)
        for row, candidate in zip(content["candidates"], self.candidates, strict=True):
            row["sentence"] = candidate.sentence
        return content | {"advice": self.advice}


def spoken(seconds: float) -> str:
    """Seconds, or minutes or hours where there are many."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6_000 else f"{seconds / 3600:.0f} hours"


def lines_of(verdict: BackboneVerdict) -> Iterator[str]:
    """The tables, aligned, and the advice."""
    facts = [
        ("images", verdict.images),
        (
            "asked",
            f"{verdict.asked:,} drawn images charged (check), in {verdict.requests:,} requests"
            f"{verdict.cost_of(verdict.asked)}",
        ),
        (
            "answers",
            f"{verdict.answers}; they name {verdict.classes} of {verdict.of_classes} classes, and "
            f"a constant answer has {verdict.constant:.0%} of them",
        ),
    ]
    if left_out := verdict.asked - verdict.answered:
        facts.append(("no answer", f"to {left_out:,} images; they are charged and left out"))
    yield from aligned(facts).splitlines()
    yield ""
    yield from _candidates(verdict)
    yield ""
    yield f"what the same answers leave to somebody who has {verdict.best.name}"
    yield "(agreement on held-back answers):"
    rows = [(leak.answers, leak.agreement) for leak in verdict.leaks]
    for label, share in [*rows, ("a constant answer", verdict.constant)]:
        yield f"{label:20}{share:>7.1%}"
    if verdict.is_frozen:
        yield f"{'an exact copy':20}{verdict.bill:>7}"
    yield ""
    yield f"advice: {verdict.advice}"


def _candidates(verdict: BackboneVerdict) -> Iterator[str]:
    """A row for each backbone, its verdict below it."""
    width = max(len("backbone"), *(len(candidate.name) for candidate in verdict.candidates))
    yield f"{'backbone':{width}}  {'features':>8}  {'residual':>8}  images as"
    for candidate in verdict.candidates:
        residual = "-" if candidate.residual is None else f"{candidate.residual:.1e}"
        yield (f"{candidate.name:{width}}  {candidate.width:>8,}  {residual:>8}  {candidate.form}")
        yield f"  {candidate.sentence}"
