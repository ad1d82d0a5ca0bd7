"""Fidelity of one copy: its scores beside the teacher's answers, and images that differ."""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.image import imsave
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from dfme.answers.asking import binned_gaps
from dfme.answers.reading import largest, top_class
from dfme.audits.audit.parts import (
    Calibration,
    ClassAgreement,
    CopyFigures,
    Differences,
    DifferentAnswer,
    Fidelity,
    Interval,
    WhereWrong,
)
from dfme.data import ImageSet
from dfme.report.page import embedded
from dfme.report.run_files import to_picture
from dfme.run.evaluation import EvaluationSet
from dfme.run.scores import COMPARED, MANY_CLASSES, compare
from dfme.spec import ImageSpec, LabelMode
from dfme.statistics import wilson_interval
from dfme.students.losses import log_probabilities


@dataclass(frozen=True, slots=True)
class ExaminedCell:
    """A finished run in ``directory``; runs that are not examined in full give only figures over
    seeds.

    ``pictured``: images on which this copy and the teacher differ are shown.
    """

    name: str
    row: str
    mode: str
    seed: int
    directory: Path
    examined_in_full: bool
    pictured: bool = False


FIGURES = tuple(entry.name for entry in fields(CopyFigures))


def figures(answers: Tensor, mode: LabelMode, scores_NK: Tensor) -> CopyFigures:
    """Of a copy's scores (N, K) and the teacher's answers."""
    compared = compare(scores_NK, answers, mode)
    copy = CopyFigures(
        agreement=compared["agreement"],
        agreement_balanced=compared["agreement_balanced"],
        kl=compared.get("kl"),
    )
    if not mode.soft:
        return copy
    p_NK = log_probabilities(answers.double(), mode).exp()
    tau = kendall_tau(answers, scores_NK).nanmean().item()
    top3_equal = None
    if scores_NK.shape[1] > 3:
        copied_N3 = answers[largest(scores_NK, 3)].reshape(-1, 3).sort(1, descending=True).values
        top3_equal = (copied_N3 == answers.topk(3).values).all(1).double().mean().item()
    return replace(
        copy,
        l1=(p_NK - scores_NK.double().softmax(1)).abs().sum(1).mean().item(),
        kendall_tau=tau if tau > -2 else None,  # NaN is not
        top3_equal=top3_equal,
    )


