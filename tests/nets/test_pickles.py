"""Files that PyTorch saved are loaded as it loads them."""

import itertools
import pickle
import re
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from pickled import PICKLES, PLACE, VALUE, archive, entry, series, storage, tensor, text, zipped
from refusals import refusal
from tables import all_hold

from dfme.nets import build_net
from dfme.nets.pickles import MAX_DEPTH, NotPlainError, load_plain

FORMS = {"zip": archive, "series": series}


def saved(path: Path, value: object, zipped: bool = True) -> Any:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return torch.load(path, weights_only=True)


def same(first: Any, other: Any) -> bool:
    if type(first) is not type(other):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, dict):
        return list(first) == list(other) and all(same(first[key], other[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(other) and all(map(same, first, other))
    return bool(first == other)


def test_what_training_scripts_save_is_what_pytorch_makes_of_it(tmp_path: Path) -> None:
    """The forms of PyTorch Lightning, torchvision's recipes and plain scripts."""
    net = build_net("lenet5", (1, 8, 8), 3)
    shared = torch.arange(12.0)
    weights = net.state_dict()
    group = {"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}
    adam = {"state": {0: {"step": torch.ones(())}}, "param_groups": [group]}
    schedule = {"milestones": Counter({3: 1, 5: 1}), "gamma": 0.1, "_last_lr": [0.1]}
    training = {"epoch": 3, "state_dict": weights, "optimizer": adam, "best_acc1": None}
    settings = {"lr": 0.1, "shape": (1, 8, 8), "device": torch.device("cpu")}
    callbacks = {"ModelCheckpoint{'mode': 'min'}": {"path": "a", "k": 1}}
    kinds = (torch.half, torch.bfloat16, torch.uint8, torch.bool, torch.cdouble)
    plain = {"dtype": torch.float32, "size": torch.Size([1, 2]), "bytes": b"\0\xff", "big": 2**70}
    values: list[object] = [
        training,
        {"state_dict": weights, "hyper_parameters": settings},
        {"lr_schedulers": [schedule], "callbacks": callbacks},
        OrderedDict((name, torch.nn.Parameter(value)) for name, value in net.named_parameters()),
        [
            shared[2:5],
            shared.view(3, 4).T,
            shared[::3],
            torch.zeros(0),
            torch.zeros(2, 0),
            torch.tensor(7),
        ],
        [torch.zeros(2, dtype=dtype) for dtype in kinds],
        plain | {-5: True, None: 1, b"k": 2},
        torch.get_rng_state(),
    ]

    def holds(index: int, zipped: bool) -> None:
        expected = saved(tmp_path / "x.pt", values[index], zipped)
        assert same(load_plain(tmp_path / "x.pt"), expected)

    all_hold(holds, itertools.product(range(len(values)), (True, False)))


def test_what_python_2_wrote_is_loaded(tmp_path: Path) -> None:
    """As are weights that are still passed on: their dictionaries are lists of pairs."""
    for hooks in (b"N", b"ccollections\nOrderedDict\n]\x85R"):
        pair = b"](" + text("a") + tensor(rest=b"\x89" + hooks) + b"e"
        (tmp_path / "x.pt").write_bytes(
            series(b"\x80\x02ccollections\nOrderedDict\n](" + pair + b"e\x85R.")
        )
        assert same(load_plain(tmp_path / "x.pt"), OrderedDict({"a": torch.ones(1)}))


@pytest.mark.timeout(60)
def test_what_is_not_plain_is_refused_at_once(tmp_path: Path) -> None:
    """A control stands first: what these files are made of is loaded where nothing is wrong with
    it.
    """
    path = tmp_path / "x.pt"
    for form in FORMS.values():
        path.write_bytes(form(entry(tensor())))
        assert same(load_plain(path), {"fc.weight": torch.ones(1)})

    def holds(name: str, form: str) -> None:
        path.write_bytes(FORMS[form](PICKLES[name]))
        caught = refusal("", load_plain, path, error=NotPlainError)
        assert len(str(caught)) < 200

    all_hold(holds, itertools.product(PICKLES, FORMS))


def test_the_limits_are_where_they_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(pickled: bytes) -> bool:
        (tmp_path / "x.pt").write_bytes(archive(pickled))
        try:
            load_plain(tmp_path / "x.pt")
        except NotPlainError:
            return False
        return True

    assert loads(b"\x80\x02" + b"]" * MAX_DEPTH + b"a" * (MAX_DEPTH - 1) + b".")
    assert not loads(b"\x80\x02" + b"]" * (MAX_DEPTH + 1) + b"a" * MAX_DEPTH + b".")
    assert loads(b"\x80\x02}\x8a\x08" + (2**60 - 1).to_bytes(8, "little") + b"Ns.")
    assert not loads(b"\x80\x02}\x8a\x08" + (2**60).to_bytes(8, "little") + b"Ns.")
    monkeypatch.setattr("dfme.nets.pickles.MAX_OPCODES", 1_000)
    assert loads(b"\x80\x02]" + b"Na" * 498 + b".")
    assert not loads(b"\x80\x02]" + b"Na" * 499 + b".")


def test_storages_may_be_shared_but_not_contradict_each_other(tmp_path: Path) -> None:
    """In the older format PyTorch would fill one for each key of a dictionary, and leave memory as
    it is.
    """
    path, first = tmp_path / "x.pt", tensor(shape=(1,))
    other, two = (
        first.replace(b"FloatStorage", b"DoubleStorage"),
        tensor() + tensor(storage(key="1")),
    )

    def older(keys: object) -> bytes:
        content = series(b"\x80\x02(" + two + b"t.").replace(
            pickle.dumps(["0"], 2), pickle.dumps(keys, 2)
        )
        return content + struct.pack("<q", 1) + VALUE

    files = {
        archive(b"\x80\x02(" + first + first + b"t.", VALUE): True,
        archive(b"\x80\x02(" + first + other + b"t.", VALUE): False,
        archive(entry(tensor()), VALUE * 2): False,
        older(["0", "1"]): True,
        older({"0": "1"}): False,
        older(["0"]): False,
    }
    for content, fine in files.items():
        path.write_bytes(content)
        if fine:
            assert same(load_plain(path), (torch.ones(1), torch.ones(1)))
        else:
            refusal("no ordinary", load_plain, path, error=NotPlainError)


def test_what_pytorch_writes_otherwise_is_not_called_code(tmp_path: Path) -> None:
    """Strange tensors and another protocol are neither damaged, nor Python objects that could run
    code.
    """
    marked = torch.ones(2)
    marked.note = "a word"  # type: ignore[attr-defined]
    strange = (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.uint16), marked)
    for value, protocol, said in (
        *((item, 2, "no ordinary") for item in strange),
        (VALUE, 4, "pickle_protocol"),
    ):
        torch.save({"fc.weight": value}, tmp_path / "x.pt", pickle_protocol=protocol)
        caught = refusal(said, load_plain, tmp_path / "x.pt", error=NotPlainError)
        assert not caught.imports


def bomb() -> bytes:
    entries = {"a/data.pkl": entry(tensor()).replace(PLACE, b""), "a/data/0": bytes(10**7)}
    return zipped(entries, zipfile.ZIP_DEFLATED).replace(
        b"PK\1\2\x14\3\x14\0", b"PK\1\2\x14\3\x64\0"
    )


def patched(content: bytes, mark: bytes, at: int, value: bytes, last: bool = False) -> bytes:
    """With ``value`` written ``at`` bytes behind the first, or last, ``mark``."""
    start = (content.rindex(mark) if last else content.index(mark)) + at
    return content[:start] + value + content[start + len(value) :]


def two_lists() -> bytes:
    """An archive in front of another: the number of bytes before the list tells PyTorch's
    reader.
    """
    return archive(PICKLES["a tuple of tuples as key"]) + archive(entry(tensor()))


def nested() -> bytes:
    """An archive whose last entry lies in the values of another."""
    inner = zipped({"a/version": b"3\n"}).partition(b"PK\1\2")[0]
    complete = zipped(
        {"a/data.pkl": entry(tensor()).replace(PLACE, b""), "a/data/0": inner, "a/version": b"3\n"}
    )
    return patched(complete, b"PK\1\2", 42, struct.pack("<L", complete.index(inner)), last=True)


def with_wide_end(content: bytes, mark: bytes = b"PK\6\6", place: int = 0) -> bytes:
    """The archive with the last records of a large one."""
    _, _, _, count, _, length, start, _ = struct.unpack("<4s4H2LH", content[-22:])
    record = struct.pack("<4sQ2H2L4Q", mark, 44, 45, 45, 0, 0, count, count, length, start)
    pointer = struct.pack("<4sLQL", b"PK\6\7", 0, len(content) - 22 + place, 1)
    return content[:-22] + record + pointer + content[-22:]


def cases() -> dict[str, tuple[bytes, str]]:
    plain = archive(entry(tensor()))
    names = {
        "a/data.pkl": entry(tensor()).replace(PLACE, b""),
        "a/data/0": VALUE,
        "a/version": b"3\n",
    }
    again = zipped(names | {"a/data.pkx": b"N."}).replace(b"data.pkx", b"data.pkl")
    inside = patched(plain, b"PK\1\2", 42, struct.pack("<L", plain.index(b"PK\1\2")))
    none = "none that PyTorch wrote"
    return {
        "a bomb of version 10.0": (bomb(), "zip file version 10.0"),
        "a bomb": (bomb().replace(b"\3\x64\0", b"\3\x14\0"), "compressed"),
        "a second name in capitals": (zipped(names | {"a/DATA.PKL": b"N."}), "share a name"),
        "a second name": (again, "share a name"),
        "two folders": (zipped({"b/data.pkl": b"N."} | names), "more than one folder"),
        "no folder": (zipped({"data.pkl": names["a/data.pkl"]}), "more than one folder"),
        "nothing but a beginning": (b"PK\3\4" + zipped({}), "no archive that PyTorch wrote"),
        "two archives": (two_lists(), "end is not"),
        "a comment": (patched(plain, b"PK\5\6", 20, b"\5\0") + b"PK\5\6x", "end is not"),
        "something behind it": (plain + b"x" * 44, "end is not"),
        "a wide end without its mark": (with_wide_end(plain, b"PK\5\6"), "end is not"),
        "a wide end elsewhere": (with_wide_end(plain, place=-4), "end is not"),
        "a name cut by a zero": (plain.replace(b"a/version", b"a/vers\0on"), none),
        "other names at the entries": (plain.replace(b"a/version", b"a/versiox", 1), none),
        "encrypted": (patched(plain, b"PK\1\2", 8, b"\1\0"), none),
        "another size": (patched(plain, b"PK\1\2", 24, b"\1\0\0\0"), none),
        "another method": (patched(plain, b"PK\1\2", 10, b"\x0c\0"), none),
        "one in another": (nested(), "a name or a place"),
        "an entry in the list": (inside, "none"),
        "a wrong number of entries": (patched(plain, b"PK\5\6", 12, b"\xff\0\0\0"), "end is not"),
        "cut short": (plain[:-30], "end is not"),
    }


def test_an_archive_that_could_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    path, table = tmp_path / "x.pt", cases()
    for fine in (archive(entry(tensor())), with_wide_end(archive(entry(tensor())))):
        path.write_bytes(fine)
        assert same(load_plain(path), {"fc.weight": torch.ones(1)})

    def holds(name: str) -> None:
        content, message = table[name]
        assert content != archive(entry(tensor()))
        path.write_bytes(content)
        caught = refusal("", load_plain, path, error=NotPlainError)
        assert re.search(message, str(caught)), str(caught)

    all_hold(holds, ((name,) for name in table))
