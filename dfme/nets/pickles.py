"""Load PyTorch files that are plain: tensors, numbers, texts, dictionaries and lists.

``torch.load(weights_only=True)`` runs no code, but a few hundred bytes can make it hash, or
allocate, without end. So a pickle's opcodes are walked first: nothing is built, and the size of
what each would build is counted.
"""

import io
import math
import os
import pickletools
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import IO, Any

import torch

from dfme.files import archive_entries, open_file

MAX_OPCODES = 1_000_000  # a network of 25,000 tensors takes as many
MAX_DEPTH = 100
MAX_SIZE = 10**8  # entries, letters and bytes put into containers, each counted wherever it is met
# of these for each byte of a pickle in what functions are called with, since some of them copy it
MAX_GIVEN = 4
MAX_KEY = 2**60  # larger numbers can share one hash, and a dictionary of n such takes n^2 steps
MAX_AXES = 64
KEYS = (str, bytes, bool, int, NoneType)

LEGACY = [0x1950A86A20F9469CFC6C, 1001]  # with these two pickles PyTorch's format before 1.6 begins

VALUES = {
    "BININT": None,
    "BININT1": None,
    "BININT2": None,
    "LONG1": None,
    "BINFLOAT": None,
    "BINUNICODE": None,
    "SHORT_BINSTRING": None,
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
EMPTY = {"EMPTY_TUPLE": "tuple", "EMPTY_LIST": "list", "EMPTY_DICT": "dict"}
FILLS = {
    "TUPLE": (0, "tuple"),
    "TUPLE1": (1, "tuple"),
    "TUPLE2": (2, "tuple"),
    "TUPLE3": (3, "tuple"),
    "APPEND": (1, "list"),
    "APPENDS": (0, "list"),
    "SETITEM": (2, "dict"),
    "SETITEMS": (0, "dict"),
}
"""How many things an opcode takes from the stack, 0 for all since the mark, and into what it puts
them.
"""

WIDTHS = {
    "Double": 8,
    "Float": 4,
    "Half": 2,
    "BFloat16": 2,
    "ComplexDouble": 16,
    "ComplexFloat": 8,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
STORAGES = {f"torch.{name}Storage": width for name, width in WIDTHS.items()}
"""Bytes of an element, by the name of what holds many."""

CALLS = {
    "collections.OrderedDict",
    "collections.Counter",
    "_codecs.encode",
    "torch.Size",
    "torch.device",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
}
KNOWN = (
    CALLS
    | STORAGES.keys()
    | {str(dtype) for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
)
SPECIAL = (
    "torch._utils._rebuild",
    "torch._tensor._rebuild",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.storage.UntypedStorage",  # that of whole numbers without a sign, and of eight-bit floats
)

DAMAGED = "its pickle is damaged, or PyTorch did not write it"
NOT_ORDINARY = (
    "one of its tensors is no ordinary one, with a value in the file for every element; "
    "save it as one"
)


class NotPlainError(ValueError):
    """Reason why a file is refused; ``imports``: names of the Python objects it would load."""

    def __init__(self, problem: str, imports: Iterable[str] = ()) -> None:
        super().__init__(problem)
        # the worst first
        self.imports = sorted(imports, key=lambda name: (name.startswith("builtins."), name))


def load_plain(path: Path, trailer: int = 0) -> Any:
    """Load what ``torch.save`` wrote into a file, on the CPU; ``trailer``: bytes that follow
    it.

    Keys are texts, bytes or whole numbers; a container is not in itself; a tensor has a value in
    the file for each of its elements. Time and memory grow as the file's size and no faster. Raises
    NotPlainError for everything else, and OSError where the file cannot be read.
    """
    with open_file(path) as file, warnings.catch_warnings(action="ignore"):
        try:
            _judge(file, os.fstat(file.fileno()).st_size - trailer)
            again = _NoTar(io.FileIO(file.fileno(), closefd=False))
            again.seek(0)
            return torch.load(again, map_location="cpu", weights_only=True)
        except NotPlainError:
            raise
        except Exception as error:  # a damaged file can raise anything at all
            text = " ".join(str(error).split()).partition(". ")[0][:200]
            if isinstance(error, MemoryError) or "can't allocate" in text:
                text = "there is not enough memory for it"
            damaged = isinstance(error, LookupError | AttributeError | TypeError) or not text
            raise NotPlainError(DAMAGED if damaged else text) from error


class _NoTar(io.BufferedReader):
    """A file without descriptor, since torch looks for a tar archive in files that have one."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation


def _judge(file: IO[bytes], size: int) -> None:
    """NotPlainError unless all that the file would make is known to be harmless."""
    walk = _Walk()
    # since PyTorch 1.6: a zip archive with one pickle, and an entry for each storage
    if file.read(4) == b"PK\3\4":
        entries = archive_entries(file, size)
        folder = next(iter(entries)).partition("/")[0]
        _require(
            all(name.startswith(f"{folder}/") for name in entries),
            "it has more than one folder in it",
        )
        start, length = entries[f"{folder}/data.pkl"]
        file.seek(start)
        walk.run(io.BytesIO(file.read(length)))
        held = {key: entries.get(f"{folder}/data/{key}", (0, -1))[1] for key in walk.storages}
        needed = {key: STORAGES[kind] * count for key, (kind, count) in walk.storages.items()}
        _require(held == needed, NOT_ORDINARY)
    else:
        # five pickles, the last of them the storages' keys, and then their values with lengths
        file.seek(0)
        for mark in LEGACY:
            _require(walk.run(file) == mark, "it is a pickle that PyTorch did not write")
        _, _, keys = (walk.run(file) for _ in range(3))
        _require(keys.kind == "list" and sorted(keys.items) == sorted(walk.storages), NOT_ORDINARY)
        values = sum(8 + STORAGES[kind] * count for kind, count in walk.storages.values())
        _require(file.tell() + values <= size, "the values of its tensors end early")


@dataclass(slots=True, eq=False)
class _Thing:
    """A pickled object that is no number or text: its kind, contents and parents."""

    kind: str
    items: list[Any]
    depth: int = 1
    size: int = 1
    held: bool = False

    def put(self, items: list[Any]) -> int:
        """Add items, keys and values in turn for a dictionary; return the growth in size."""
        before = self.size
        keys = items[::2] if self.kind == "dict" else []
        fine = all(
            type(key) in KEYS and (not isinstance(key, int) or abs(key) < MAX_KEY) for key in keys
        )
        _require(
            fine and 2 * len(keys) in (0, len(items)),
            "a key in it is no text and no whole number below 2^60",
        )
        for item in items:
            self.size += 1 + (len(item) if isinstance(item, str | bytes) else 0)
            if isinstance(item, _Thing):
                item.held = True
                self.depth = max(self.depth, item.depth + 1)
                self.size = self.size + item.size
        _require(
            not self.held, "a container in it holds itself, or changes when it is in another one"
        )
        _require(self.depth <= MAX_DEPTH, f"it is nested deeper than {MAX_DEPTH}")
        self.items += items
        return self.size - before


def _opcodes(file: IO[bytes]) -> list[tuple[str, Any]]:
    """Opcodes of one pickle with arguments. NotPlainError for unknown imports, naming all."""
    steps: list[tuple[str, Any]] = []
    imports = set[str]()
    texts = ["", ""]
    memo = list[str]()
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if isinstance(argument, str):
                texts.append(argument)
            elif opcode.name == "MEMOIZE":
                memo.append(texts[-1])
            elif opcode.name == "BINGET" and isinstance(argument, int) and argument < len(memo):
                texts.append(memo[argument])
            if opcode.name in ("GLOBAL", "STACK_GLOBAL"):
                argument = (argument or ".".join(texts[-2:])).replace(" ", ".")
                argument = argument.replace("__builtin__", "builtins")
                if argument not in KNOWN and not argument.startswith(SPECIAL):
                    imports.add(argument)
            steps.append((opcode.name, argument))
            _require(len(steps) <= MAX_OPCODES, f"it takes more than {MAX_OPCODES:,} steps to load")
    except ValueError:
        if not imports:
            raise
    if imports:
        raise NotPlainError("it holds Python objects beside tensors", imports)
    return steps


class _Walk:
    """Walk a file's pickles in turn; ``storages``: names, types and numbers of elements."""

    def __init__(self) -> None:
        self.storages: dict[str, tuple[str, int]] = {}
        self._made = 0

    def run(self, file: IO[bytes]) -> Any:
        """Interpret the pickle at this place; errors that a damaged one causes are raised."""
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        start = file.tell()
        self._given = 0
        for name, argument in _opcodes(file):
            self._step(name, argument)
            _require(self._made <= MAX_SIZE, f"it unfolds to more than {MAX_SIZE:,} entries")
            _require(
                self._given <= MAX_GIVEN * (file.tell() - start),
                "it copies what it holds again and again",
            )
        return self._stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "MARK":
                self._marks.append(stack)
                self._stack = []
            case _ if name in VALUES:
                stack.append(VALUES[name] if argument is None else argument)
            case _ if name in EMPTY:
                stack.append(_Thing(EMPTY[name], []))
            case _ if name in FILLS:
                self._fill(*FILLS[name])
            case "PROTO" | "STOP":
                pass
            case _:
                self._make(name, argument)

    def _make(self, name: str, argument: Any) -> None:
        """Carry out an opcode that names, calls or completes an object."""
        stack = self._stack
        match name:
            case "GLOBAL":
                stack.append(_Thing("name", [argument]))
            case "BINPERSID":
                stack[-1] = self._storage(stack[-1])
            case "REDUCE":
                arguments = stack.pop()
                _require(stack[-1].kind == "name" and arguments.kind == "tuple", DAMAGED)
                self._given += arguments.size
                stack[-1] = _call(stack[-1].items[0], arguments.items)
            case "BUILD":  # what PyTorch keeps beside a state dict
                state = stack.pop()
                _require(stack[-1].kind == state.kind == "dict", DAMAGED)
                _require(set(state.items[::2]) <= {"_metadata"}, DAMAGED)
                self._made += stack[-1].put(["_metadata", state])
            case _:
                raise NotPlainError(
                    f"its pickle has the opcode {name}; PyTorch writes none, but with a "
                    "pickle_protocol"
                )

    def _fill(self, count: int, kind: str) -> None:
        """Put ``count`` values, or all since the last mark if 0, into the container below them."""
        stack = self._stack
        items = [stack.pop() for _ in range(count)][::-1] if count else stack
        self._stack = stack if count else self._marks.pop()
        if kind == "tuple":
            self._stack.append(_Thing("tuple", []))
        _require(self._stack[-1].kind == kind, DAMAGED)
        self._made += self._stack[-1].put(items)

    def _storage(self, reference: _Thing) -> _Thing:
        match reference.items:
            case ["storage", _Thing("name", [kind]), str(key), str(), int(count), *rest] if (
                rest
                in (
                    [],
                    [None],
                )
            ):
                is_storage = kind in STORAGES and count >= 0 and key.isascii()
                _require(
                    is_storage and self.storages.setdefault(key, (kind, count)) == (kind, count),
                    NOT_ORDINARY,
                )
                return _Thing("storage", [count])
        raise NotPlainError(DAMAGED)


def _call(name: str, arguments: list[Any]) -> Any:
    """Result of a function on its arguments; some of PyTorch's own take unbounded memory or
    time.
    """
    match name, arguments:
        case "collections.OrderedDict", []:
            return _Thing("dict", [])
        case "collections.OrderedDict", [_Thing("list", pairs)]:  # written by Python 2
            ordered = _Thing("dict", [])
            for pair in pairs:
                _require(
                    pair.kind in ("list", "tuple"), DAMAGED
                )  # other things can be taken apart as well
                ordered.put(pair.items)
            return ordered
        # in the schedule of a learning rate
        case "collections.Counter", [_Thing("dict", counts, depth, size)]:
            return _Thing("dict", list(counts), depth, size)
        case "_codecs.encode", [str(text), "latin1"]:  # bytes
            return text.encode("latin1")
        case ("torch.Size", [_Thing("tuple", parts)]) | ("torch.device", parts):
            _require(not any(isinstance(part, _Thing) for part in parts), DAMAGED)
            return _Thing("other", [])
        case (
            "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2",
            [
                _Thing("storage", [count]),
                offset,
                _Thing("tuple", sizes),
                _Thing("tuple", steps),
                *rest,
            ],
        ):
            numbers = [offset, *sizes, *steps]
            fine = len(sizes) == len(steps) and all(
                type(number) is int and number >= 0 for number in numbers
            )
            _require(fine and len(sizes) <= MAX_AXES, DAMAGED)
            last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
            _require(0 in sizes or max(math.prod(sizes) - 1, last) < count, NOT_ORDINARY)
            match rest:
                case [] | [
                    bool(),
                    None | _Thing("dict", []),
                ]:  # hooks on the gradient, which are never saved
                    return _Thing("tensor", [])
        case "torch._utils._rebuild_parameter", [
            _Thing("tensor") as tensor,
            bool(),
            None | _Thing("dict", []),
        ]:
            return tensor
    raise NotPlainError(NOT_ORDINARY if name.startswith(SPECIAL) else DAMAGED)


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise NotPlainError(problem)
