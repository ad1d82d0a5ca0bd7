"""Which of a program's outputs has the scores, and their form: one row for each image."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from dfme.config.messages import did_you_mean
from dfme.errors import OptionError, UserError, say

DEEPEST = 8  # of outputs within outputs


def by_name(answer: object) -> dict[str, object]:
    """Every output in an answer by its name: a key, a field or a place, as ``0`` and ``1.aux``."""
    return dict(_parts(answer, "", DEEPEST))


def _parts(answer: object, name: str, depth: int) -> Iterator[tuple[str, object]]:
    inside: Mapping[str, object] | None = None
    if isinstance(answer, Mapping):
        inside = {str(key): value for key, value in answer.items()}
    elif isinstance(answer, tuple | list):
        fields = getattr(answer, "_fields", map(str, range(len(answer))))
        inside = dict(zip(fields, answer, strict=False))
    if inside is None or depth == 0:
        if answer is not None:
            yield name or "0", answer
        return
    for key, value in inside.items():
        yield from _parts(value, f"{name}.{key}" if name else key, depth - 1)


def choose_output(
    source: str, outputs: Mapping[str, object], batch: int, wanted: str | None, classes: int | None
) -> str:
    """The name of the output with the scores: the wanted one, else the only one that can be meant.

    That is the only one, the only one of floating-point numbers, or the only one with a number for
    each of the ``classes`` that the user gave. UserError, with every name and shape, for several.
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
    names = list(outputs)
    if len(names) == 1:
        return names[0]
    floats = [name for name, value in outputs.items() if _is_float(value)]
    if len(floats) == 1:
        return floats[0]
    widths = {name: _width(outputs[name], batch) for name in floats}
    fitting = [name for name in floats if classes is not None and widths[name] in _fitting(classes)]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(
        f"{name} {_described(value, batch)}" for name, value in list(outputs.items())[:20]
    )
    raise UserError(
        say(
            "{}: has {} outputs, {}; name the one with the scores: {teacher.output} NAME",
            source,
            len(outputs),
            shown,
        )
    )


def rows(source: str, answer: object, batch: int) -> Tensor:
    """Scores (B, K) of an answer to ``batch`` images, without axes of size one. UserError if
    none.
    """
    if isinstance(answer, Tensor):
        width = _width(answer, batch)
        if width:
            return answer.reshape(batch, width)
    raise UserError(f"{source}: expected scores ({batch}, classes), got {_shown(answer)}")


def _fitting(classes: int) -> Sequence[int]:
    """Numbers of outputs of a model of so many classes."""
    return (1, 2) if classes == 2 else (classes,)


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


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


def _described(value: object, batch: int) -> str:
    """Shape of an output, with B for the batch, and its type if that is no floating-point
    number.
    """
    if not isinstance(value, Tensor) or value.ndim == 0 or value.shape[0] != batch:
        return _shown(value)
    shape = ", ".join(["B", *map(str, value.shape[1:])])
    return f"({shape}){_dtype(value)}"


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)}{_dtype(value)}"
    return value if isinstance(value, str) else f"a {type(value).__name__}"


def _dtype(value: Tensor) -> str:
    return "" if value.is_floating_point() else f" of {str(value.dtype).removeprefix('torch.')}"
