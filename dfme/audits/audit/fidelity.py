"""Fidelity of one copy: its scores beside the teacher's answers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dfme.answers.asking import binned_gaps
from dfme.answers.reading import largest, top_class
from dfme.audits.audit.differences import numbers_without
from dfme.audits.audit.model import Entry
from dfme.run.scores import COMPARED, MANY_CLASSES, compare
from dfme.spec import LabelMode
from dfme.statistics import wilson_interval
from dfme.students.losses import log_probabilities

FIGURES = ("agreement", "agreement_balanced", "top3_equal", "kendall_tau", "kl", "l1")


def figures(answers: Tensor, mode: LabelMode, scores_NK: Tensor) -> Entry:
    """``FIGURES`` of a copy's scores (N, K) and the teacher's answers; None where these hide what
    it needs.

    ``top3_equal``: share of images where the copy's three likeliest classes are three likeliest of
    the teacher's, which of equal scores (rounded ones) are any. ``kendall_tau``: mean over the
    images where neither side ties all classes. ``kl``: mean KL(teacher || copy) in nats. ``l1``:
    mean |p - q|.
    """
    compared = compare(scores_NK, answers, mode)
    found: Entry = {name: compared.get(name) for name in FIGURES}
    if mode.soft:
        p_NK = log_probabilities(answers.double(), mode).exp()
        found["l1"] = (p_NK - scores_NK.double().softmax(1)).abs().sum(1).mean().item()
        found["kendall_tau"] = (
            tau if (tau := kendall_tau(answers, scores_NK).nanmean().item()) > -2 else None
        )
        if scores_NK.shape[1] > 3:
            own_N3 = answers[largest(scores_NK, 3)].reshape(-1, 3).sort(1, descending=True).values
            found["top3_equal"] = (own_N3 == answers.topk(3).values).all(1).double().mean().item()
    return found


def kendall_tau(a_NK: Tensor, b_NK: Tensor) -> Tensor:
    """Kendall's tau-b of each row (Biometrika 33, 1945, 239-251), float64 (N,); NaN if a side is
    all ties.
    """
    found = []
    at_once = max(1, COMPARED // a_NK.shape[1] ** 2)
    for pair in zip(a_NK.split(at_once), b_NK.split(at_once), strict=True):
        a_BKK, b_BKK = ((each[:, :, None] - each[:, None]).sign() for each in pair)
        untied_B = a_BKK.abs().sum((1, 2)).double() * b_BKK.abs().sum((1, 2)).double()
        found.append((a_BKK * b_BKK).sum((1, 2)).double() / untied_B.sqrt())
    return torch.cat(found)


def examined(
    answers: Tensor,
    mode: LabelMode,
    scores_NK: Tensor,
    labels_N: Tensor | None,
    names: Sequence[str] = (),
) -> Entry:
    """One copy's entry in ``audit.json``, as far as these answers tell.

    ``where_wrong``: images that the teacher gets wrong, and those of them where the copy gives the
    same wrong class. ``table`` (teacher x copy, counts) is left empty for more than
    ``MANY_CLASSES`` classes.
    """
    (images, classes) = scores_NK.shape
    top_N = top_class(answers)
    own_N = scores_NK.argmax(1)
    table_KK = torch.bincount(top_N * classes + own_N, minlength=classes**2).view(classes, classes)
    of_class = table_KK.sum(1).tolist()
    names = numbers_without(names, classes)
    beside: Entry = dict.fromkeys(("where_wrong", "teacher_ece", "clone_ece"))
    if labels_N is not None:
        wrong_N = top_N != labels_N
        count = int(wrong_N.sum())
        same = int((wrong_N & (own_N == top_N)).sum())
        beside["where_wrong"] = {"images": count, "same": same, "interval": _wilson(same, count)}
        beside["clone_ece"] = calibration(scores_NK.softmax(1), labels_N)
        if mode.soft:
            beside["teacher_ece"] = calibration(log_probabilities(answers, mode).exp(), labels_N)
    return {
        "images": images,
        **figures(answers, mode, scores_NK),
        "interval": _wilson(int((own_N == top_N).sum()), images),
        "per_class": [
            {
                "class": k,
                "name": names[k],
                "images": n,
                "agreement": int(table_KK[k, k]) / n if n else None,
            }
            for k, n in enumerate(of_class)
        ],
        "table": table_KK.tolist() if classes <= MANY_CLASSES else [],
        **beside,
    }


def _wilson(count: int, images: int) -> list[float] | None:
    return list(wilson_interval(count / images, images)) if images else None


def calibration(p_NK: Tensor, labels_N: Tensor) -> Entry:
    """Calibration error and its 95 % interval: percentiles of 2,000 bootstraps over images (Efron
    1979).
    """
    (score_N, class_N) = p_NK.max(1)
    rng = torch.Generator().manual_seed(0)
    images = len(labels_N)
    gaps_NJ = binned_gaps(score_N, class_N == labels_N)
    drawn = (gaps_NJ[torch.randint(images, (images,), generator=rng)].sum(0) for _ in range(2_000))
    errors = torch.stack([gaps_NJ.sum(0), *drawn]).abs().sum(1) / images
    interval = [errors[1:].quantile(share).item() for share in (0.025, 0.975)]
    return {"value": errors[0].item(), "interval": interval}
