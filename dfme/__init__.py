"""Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

``dfme.extract`` runs an extraction from Python, ``dfme.load_student`` loads what one delivered. Importing the
package loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfme.run.api import extract as extract
    from dfme.run.student_file import load_student as load_student

__all__ = ["__version__", "extract", "load_student"]

try:
    __version__ = version("dfme")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"

_LAZY = {"extract": "dfme.run.api", "load_student": "dfme.run.student_file"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dfme' has no attribute {name!r}")
