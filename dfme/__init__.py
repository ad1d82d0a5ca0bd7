"""Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

``dfme.extract`` runs an extraction from Python, ``dfme.load_student`` loads what one delivered. Importing the
package loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
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

_MOVED = {"dfme.seam": "dfme.estimators.upstream", "dfme.wire": "dfme.spec"}
"""Modules of 0.4.0 that users may import, and where they are now. They go with the next release."""

_RENAMED = {"Wire": "RequestPolicy"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if f"dfme.{name}" in _MOVED:
        return import_module(f"dfme.{name}")
    raise AttributeError(f"module 'dfme' has no attribute {name!r}")


class _Moved(MetaPathFinder, Loader):
    """Imports a module by its old name: what it holds is the new one's, and a warning names that."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = _MOVED[module.__name__]
        warnings.warn(f"{module.__name__} has moved: import {new}", DeprecationWarning, stacklevel=2)
        vars(module).update((name, value) for name, value in vars(import_module(new)).items() if name[:2] != "__")
        vars(module).update((old, getattr(module, name)) for old, name in _RENAMED.items() if hasattr(module, name))


sys.meta_path.append(_Moved())
