"""What a marking came to: mark.json, and the same in words. No image, no direction and no class of
the rule is in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from dfme.errors import RunError
from dfme.files import open_file, write_text
from dfme.statistics import wilson_interval

RESULT = "mark.json"
PAGE = "mark.md"
MODEL = "model.safetensors"
KEY = "marks.key"
SHEET = "marks.png"
FORM = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
MAX_RESULT = 1_000_000  # bytes
MAX_INNOCENT = 0.1
"""Share of the marks that a model which is no copy may answer as marked: where one answers more so,
others may, and be accused."""

ShareOf = Annotated[float, Field(ge=0, le=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
MarkOutcome = Literal["holds", "does not hold", "costs too much"]

ANEW = (
    "What to do: mark again, in another directory: without a seed of yours other rules are drawn. "
    "More candidates take longer; a larger share is learnt better, and costs more accuracy.",
)
NOT_SHOWN = (
    "Not shown: who labels some 500 images himself, or leaves out the labels that a second copy "
    "doubts, can take the mark out; a copy that was made before the model was marked, or without "
    "any image like yours, may not have it; and one copy by this machine is no promise about "
    "another's.",
    "The harm: the images that the rule changes are answered wrongly always and in the same way, "
    "maybe those of one group of your users (look at marks.png), and whoever has the key, or your "
    "images and the seed, can take the mark out.",
)


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Share of the test images that are answered rightly, with its 95 % interval."""

    share: ShareOf
    low: ShareOf
    high: ShareOf

    @classmethod
    def of(cls, share: float, images: int) -> "Accuracy":
        low, high = wilson_interval(share, images)
        return cls(share=share, low=low, high=high)


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class CopyResult:
    """Of a copy: the shares of marks and of controls that it answers as marked, and the evidence
    that this is (``p_null``: the share that a model which is no copy is held to reach).
    ``innocents``: the most of the marks that one which is none answers so.
    """

    marks: ShareOf
    controls: ShareOf
    innocents: ShareOf
    p_null: ShareOf
    e_value: Annotated[float, Field(ge=0)]


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class RehearsedRule:
    """Of one rule: the shares of marks and of controls that a rehearsal copy answers as marked, and
    the most of the marks that an innocent does.
    """

    copy: ShareOf
    controls: ShareOf
    innocent: ShareOf

    @property
    def rank(self) -> tuple[bool, float]:
        """The more, the better: first whether innocents do without it, then how far the copy stands
        out above innocents, and above what it answers so anyway.
        """
        gap = self.copy - max(self.innocent, self.controls)
        return self.innocent <= MAX_INNOCENT, gap


@with_config(FORM)
@dataclass(frozen=True, kw_only=True)
class MarkResult:
    """What mark.json holds. ``changed``: share of the test images that the rule changes;
    ``newly_wrong``: share that the model answered rightly before and answers wrongly now;
    ``worst_class``: points that the class loses which loses most; ``owner``: share of the images
    chosen that the marked model answers as marked, which are the marks. Without a copy where the
    mark costs too much.
    """

    schema: Literal["dfme.mark/1"] = "dfme.mark/1"
    dfme: str
    outcome: MarkOutcome
    accuracy_before: Accuracy
    accuracy_after: Accuracy
    constant: ShareOf
    test_images: int
    worst_class: float
    share: ShareOf
    changed: ShareOf
    newly_wrong: ShareOf
    candidates: tuple[RehearsedRule, ...]
    marks: int
    controls: int
    owner: ShareOf
    copy: CopyResult | None
    unmarked_copy: CopyResult | None
    copy_images: int
    copy_arch: str
    key_sha256: Digest | None
    model_sha256: Digest | None
    original_sha256: Digest
    seconds: Annotated[float, Field(ge=0)]
    seed: int | None
    text: tuple[str, ...] = NOT_SHOWN

    @property
    def loss(self) -> float:
        """Points of accuracy that the mark costs."""
        return 100 * (self.accuracy_before.share - self.accuracy_after.share)

    def rows(self) -> list[tuple[str, str]]:
        """A short table."""
        before = self.accuracy_before
        after = self.accuracy_after
        rows = [
            ("the mark", self._verdict()),
            (
                "accuracy",
                f"{before.share:.1%} before, {after.share:.1%} after "
                f"({after.low:.1%} to {after.high:.1%} on {self.test_images:,} test images; "
                f"constant answer {self.constant:.1%})",
            ),
            (
                "answered wrongly",
                f"{self.newly_wrong:.2%} of the test images that were answered rightly before, "
                f"and so of your users' images, always (the rule changes {self.changed:.2%}); the "
                f"class that loses most loses {self.worst_class:.1f} points",
            ),
        ]
        if self.copy is None or self.unmarked_copy is None:
            return rows
        of = f"{self.copy_arch}, {self.copy_images:,} labels"
        return [
            *rows,
            (
                "marks",
                f"{self.marks} ({self.owner:.0%} of the images chosen are answered so by the "
                f"model itself) and {self.controls} controls",
            ),
            (f"a copy ({of})", _said(self.copy)),
            ("one of the unmarked model", _said(self.unmarked_copy)),
        ]

    def _verdict(self) -> str:
        if self.outcome == "holds":
            return "holds here: a copy repeats it, and a copy of the unmarked model does not"
        if self.outcome == "costs too much":
            return (
                f"costs too much ({self.loss:.1f} points of accuracy), or spills over to controls; "
                "no model is written"
            )
        return "does not hold here: a copy cannot be told by it; nothing to use is written"


def _said(copy: CopyResult) -> str:
    return (
        f"{copy.marks:.0%} of the marks (innocents at most {copy.innocents:.0%}), "
        f"{copy.controls:.0%} of the controls, e-value {copy.e_value:.3g}"
    )


ADAPTER = TypeAdapter(MarkResult)


def write_result(folder: Path, result: MarkResult) -> None:
    """mark.md, and mark.json, whose presence says that the marking is done."""
    lines = ["# A mark in a model", ""]
    lines += [f"- **{title}**: {text}" for title, text in result.rows()]
    lines += ["", *(f"{sentence}\n" for sentence in result.text)]
    if result.outcome == "holds":
        lines += [
            f"Marked weights: SHA-256 {result.model_sha256}; the key's digest: "
            f"{result.key_sha256}. Serve the marked model instead of the unmarked one, and keep "
            f"{KEY} and {SHEET} secret.",
        ]
    write_text(folder / PAGE, "\n".join(lines).rstrip() + "\n")
    write_text(folder / RESULT, ADAPTER.dump_json(result, indent=1).decode() + "\n")


def read_result(folder: Path) -> MarkResult | None:
    """What a finished marking came to; None for one that is not finished. RunError for damage."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        with open_file(path) as file:
            return ADAPTER.validate_json(file.read(MAX_RESULT))
    except (OSError, ValidationError) as error:
        raise RunError(f"{path}: it is damaged, or no result of run.py mark") from error
