"""Which of a program's outputs has the scores, and their form: one row for each image."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from dfme.config.messages import did_you_mean
from dfme.errors import OptionError, UserError, say

DEEPEST = 8  # of outputs within outputs


def by_name(answer: object) -> dict[str, object]:
    """Every output in an answer by its name: a key, a field or a place, as ``0`` and ``1.aux``."""
    return dict(_parts(answer, "", DEEPEST))


def _parts(answer: object, name: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(answer, tuple | list):
        fields = getattr(answer, "_fields", range(len(answer)))
        answer = dict(zip(fields, answer, strict=False))
    if isinstance(answer, Mapping) and depth > 0:
        for key, value in answer.items():
            yield from _parts(value, f"{name}.{key}" if name else str(key), depth - 1)
    elif answer is not None:
        yield name or "0", answer


def choose_output(
    source: str, outputs: Mapping[str, object], batch: int, wanted: str | None, classes: int | None
) -> str:
    """The name of the output with the scores: the wanted one, else the only one that can be meant.

    Without a wanted one: the only output, the only one of floating-point numbers, or the only one
    with a number for each of the user's ``classes``. UserError, with every name and shape, if
    several remain.
    """
    if not outputs:
        raise UserError(f"{source}: answers nothing")
    if wanted is not None:
        if wanted not in outputs:
            hint = did_you_mean(wanted, outputs)
            raise OptionError(
                "teacher.output", f"{source} has {', '.join(outputs)}, got {wanted!r}{hint}"
            )
        return wanted
    floats = [
        name
        for name, value in outputs.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    widths = (1, 2) if classes == 2 else (classes,)
    fitting = [
        name for name in floats if classes is not None and _width(outputs[name], batch) in widths
    ]
    for candidates in (list(outputs), floats, fitting):
        if len(candidates) == 1:
            return candidates[0]
    described = ", ".join(
        f"{name} {_described(value, batch)}" for name, value in list(outputs.items())[:20]
    )
    raise UserError(
        say(
            "{}: has {} outputs, {}; name the one with the scores: {teacher.output} NAME",
            source,
            len(outputs),
            described,
        )
    )


def rows(source: str, answer: object, batch: int) -> Tensor:
    """Scores (B, K) of an answer to ``batch`` images, without axes of size one. UserError if
    none.
    """
    width = _width(answer, batch)
    if isinstance(answer, Tensor) and width:
        return answer.reshape(batch, width)
    raise UserError(f"{source}: expected scores ({batch}, classes), got {_described(answer)}")


def holds_whole_numbers(value: object) -> bool:
    """True for an output that may be labels."""
    return isinstance(value, Tensor) and not value.is_floating_point()


def _width(value: object, batch: int) -> int | None:
    """How many numbers an output has for each image; None if it has no row of them for each."""
    if not isinstance(value, Tensor):
        return None
    shape = list(value.shape)
    if value.ndim <= 1 and (batch == 1 or shape == [batch]):
        # without an axis for the one image, or for a binary model's one score
        lone = value.ndim == 0 or (shape == [batch] and value.is_floating_point())
        if lone:
            return 1
        return shape[0] if batch == 1 and value.is_floating_point() else None
    long = [size for size in shape[1:] if size != 1]
    if shape[0] != batch or len(long) > 1:
        return None
    return long[0] if long else 1


def _described(value: object, batch: int | None = None) -> str:
    """Shape of an output, with B for the batch, and its type unless that is floating-point."""
    if not isinstance(value, Tensor):
        return value if isinstance(value, str) else f"a {type(value).__name__}"
    shape = str(tuple(value.shape))
    if batch is not None and value.ndim and value.shape[0] == batch:
        shape = f"({', '.join(['B', *map(str, value.shape[1:])])})"
    dtype = str(value.dtype).removeprefix("torch.")
    return shape if value.is_floating_point() else f"{shape} of {dtype}"
