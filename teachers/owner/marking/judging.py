"""Whether a copy repeats a mark: its share of marks beside that of controls and of innocents."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from dfme.teachers.owner.marking.lessons import answers
from dfme.teachers.owner.marking.options import Weigh
from dfme.teachers.owner.marking.result import MAX_INNOCENT, CopyResult


@dataclass(frozen=True)
class Judge:
    """Marks, controls, the class that marks have, and the evidence of so many matches
    (``MarkTools.weigh``).
    """

    marks_MCHW: Tensor
    controls_NCHW: Tensor
    target: int
    weigh: Weigh

    def result(self, net: nn.Module, innocents: Sequence[nn.Module]) -> CopyResult:
        """A network is held against models that are no copies, and against how often it answers so
        anyway.
        """
        marks = len(self.marks_MCHW)
        controls = len(self.controls_NCHW)
        shares = [share_answered(other, self.marks_MCHW, self.target) for other in innocents]
        repeated = share_answered(net, self.marks_MCHW, self.target)
        anyway = share_answered(net, self.controls_NCHW, self.target)
        p_reference = (max(shares) * marks + 0.5) / (marks + 1)
        p_null, e_value = self.weigh(
            marks, round(repeated * marks), controls, round(anyway * controls), p_reference
        )
        return CopyResult(
            marks=repeated,
            controls=anyway,
            innocents=max(shares),
            p_null=p_null,
            e_value=e_value,
        )


MIN_MARKS = 10


@dataclass(frozen=True)
class Judged:
    """What a last copy of the marked model came to, and one of the unmarked model.

    ``owner``: the share of the images chosen that the marked model itself answers as marked, which
    are the marks.
    """

    marks_MCHW: Tensor
    controls_NCHW: Tensor
    owner: float
    copy: CopyResult
    unmarked_copy: CopyResult

    def holds(self, sure: float) -> bool:
        """Whether ``verify`` can be sure of a copy by this mark, from this e-value on, and of no
        innocent.
        """
        certain = self.copy.e_value >= sure > self.unmarked_copy.e_value
        secret = self.copy.innocents <= MAX_INNOCENT
        return certain and secret and len(self.marks_MCHW) >= MIN_MARKS


def share_answered(net: nn.Module, x_NCHW: Tensor, target: int) -> float:
    """Share of images that a network answers ``target``."""
    return float((answers(net, x_NCHW) == target).double().mean())


def share_right(answer_N: Tensor, classes_N: Tensor) -> float:
    return float((answer_N == classes_N).double().mean())


def newly_wrong(before_N: Tensor, after_N: Tensor, classes_N: Tensor) -> float:
    """Share of images that were answered rightly before and are answered wrongly after."""
    return float(((before_N == classes_N) & (after_N != classes_N)).double().mean())


def worst_class(before_N: Tensor, after_N: Tensor, classes_N: Tensor) -> float:
    """Points of accuracy that the class loses which loses most."""
    losses = list[float]()
    for number in classes_N.unique():
        of_class_N = classes_N == number
        first = share_right(before_N[of_class_N], classes_N[of_class_N])
        losses.append(100 * (first - share_right(after_N[of_class_N], classes_N[of_class_N])))
    return max(losses)