def kendall_tau(a_NK: Tensor, b_NK: Tensor) -> Tensor:
    """Kendall's tau-b of each row (Biometrika 33, 1945, 239-251), float64 (N,); NaN if a side is
    all ties.
    """
    parts = []
    at_once = max(1, COMPARED // a_NK.shape[1] ** 2)
    for pair in zip(a_NK.split(at_once), b_NK.split(at_once), strict=True):
        a_BKK, b_BKK = ((x_BK[:, :, None] - x_BK[:, None]).sign() for x_BK in pair)
        untied_B = a_BKK.abs().sum((1, 2)).double() * b_BKK.abs().sum((1, 2)).double()
        parts.append((a_BKK * b_BKK).sum((1, 2)).double() / untied_B.sqrt())
    return torch.cat(parts)


def fidelity(
    cell: ExaminedCell,
    answers: Tensor,
    mode: LabelMode,
    scores_NK: Tensor,
    labels_N: Tensor | None,
    names: Sequence[str] = (),
) -> Fidelity:
    """Of a cell's copy, up to what these answers tell. The table is left out of more than
    ``MANY_CLASSES`` classes.
    """
    (images, classes) = scores_NK.shape
    top_N = top_class(answers)
    copied_N = scores_NK.argmax(1)
    pairs_N = top_N * classes + copied_N
    table_KK = torch.bincount(pairs_N, minlength=classes**2).view(classes, classes)
    names = numbers_without(names, classes)
    per_class = [
        ClassAgreement(number, names[number], count, alike / count if count else None)
        for number, (count, alike) in enumerate(
            zip(table_KK.sum(1).tolist(), table_KK.diag().tolist(), strict=True)
        )
    ]
    copy = Fidelity(
        cell=cell.name,
        row=cell.row,
        mode=cell.mode,
        seed=cell.seed,
        images=images,
        **asdict(figures(answers, mode, scores_NK)),
        interval=_wilson(int((copied_N == top_N).sum()), images),
        per_class=per_class,
        table=table_KK.tolist() if classes <= MANY_CLASSES else [],
    )
    if labels_N is None:
        return copy
    wrong_N = top_N != labels_N
    wrong = int(wrong_N.sum())
    same = int((wrong_N & (copied_N == top_N)).sum())
    teacher_ece = None
    if mode.soft:
        teacher_ece = calibration(log_probabilities(answers, mode).exp(), labels_N)
    return replace(
        copy,
        where_wrong=WhereWrong(wrong, same, _wilson(same, wrong)),
        teacher_ece=teacher_ece,
        clone_ece=calibration(scores_NK.softmax(1), labels_N),
    )


def _wilson(count: int, images: int) -> Interval | None:
    return Interval(*wilson_interval(count / images, images)) if images else None


def calibration(p_NK: Tensor, labels_N: Tensor) -> Calibration:
    """Calibration error and its 95 % interval: percentiles of 2,000 bootstraps over images (Efron
    1979).
    """
    (score_N, class_N) = p_NK.max(1)
    rng = torch.Generator().manual_seed(0)
    images = len(labels_N)
    gaps_NJ = binned_gaps(score_N, class_N == labels_N)
    drawn = (gaps_NJ[torch.randint(images, (images,), generator=rng)].sum(0) for _ in range(2_000))
    errors = torch.stack([gaps_NJ.sum(0), *drawn]).abs().sum(1) / images
    low, high = (errors[1:].quantile(share).item() for share in (0.025, 0.975))
    return Calibration(errors[0].item(), Interval(low, high))


MAX_SHOWN = 24
SIDE = 96  # pixels of the longer side of a picture at most


def differences(
    evaluation: EvaluationSet, copy: Any, answers: Tensor, scores_NK: Tensor, row: str
) -> Differences:
    """``MAX_SHOWN`` of the images that differ, evenly spread, each with both answers by class
    name.
    """
    names = numbers_without(evaluation.class_names, copy.num_classes)
    top_N = top_class(answers)
    copied_N = scores_NK.argmax(1)
    differ_M = (top_N != copied_N).nonzero()[:, 0]
    count = min(MAX_SHOWN, len(differ_M))
    picked_S = differ_M[torch.arange(count) * len(differ_M) // max(1, count)]
    pictures = list[DifferentAnswer]()
    pictures_SCHW = pick(evaluation.images, picked_S).cpu() if count else ()
    for place, x_CHW in zip(picked_S.tolist(), pictures_SCHW, strict=True):
        classes = names[int(top_N[place])], names[int(copied_N[place])]
        pictures.append(DifferentAnswer(_address(x_CHW, copy.spec), *classes))
    return Differences(row, len(top_N), len(differ_M), pictures)


def pick(images: Tensor | ImageSet, places_S: Tensor) -> Tensor:
    """The images at these places."""
    if isinstance(images, ImageSet):
        return images.batch(places_S)
    return images[places_S.to(images.device)]


def numbers_without(names: Sequence[str], classes: int) -> Sequence[str]:
    """The names of so many classes; their numbers where these are the names of others, or none."""
    return names if len(names) == classes else [*map(str, range(classes))]


def _address(x_CHW: Tensor, spec: ImageSpec) -> str:
    """A picture that holds itself, no larger than is seen."""
    (low, high) = spec.bounds
    times = max(1, -(-max(x_CHW.shape[1:]) // SIDE))
    (height, width) = (max(1, side // times) for side in x_CHW.shape[1:])
    small_CHW = adaptive_avg_pool2d(x_CHW.float(), (height, width))
    bytes_CHW = ((small_CHW - low) / (high - low) * 255).round().clamp(0, 255).byte()
    buffer = io.BytesIO()
    imsave(buffer, to_picture(bytes_CHW.numpy()), format="png")
    return embedded(buffer.getvalue())
