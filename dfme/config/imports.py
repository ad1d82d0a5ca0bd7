"""Find ``module:Class`` and ``module:function`` of users; a teacher's signature gives options. No
torch.
"""

import functools
import importlib
import inspect
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from pydantic import Field, PydanticUserError
from pydantic.dataclasses import dataclass as as_model

from dfme.config.messages import did_you_mean
from dfme.config.values import CONFIG, REQUIRED, Option, reader
from dfme.errors import DfmeError, OptionError, Ref, Text, UserError, say

NO_FILE = ("__main__", "builtins")
"""Modules of what is defined in a script, in a notebook, or in code that was executed from a text.
"""

TEACHER = Ref("teacher")

BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find_target(target: str, what: Ref | str = TEACHER) -> Callable[..., Any]:
    """Import ``module:name``, a callable; the current directory is searched last.

    ``what``: the option whose value it is, or the noun of what it makes; errors begin with it.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise UserError(f"expected module:Class or module:function, got {target!r}", about=what)
    subject = replace(what, value=target) if isinstance(what, Ref) else f"{what} {target}"
    if module_name in NO_FILE or "<" in name:
        return _in_this_process(module_name, name, subject)
    module = _import(module_name, subject)
    thing = _within(module, name)
    if callable(thing):
        return thing  # type: ignore[no-any-return]
    callables = [
        key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
    ]
    problem = f"no {name!r} in it"
    if thing is not None:
        problem = f"{name} is of type {type(thing).__name__}, no class or function"
    place = getattr(module, "__file__", None) or module_name
    raise UserError(f"{place}: {problem}{did_you_mean(name, callables)}", about=subject)


def _within(module: ModuleType | None, name: str) -> Any:
    """What stands under a name, dotted within a class, in a module; None if nothing does."""
    thing: Any = module
    for part in name.split("."):
        thing = getattr(thing, part, None)
    return thing


def _in_this_process(module_name: str, name: str, subject: Text | Ref) -> Callable[..., Any]:
    """A callable of a script, a notebook or a function. UserError where it is not this
    process's.
    """
    thing = _within(sys.modules.get(module_name), name)
    if callable(thing):
        return thing  # type: ignore[no-any-return]
    raise UserError(
        "it was defined in a script, a notebook or a function, where no command finds it; go on in "
        "Python (call dfme.extract again with it and resume=True), or move it into a module",
        about=subject,
    )


def name_of(thing: object) -> str:
    """``module:name`` of a class or a function, or of what an object is."""
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"


def top_name(thing: object, what: str) -> str:
    """``module:Class`` of a class, by which it is found again. UserError where that names another
    object.
    """
    name = name_of(thing)
    if "<" in name or not isinstance(thing, type) or find_target(name, what) is not thing:
        raise UserError(f"{what}: expected a name, or a class at the top of a module, got {name}")
    return name


def what_and_where(error: BaseException) -> str:
    """An error as one line: its type, its message, and the line of code it came from."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{type(error).__name__}: {message}"
    place = f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}"
    return f"{type(error).__name__}: {message} ({place})"


@contextmanager
def blaming(
    subject: Text | Ref,
    error: type[DfmeError],
    worded: Callable[[BaseException], str] = what_and_where,
) -> Iterator[None]:
    """Whatever is raised inside by others' code, as one line about ``subject``; errors of ours
    pass.
    """
    try:
        yield
    except DfmeError:
        raise
    except (Exception, SystemExit) as failure:
        raise error(say("{}: {}", subject, worded(failure))) from failure


def _import(name: str, subject: Text | Ref) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    before = _default_dtype()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script without a main guard may end the process
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            hint = did_you_mean(
                name, [entry[:-3] for entry in os.listdir(folder) if entry.endswith(".py")]
            )
            text = f"no module {missing!r} in {folder} or installed{hint}"
            raise UserError(text, about=subject) from None
        text = f"importing {name} failed: {what_and_where(error)}"
        raise UserError(text, about=subject) from error
    if (after := _default_dtype()) != before:
        sys.modules.pop(name, None)  # so that the next import says the same
        sys.modules["torch"].set_default_dtype(before or sys.modules["torch"].float32)
        raise UserError(
            f"importing {name} sets PyTorch's default dtype to {after}, for the whole process; "
            "expected it left as it is: give its own tensors a dtype",
            about=subject,
        )
    return module


def _default_dtype() -> Any:
    """PyTorch's default dtype; None for float32, and where it is not loaded: nothing loads it
    here.
    """
    torch = sys.modules.get("torch")
    # a module in the middle of its import lacks it
    default = getattr(torch, "get_default_dtype", None)
    if default is None:
        return None
    return None if default() == torch.float32 else default()  # type: ignore[union-attr]


