"""A look at a teacher before anything is built on it: form, precision and speed of its answers."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from dfme.ledger import Ledger
from dfme.oracle import Oracle
from dfme.spec import Teacher

MOST_DECIMALS = 7
"""float32 probabilities carry about seven decimals: answers with more are not rounded."""


def examine(teacher: Teacher, images: int, seed: int) -> str:
    """Ask for ``images`` images of uniform noise, twice, charged as ``check``; describe the answers in lines.

    Raises:
        TeacherError: if the answers are not what the teacher's own description says.
    """
    ledger = Ledger(2 * images)
    oracle = Oracle(teacher, ledger)
    low, high = teacher.spec.bounds
    noise = torch.rand((images, *teacher.spec.shape), generator=torch.Generator().manual_seed(seed))
    queries_BCHW = teacher.spec.quantise(noise * (high - low) + low)
    first = oracle(queries_BCHW, purpose="check")
    started = time.perf_counter()
    second = oracle(queries_BCHW, purpose="check")
    seconds = time.perf_counter() - started
    lines = {
        "images": _images(teacher),
        "classes": f"{teacher.num_classes}, of which noise shows {_classes_seen(first)}",
        "answers": _answers(teacher, first),
        "deterministic": _repeatable(first, second),
        "speed": f"{images / max(seconds, 1e-9):,.0f} images per second, {images} at a time",
        "queries": f"{ledger.spent} images charged (check), in {ledger.requests} requests",
    }
    return "\n".join(f"{name:15}{text}" for name, text in lines.items())


def decimals(scores: Tensor) -> int | None:
    """The fewest decimals that carry the scores exactly (to float32), or None if they are not rounded."""
    known = scores[torch.isfinite(scores)].double()
    for places in range(1, MOST_DECIMALS):
        step = 10.0**-places
        if ((known / step).round() * step - known).abs().max() < 1e-7:
            return places
    return None


def _images(teacher: Teacher) -> str:
    spec = teacher.spec
    low, high = spec.bounds
    carried = "floats" if spec.levels is None else f"{spec.levels} levels"
    limit = getattr(teacher, "max_batch", None)
    most = "any number" if limit is None else f"at most {limit}"
    return f"{'x'.join(map(str, spec.shape))} within {low:g} and {high:g}, as {carried}, {most} in one call"


def _classes_seen(answers: Tensor) -> int:
    top = answers if answers.ndim == 1 else answers.nan_to_num(nan=float("-inf")).argmax(dim=1)
    return len(set(top.tolist()))


def _answers(teacher: Teacher, answers: Tensor) -> str:
    if answers.ndim == 1:
        return f"{teacher.label_mode}: a class number per image, no scores"
    places = decimals(answers)
    return f"{teacher.label_mode}, {'not rounded' if places is None else f'rounded to {places} decimals'}"


def _repeatable(first: Tensor, second: Tensor) -> str:
    left, right = first.double().nan_to_num(), second.double().nan_to_num()
    difference = (left - right).abs().max().item()
    if difference == 0:
        return "yes: the same images got the same answers"
    return f"no: the same images' answers differ by up to {difference:.2g}"
