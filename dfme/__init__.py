"""Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

``dfme.extract`` runs an extraction from Python, ``dfme.load_student`` loads what one delivered. Importing the
package loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfme.cli.teacher_side import Guard as Guard
    from dfme.errors import DfmeError as DfmeError
    from dfme.errors import TeacherError as TeacherError
    from dfme.errors import UserError as UserError
    from dfme.methods import METHODS as METHODS
    from dfme.methods import MethodEntry as MethodEntry
    from dfme.methods.base import Method as Method
    from dfme.run.api import extract as extract
    from dfme.run.run import Result as Result
    from dfme.run.student_file import load_student as load_student
    from dfme.spec import ImageSpec as ImageSpec
    from dfme.spec import LabelMode as LabelMode

_LAZY = {
    **{"extract": "dfme.run.api", "load_student": "dfme.run.student_file", "Result": "dfme.run.run"},
    **{"Method": "dfme.methods.base", "MethodEntry": "dfme.methods", "METHODS": "dfme.methods"},
    **dict.fromkeys(("ImageSpec", "LabelMode"), "dfme.spec"),
    "Guard": "dfme.cli.teacher_side",
    **dict.fromkeys(("DfmeError", "UserError", "TeacherError"), "dfme.errors"),
}
__all__ = ["__version__", *_LAZY]

try:
    __version__ = version("dfme")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dfme' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