_ARGUMENT = re.compile(
    r"^(?P<indent>[ \t]*)(?::param )?(?P<name>\w+)(?: ?\([^)\n]*\))?: +"
    r"(?P<text>\S.*(?:\n(?P=indent)[ \t]+\S.*)*)",
    re.M,
)
"""An argument in a docstring in Google's or Sphinx' style, with the lines that are indented below
it.
"""


def own_options(target: Callable[..., Any], common: Mapping[str, Option]) -> list[Option]:
    """One option per parameter; where it has no type but the name of a common key, it has that
    key's type.

    An object that is neither class nor function is the teacher itself and has no options. UserError
    if a parameter without a default cannot be given by a flag.
    """
    texts = dict[str, str]()
    documented = (target.__doc__, getattr(getattr(target, "__init__", None), "__doc__", None))
    for docstring in reversed(documented):
        for argument in _ARGUMENT.finditer(inspect.cleandoc(docstring or "")):
            texts[argument["name"]] = " ".join(argument["text"].split())
    what = getattr(target, "__name__", "the teacher")
    # a function is easily taken for the teacher itself
    undescribed = f"an argument of {what}"
    if inspect.isroutine(target):
        undescribed += ", which makes the teacher"
    options: list[Option] = []
    for parameter, hint in _parameters(target):
        name = parameter.name
        default = parameter.default
        if name == "kind" or parameter.kind is parameter.POSITIONAL_ONLY:
            if default is parameter.empty:
                text = f"{what}'s parameter {name!r} cannot be a flag; rename it"
                raise OptionError("teacher", text)
            continue
        shared = common.get(f"teacher.{name}")
        kind = shared.type if shared else Any
        if hint is not None:
            kind = _readable(hint)
        # `token: str = None`, as people write it
        kind = kind | None if default is None else kind
        text = texts.get(name) or (shared.help if shared else undescribed)
        default = REQUIRED if default is parameter.empty else default
        options.append(Option(f"teacher.{name}", kind, default, text))
    return options


@functools.cache
def own_model(base: type[Any], kind: type[Any], body: tuple[tuple[str, Any], ...]) -> Any:
    """A checked model under ``base`` with the options of a user's class; ``body``: its
    attributes.
    """
    options = own_options(kind, {})
    if clashing := {option.name for option in options} & {*dir(base), *dict(body)}:
        raise UserError(
            f"{kind.__name__}: expected other names of options than {', '.join(clashing)}"
        )
    fields = {option.name: Field(... if option.required else option.default) for option in options}
    types = {"__annotations__": {option.name: option.type for option in options}}
    model: Any = type(kind.__name__, (base,), {**dict(body), **fields, **types})
    return as_model(config=CONFIG, frozen=True, kw_only=True)(model)


def as_mapping(thing: object, what: str) -> dict[str, Any]:
    """Name and options of a class of the user's own, or of an object, whose attributes they are."""
    kind = thing if isinstance(thing, type) else type(thing)
    name = top_name(kind, what)
    parameters = [] if kind is thing else inspect.signature(kind).parameters
    with blaming(f"{what} {name}: expected every option as an attribute of the object", UserError):
        mapping: dict[str, Any] = {"name": name}
        for key in parameters:
            mapping[key] = getattr(thing, key)
        return mapping


def _readable(hint: Any) -> Any:
    """The type, or any if pydantic has no idea of it."""
    try:
        reader(hint)
    except (PydanticUserError, NameError):
        return Any
    return hint


def _parameters(target: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Parameters with their types, None where untyped; a class's ``**kwargs`` goes on to its base
    classes.
    """
    functions: list[Any] = [target] if inspect.isroutine(target) else []
    if inspect.isclass(target):
        functions = [
            vars(base)["__init__"] for base in target.__mro__[:-1] if "__init__" in vars(base)
        ]
    seen = set[str]()
    for function in functions:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError):  # a type that only exists for a type checker
            raw = getattr(function, "__annotations__", {})
            hints = {name: hint for name, hint in raw.items() if not isinstance(hint, str)}
        parameters = [*inspect.signature(function).parameters.values()]
        if inspect.isclass(target) and parameters[:1] and parameters[0].kind in BY_PLACE:
            del parameters[0]  # the object itself, whatever it is called
        kinds = {parameter.kind for parameter in parameters}
        for parameter in parameters:
            open_ended = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if not open_ended and parameter.name not in seen:
                seen.add(parameter.name)
                yield parameter, hints.get(parameter.name)
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return
