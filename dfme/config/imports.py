"""``module:Class`` and ``module:function``: what a person names on the command line, found. No torch here."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dfme.config.messages import did_you_mean
from dfme.errors import UserError


def find_target(target: str) -> Callable[..., Any]:
    """What ``module:name`` names; the current directory is searched after everything installed.

    Raises:
        UserError: if the module is not there or fails on import, or has no callable of that name.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise UserError(f"--teacher: expected module:Class or module:function, got {target!r}")
    module = _import(module_name, target)
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    problem = (
        f"no {name!r} in it" if found is None else f"{name} is of type {type(found).__name__}, no class or function"
    )
    place = getattr(module, "__file__", None) or module_name
    raise UserError(f"--teacher {target}: {place}: {problem}{did_you_mean(name, callables)}")


def what_and_where(error: BaseException) -> str:
    """An error as one line: its type, its message, and the line of code it came from."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{type(error).__name__}: {message}"
    place = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"
    return f"{type(error).__name__}: {message} ({place})"


def _import(name: str, target: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            beside = [entry[:-3] for entry in os.listdir(folder) if entry.endswith(".py")]
            hint = did_you_mean(name, beside)
            raise UserError(f"--teacher {target}: no module {error.name!r} in {folder} or installed{hint}") from None
        raise UserError(f"--teacher {target}: importing {name} failed: {what_and_where(error)}") from error
    except (Exception, SystemExit) as error:  # a script without a main guard may end the process
        raise UserError(f"--teacher {target}: importing {name} failed: {what_and_where(error)}") from error
