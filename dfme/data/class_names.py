"""Names of classes and files: shown on one line, refused where files and pages cannot hold them,
read from an option; and a data set's labels put in the order of the teacher's.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dfme.config.messages import safe_name
from dfme.data.images import ImageSet
from dfme.errors import OptionError, UserError, flag, say

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 4_000_000
SHOWN = 8  # names of classes in a message
LISTED = 6  # names of files and folders in a message

BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Letters that reverse the text around them."""


def listed(names: Iterable[str], most: int = LISTED) -> str:
    """Names for a message, of many the first."""
    every = [*names]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(map(safe_name, every[:most])) + more


def require_names(names: Sequence[str], where: str) -> None:
    """UserError for a name of a class that files and pages cannot hold.

    They end up in JSON, YAML and HTML, which are written after everything is paid for.
    """
    for name in names:
        if problem := _problem_of(name):
            raise UserError(
                f"{where}: the name {safe_name(name)!r} {problem}; give it another name"
            )


def require_text(names: Iterable[object], where: str) -> None:
    """UserError for a class name of a teacher that is not UTF-8; all else is made plain when it is
    shown.
    """
    for name in names:
        if isinstance(name, str) and not _is_utf8(name):
            raise UserError(
                f"{where}: the name {safe_name(name)!r} is not UTF-8; give it another name"
            )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem_of(name: str) -> str:
    if not _is_utf8(name):
        return "is not UTF-8"
    kinds = {unicodedata.category(letter) for letter in name}
    if kinds & {"Cc", "Zl", "Zp"}:
        return "has a line break or another control character"
    return "has a letter that reverses text" if BIDIRECTIONAL & {*name} else ""


def numbered(
    data: ImageSet,
    num_classes: int,
    given: Sequence[str] | str | None,
    announced: Sequence[str] | None,
    *,
    folder: bool,
) -> ImageSet:
    """The images with labels that are a teacher's numbers of their classes, of which it has
    ``num_classes``.

    The order is ``given``, as --evaluation.classes is, else that of the names the teacher has
    ``announced``, else the data set's own. UserError for names that do not fit; of announced ones,
    only where those here are a ``folder``'s. UserError, too, for a folder's names that are numbers,
    where these and their order say different things. A note is added where the folder has fewer
    classes than the teacher.
    """
    ours = data.class_names
    names = _telling(announced, num_classes)
    if data.num_classes > num_classes:
        from_one = data.labels is not None and not ours and data.num_classes == num_classes + 1
        first = (
            " (its labels begin at 1; subtract 1)"
            if from_one and int(data.required_labels.min())
            else ""
        )
        raise OptionError(
            "evaluation.dataset",
            f"{data.name} has {data.num_classes} "
            f"classes{_list(surprising(ours, names))}{first}, but the teacher answers "
            f"{num_classes}{_list(names)}; choose the data set the teacher was made for",
        )
    chosen = names if given is None else read_names(given, flag("evaluation.classes"))
    if chosen is None or (given is None and not ours):
        return _by_position(data, num_classes, announced) if folder else data
    ordered = in_order(data, chosen)
    if given is not None and (ordered is None or len(chosen) not in (len(ours), num_classes)):
        raise OptionError(
            "evaluation.classes",
            f"expected each class of {data.name} "
            f"once{_list(surprising(ours, chosen)) or ', which names none'}, got "
            f"{shown_names(chosen)}{_odd('left out', ours, chosen)}"
            f"{_odd('not there', chosen, ours)}",
        )
    if ordered is None and folder:
        raise OptionError(
            "evaluation.dataset",
            say(
                "the classes of {} are {}, but the teacher's are {}{}; name the folders as the "
                "teacher does, or give {evaluation.classes}: the folders' names in the teacher's "
                "order",
                data.name,
                shown_names(surprising(ours, chosen)),
                shown_names(chosen),
                _odd("not among these", ours, chosen),
            ),
        )
    return ordered or data


def _by_position(data: ImageSet, num_classes: int, announced: Sequence[str] | None) -> ImageSet:
    """A folder's images for a teacher whose classes have no names: numbered as the folders sort.

    UserError where the names are numbers that say something else. A note tells of fewer classes.
    """
    names = data.class_names
    if not names:
        return data
    if all(re.fullmatch(r"[0-9]{1,9}", name) for name in names):
        values = [int(name) for name in names]
        places = list(range(len(names)))
        by_number = (
            values
            if max(values) < num_classes
            else [sorted(values).index(value) for value in values]
        )
        if len(set(values)) == len(values) and by_number != places:
            return _by_number(data, by_number, num_classes, announced)
    if len(names) < num_classes:
        data.notes.append(
            f"its {len(names)} class folders ({shown_names(names)}) are taken for the first of the "
            "teacher's "
            f"{num_classes} classes; if they are others, give all names in the teacher's order by "
            f"{flag('evaluation.classes')}"
        )
    return data


