"""Packages that come with an extra, imported when a teacher needs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from dfme.errors import UserError


def import_extra(module: str, extra: str) -> ModuleType:
    """The module of a package that the extra ``extra`` installs.

    UserError with the command to run where the package is missing, or is there but cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        problem = "is not installed" if error.name == package else f"lacks {error.name}"
    except (ImportError, RuntimeError, OSError) as error:  # built for another torch, or a library of it is missing
        problem = f"cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    raise UserError(f'{package}, which this kind of teacher needs, {problem}; pip install "dfme[{extra}]"')
