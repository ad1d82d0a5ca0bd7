"""Methods on a teacher that is a linear map, begun in one line; what is refused before it begins."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import one_line
from small_runs import Metered, clone
from toys import LinearTeacher, make_method, make_parts

from dfme.cli.main import main
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.methods.base import Components
from dfme.spec import ImageSpec

SPEC = ImageSpec((1, 8, 8))
EIGHT_BIT = ImageSpec((1, 8, 8), levels=256)


def begun(
    name: str,
    budget: int = 10_000,
    mode: str = "probabilities",
    spec: ImageSpec = SPEC,
    teacher: LinearTeacher | None = None,
    seed: int = 0,
    student: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[LinearTeacher, Components, Any]:
    """A method with its teacher and its parts; of ``student`` are the options of the parts."""
    teacher = teacher or LinearTeacher(spec, mode=mode)
    parts = make_parts(
        teacher, budget, seed=seed, **{"count": METHODS[name].students, **(student or {})}
    )
    return teacher, parts, make_method(name, parts, **options)


def refused_run(out: Path, match: str, teacher: Any = None, **changes: Any) -> str:
    """The one line of a run that is refused: nothing was asked, and no directory is left."""
    teacher = teacher or Metered()
    with pytest.raises(UserError, match=match) as caught:
        clone(out, teacher, **changes)
    assert (teacher.calls, out.exists(), "\n" in str(caught.value)) == (0, False, False)
    return str(caught.value)


def only_line(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a refused command writes, with nothing before it and nothing on stdout."""
    capsys.readouterr()
    assert main(shlex.split(words)) == UserError.exit_code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def refused_words(words: list[str] | str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that is refused."""
    assert main(shlex.split(words) if isinstance(words, str) else words) == UserError.exit_code
    return one_line(capsys)