def _by_number(
    data: ImageSet, by_number: Sequence[int], num_classes: int, announced: Sequence[str] | None
) -> ImageSet:
    """Folders named by numbers whose order as text is another: as a teacher that numbers its
    classes says.
    """
    import torch

    labels = data.class_names
    if announced is not None and len(announced) == num_classes and max(by_number) < num_classes:
        names = tuple(map(str, range(num_classes)))
        order = torch.tensor(by_number)
        return replace(data, labels=order[data.required_labels], class_names=names)
    raise OptionError(
        "evaluation.dataset",
        say(
            "the class folders of {} are numbers, and sort as {}: nothing says whether the "
            "teacher counts them in this order or by their values; give {evaluation.classes}, all "
            "of the teacher's classes in its order, as 0,1,2,... or in a file of a name a line",
            data.name,
            shown_names(labels),
        ),
    )


def surprising(names: Sequence[str], others: Sequence[str] | None) -> list[str]:
    """The names; of many, those first that the ``others`` lack or that are written unlike most."""
    if len(names) <= SHOWN:
        return list(names)
    familiar = None if others is None else set(map(_plain, others))
    forms = Counter(map(_form, names))

    def rank(name: str) -> tuple[bool, int]:
        return familiar is None or _plain(name) in familiar, forms[_form(name)]

    return sorted(names, key=rank)


def _form(name: str) -> str:
    """How a name is written: signs, words and numbers in their order."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"[0-9]+", "0", name))


def in_order(data: ImageSet, names: Sequence[str]) -> ImageSet | None:
    """The images with labels that index ``names``, however these are written; None if a class is
    missing.

    Names that differ in case alone, such as those of letters, have to be written alike.
    """
    import torch

    key = _plain if len(set(map(_plain, names))) == len(names) else str
    places = {key(name): number for number, name in enumerate(names)}
    numbers = [places.get(key(name), -1) for name in data.class_names]
    if not numbers or len(places) < len(names) or -1 in numbers or len(set(numbers)) < len(numbers):
        return None
    return replace(
        data, labels=torch.tensor(numbers)[data.required_labels], class_names=tuple(names)
    )


def order_of(classes: int, ours: Sequence[str], names: Sequence[str]) -> Tensor:
    """Places (classes,) among ``names`` of a net's classes ``ours``; their own where these are
    others.
    """
    import torch

    data = ImageSet("", torch.empty(classes, 1, 1, 1), torch.arange(classes), tuple(ours))
    return (in_order(data, names) or data).required_labels


def _telling(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...] | None:
    """Names that a teacher announces; None if missing or if they only number the classes."""
    if (
        names is None
        or len(names) != num_classes
        or not all(isinstance(name, str) for name in names)
    ):
        return None
    numbers = all(re.fullmatch(rf"(LABEL_|class_?)?0*{n}", name) for n, name in enumerate(names))
    return None if numbers else tuple(names)


def _list(names: Sequence[str] | None) -> str:
    return f" ({shown_names(names)})" if names else ""


def _odd(what: str, names: Sequence[str], others: Sequence[str]) -> str:
    """Which of the names are none of the others."""
    familiar = set(map(_plain, others))
    odd = [name for name in names if _plain(name) not in familiar]
    return f"; {what}: {shown_names(odd)}" if odd else ""


def shown_names(names: Sequence[str]) -> str:
    """The names of classes for a message, of many the first, each shortened."""
    return listed([name[:40] for name in names], SHOWN)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def read_names(
    names_or_text: Sequence[str] | str, option: str, folder: Path | None = None
) -> tuple[str, ...]:
    """Class names from a list, a comma-separated text or a text file; UserError names ``option``.

    ``folder``: where a file has to lie, at any depth; None: anywhere.
    """
    names = (
        _from_text(names_or_text, option, folder)
        if isinstance(names_or_text, str)
        else [str(name).strip() for name in names_or_text]
    )
    require_text(names, option)
    if len(names) < 2:
        raise UserError(f"{option}: expected at least two classes, got {len(names)}")
    if "" in names:
        raise UserError(
            f"{option}: expected a name for each class, got an empty one as number "
            f"{names.index('') + 1}"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{option}: expected each class once, got {twice[0]!r} twice")
    return tuple(names)


def _from_text(given: str, option: str, folder: Path | None) -> list[str]:
    path = Path(given) if folder is None else folder / given
    if not os.path.isfile(path):  # false of a list of names that is too long for a path, too
        if "," in given:
            return [name.strip() for name in given.split(",")]
        raise UserError(
            f"{option}: expected names separated by commas, or a text file with one a line; no "
            f"file {path}"
        )
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{option}: expected a file in {folder}, got {given}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{option}: cannot read {path}: {reason}") from None
    if len(content) > MAX_BYTES:
        raise UserError(
            f"{option}: expected at most {MAX_BYTES} bytes of class names, {path} has more"
        )
    return [line.strip() for line in text.rstrip().split("\n")]
