"""Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

``dfme.extract`` runs an extraction from Python, ``dfme.load_student`` loads what one delivered.
Importing the package loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dfme.version import __version__

if TYPE_CHECKING:
    from dfme.compute.modules import evaluating as evaluating
    from dfme.config.defences import Facts as Facts
    from dfme.config.values import Count as Count
    from dfme.config.values import Positive as Positive
    from dfme.errors import DfmeError as DfmeError
    from dfme.errors import Refused as Refused
    from dfme.errors import TeacherError as TeacherError
    from dfme.errors import Unanswered as Unanswered
    from dfme.errors import UserError as UserError
    from dfme.estimators import FiniteDifference as FiniteDifference
    from dfme.methods import METHODS as METHODS
    from dfme.methods import MethodEntry as MethodEntry
    from dfme.methods.base import Method as Method
    from dfme.owner_side import Detector as Detector
    from dfme.owner_side import Guard as Guard
    from dfme.run.api import extract as extract
    from dfme.run.run import Result as Result
    from dfme.run.student_file import load_student as load_student
    from dfme.spec import ImageSpec as ImageSpec
    from dfme.spec import LabelMode as LabelMode
    from dfme.spec import RequestPolicy as RequestPolicy
    from dfme.spec import Stateful as Stateful
    from dfme.spec import TeacherInfo as TeacherInfo
    from dfme.students.optimizers import ScheduledOptimizer as ScheduledOptimizer

_PUBLIC = {
    "Count": "dfme.config.values",
    "Detector": "dfme.owner_side",
    "DfmeError": "dfme.errors",
    "Facts": "dfme.config.defences",
    "FiniteDifference": "dfme.estimators",
    "Guard": "dfme.owner_side",
    "ImageSpec": "dfme.spec",
    "LabelMode": "dfme.spec",
    "METHODS": "dfme.methods",
    "Method": "dfme.methods.base",
    "MethodEntry": "dfme.methods",
    "Positive": "dfme.config.values",
    "Refused": "dfme.errors",
    "RequestPolicy": "dfme.spec",
    "Result": "dfme.run.run",
    "ScheduledOptimizer": "dfme.students.optimizers",
    "Stateful": "dfme.spec",
    "TeacherError": "dfme.errors",
    "TeacherInfo": "dfme.spec",
    "Unanswered": "dfme.errors",
    "UserError": "dfme.errors",
    "evaluating": "dfme.compute.modules",
    "extract": "dfme.run.api",
    "load_student": "dfme.run.student_file",
}
"""Public name -> the module that it is loaded from when it is asked for; docs/api.md describes
each.
"""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dfme' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
