"""Weights in every form people publish, and everything that is none; safetensors with odd metadata."""

import itertools
import json
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import refused
from model_folders import save_weights
from refusals import refusal
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tables import all_hold
from torch import Tensor, nn

from dfme.nets.safetensors_file import read_safetensors
from dfme.teachers.local.weights import Card, load_into, read_checkpoint, read_weights


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))


def assert_same(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0)


class Evil:
    """Would create a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


PUBLISHED = {
    "bare": lambda state: state,
    "ordered": lambda state: OrderedDict(state),
    "state_dict": lambda state: {"state_dict": state, "epoch": 199, "best_acc": 95.5},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "net": lambda state: {"net": state, "acc": 95.2, "epoch": 3},
    "nested": lambda state: {"model": {"state_dict": state, "step": 1}},
    "data_parallel": lambda state: {f"module.{name}": value for name, value in state.items()},
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    "both": lambda state: {
        "state_dict": {f"module._orig_mod.{name}": v for name, v in state.items()}
    },
    "compiled_parallel": lambda state: {
        f"_orig_mod.module.{name}": value for name, value in state.items()
    },
}


def test_published_forms_give_the_plain_state_dict(tmp_path: Path) -> None:
    path, state = tmp_path / "teacher.pth", net().state_dict()

    def holds(form: str, zipped: bool) -> None:
        torch.save(PUBLISHED[form](state), path, _use_new_zipfile_serialization=zipped)
        result, card = read_weights(path)
        assert_same(result, state)
        assert card == Card()

    all_hold(holds, itertools.product(PUBLISHED, (True, False)))


@pytest.mark.timeout(20)
def test_a_prefix_written_100000_times_is_taken_off_at_once(tmp_path: Path) -> None:
    path = tmp_path / "teacher.pth"
    torch.save({"module." * 100_000 + name: torch.ones(1) for name in ("a", "module.b")}, path)
    assert list(read_weights(path)[0]) == ["a", "module.b"]


def test_saved_weights_come_back_with_their_card_and_saving_again_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    path, module = tmp_path / "deep" / "teacher.safetensors", net()
    path.parent.mkdir()
    path.write_text("old")
    scaling = {
        "mean": (0.5,),
        "std": (0.25,),
        "bounds": (-1.0, 1.0),
        "class_names": ("a", "b", "\u00fc"),
    }
    card = Card(
        arch="lenet5", shape=(1, 8, 8), num_classes=3, accuracy=0.98, recipe={"lr": 0.1}, **scaling
    )
    contents = set()
    for _ in range(8):
        save_weights(path, module, card)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    state, result = read_weights(path)
    assert_same(state, module.state_dict())
    assert result == card
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["arch"], metadata["shape"]) == ("lenet5", "[1, 8, 8]")
    assert [entry.name for entry in path.parent.iterdir()] == ["teacher.safetensors"]


def test_safetensors_of_other_makers_are_read_and_unreadable_metadata_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"module.fc.weight": torch.ones(2, 3)}, path, metadata={"format": "pt"})
    state, card = read_weights(path)
    assert (list(state), card) == (["fc.weight"], Card())
    ours = {"arch": "lenet5", "shape": "3x32x32"}
    save_file({"a": torch.ones(2)}, path, metadata=ours)
    refused("metadata shape", read_weights, path)


def test_what_others_wrote_into_the_metadata_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    theirs = {
        "arch": "MyNet",
        "accuracy": "95.2%",
        "shape": "8x8",
        "class_names": "a,b",
        "num_classes": "ten",
        "mean": "[0.5]",
        "std": "half",
        "bounds": "[0, 255]",
    }
    save_file({"a": torch.ones(2)}, path, metadata=theirs)
    weights = read_checkpoint(path)
    assert weights.card == Card()
    assert set(weights.unused) == set(theirs)
    save_file({"a": torch.ones(2)}, path, metadata={"num_classes": "7", "dataset": "d"})
    weights = read_checkpoint(path)
    assert (weights.card, weights.unused) == (Card(num_classes=7, dataset="d"), ())


def test_a_pickle_that_runs_code_is_refused_unrun_and_named(tmp_path: Path) -> None:
    path, target = tmp_path / "evil.pt", tmp_path / "EVIL"
    payload = {"state_dict": net().state_dict(), "extra": Evil(target)}

    def holds(form: str) -> None:
        if form in ("zip", "legacy"):
            torch.save(payload, path, _use_new_zipfile_serialization=form == "zip")
        elif form == "bare":
            path.write_bytes(pickle.dumps(Evil(target)))
        else:
            path.write_bytes(pickle.dumps(payload, protocol=int(form[-1])))
        refused(".mkdir", read_weights, path)
        assert not target.exists()

    all_hold(holds, ((form,) for form in ("zip", "legacy", "pickle2", "pickle5", "bare")))
    pickle.loads(pickle.dumps(Evil(target)))
    assert target.exists(), "the trap itself must work"


def test_what_is_not_weights_only_names_its_globals(tmp_path: Path) -> None:
    path = tmp_path / "full.pt"
    torch.save(net(), path)
    refused("save model.state_dict()", read_weights, path)
    torch.save({"net": net().state_dict(), "acc": np.float64(95.0)}, path)
    refused("scalar", read_weights, path)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def saved(value: object, tmp_path: Path, zipped: bool = True) -> bytes:
    torch.save(value, tmp_path / "whole", _use_new_zipfile_serialization=zipped)
    return (tmp_path / "whole").read_bytes()


def safetensors_bytes(tmp_path: Path) -> bytes:
    save_weights(tmp_path / "whole", net(), Card())
    return (tmp_path / "whole").read_bytes()


def script_bytes(tmp_path: Path) -> bytes:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "whole"))
    return (tmp_path / "whole").read_bytes()


NO_WEIGHTS = {
    "empty": (lambda tmp: b"", "is empty"),
    "text": (lambda tmp: b"hello, these are no weights", "is a text file"),
    "html": (lambda tmp: b"\n<!DOCTYPE html><html>Not found</html>", "HTML page"),
    "lfs": (lambda tmp: b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    "noise": (lambda tmp: bytes(range(200, 256)) * 4, "is no weights file"),
    "cut_zip": (lambda tmp: half(saved(net().state_dict(), tmp)), "cut short"),
    "cut_legacy": (lambda tmp: half(saved(net().state_dict(), tmp, False)), "cut short"),
    "cut_safetensors": (lambda tmp: half(safetensors_bytes(tmp)), "cut short"),
    "cut_header": (lambda tmp: safetensors_bytes(tmp)[:20], "no weights|no safetensors|cut short"),
    "script": (script_bytes, "TorchScript"),
    "tensor": (lambda tmp: saved(torch.ones(3), tmp), "holds a Tensor; expected a state dict"),
    "list": (lambda tmp: saved([torch.ones(3)], tmp), "holds a list; expected a state dict"),
    "no_tensors": (lambda tmp: saved({"epoch": 3, "lr": 0.1}, tmp), "its keys are epoch, lr"),
    "nothing": (lambda tmp: saved({}, tmp), "holds no"),
}


@pytest.mark.filterwarnings("ignore")
def test_what_is_no_weights_is_told_in_one_line(tmp_path: Path) -> None:
    def holds(case: str, suffix: str) -> None:
        make, message = NO_WEIGHTS[case]
        path = tmp_path / f"teacher{suffix}"
        path.write_bytes(make(tmp_path))
        if suffix == ".safetensors":
            message += "|no safetensors"
        error = refusal(message, read_weights, path)
        assert str(path) in str(error)

    all_hold(holds, itertools.product(NO_WEIGHTS, (".pt", ".safetensors")))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    refused("no such file", read_weights, tmp_path / "none.pt")
    refused("is a directory", read_weights, tmp_path)


def test_an_onnx_model_is_told_what_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    refused("is an ONNX model, for which say --teacher onnx --teacher.model;", read_weights, path)


def test_a_program_of_torch_export_is_told_what_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(net().eval(), (torch.zeros(2, 1, 3, 3),)), path)
    message = "is a program of torch.export, for which say --teacher pt2 --teacher.program"
    refused(message, read_weights, path)


def test_load_into_counts_and_names_what_does_not_fit() -> None:
    module = net()
    state = module.state_dict()
    del state["0.weight"], state["3.bias"]
    state["3.weight"] = torch.zeros(5, 2)
    state["4.extra"] = torch.zeros(1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    error = refusal("", load_into, module, state)
    assert "2 of 9 missing, first 0.weight" in str(error)
    assert "1 unexpected, first 4.extra" in str(error)
    assert "1 of another shape, first 3.weight: (5, 2) in the file, (3, 2) in the network" in str(
        error
    )
    assert_same(module.state_dict(), before)


def test_load_into_does_without_batch_counters_but_not_with_nan() -> None:
    state = {name: value for name, value in net().state_dict().items() if "num_batches" not in name}
    load_into(net(), state)
    state["3.bias"] = torch.tensor([0.0, torch.nan, 0.0])
    refused("NaN or infinite values in 1 tensors, first", load_into, net(), state)


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, *shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


NULLS = [
    {"format": "pt", "author": None},
    {"format": None, "shape": None, "num_classes": None},
    {"num_classes": 3, "tags": ["a"], "nested": {"a": None}},
    None,
    [1],
    "text",
]


def test_metadata_that_the_library_refuses_is_read(tmp_path: Path) -> None:
    def holds(metadata: Any) -> None:
        header = {"__metadata__": metadata, "fc.weight": entry(0, 24, 3, 2)}
        path = written(tmp_path / "x.safetensors", header, torch.arange(6.0).numpy().tobytes())
        state, card = read_weights(path)
        assert torch.equal(state["fc.weight"], torch.arange(6.0).reshape(3, 2))
        assert card.num_classes == (
            3 if isinstance(metadata, dict) and 3 in metadata.values() else None
        )

    all_hold(holds, ((metadata,) for metadata in NULLS))
    written(
        tmp_path / "x.safetensors", {"__metadata__": {"a": None}, "w": entry(0, 4, 1)}, bytes(4)
    )
    with pytest.raises(SafetensorError), safe_open(tmp_path / "x.safetensors", framework="pt"):
        pass  # else this reader could go


W = entry(0, 4, 1)
HOSTILE: dict[str, tuple[Any, bytes]] = {
    "overlap": ({"a": entry(0, 8, 2), "b": entry(4, 12, 2)}, bytes(12)),
    "the same bytes twice": ({"a": W, "b": W}, bytes(4)),
    "a gap": ({"a": W, "b": entry(8, 12, 1)}, bytes(12)),
    "a gap at the start": ({"a": entry(4, 8, 1)}, bytes(8)),
    "beyond the file": ({"a": entry(0, 4_000_000_000, 10**9)}, bytes(4)),
    "bytes left over": ({"a": W}, bytes(8)),
    "a size too small": ({"a": entry(0, 4, 1000)}, bytes(4)),
    "a product beyond 64 bits": ({"a": entry(0, 4, 2**40, 2**40)}, bytes(4)),
    "nothing times infinity": ({"a": entry(0, 0, 0, 2**70)}, b""),
    "nothing, stepping far": ({"a": entry(0, 0, 2**40, 0, 2**40)}, b""),
    "negative": ({"a": entry(-4, 0, 1)}, bytes(4)),
    "two negatives": ({"a": entry(0, 4, -1, -1)}, bytes(4)),
    "a bool": ({"a": entry(0, 4, True)}, bytes(4)),
    "a fraction": ({"a": entry(0, 4, 1.0)}, bytes(4)),
    "backwards": ({"a": entry(4, 0, 1)}, bytes(4)),
    "many axes": ({"a": entry(0, 4, *[1] * 65)}, bytes(4)),
    "unknown dtype": ({"a": entry(0, 4, 1, dtype="F4")}, bytes(4)),
    "dtype of another type": ({"a": entry(0, 4, 1, dtype=["F32"])}, bytes(4)),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)),
    "three offsets": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
    "no entry": ({"a": None}, b""),
    "a name twice": (b'{"a":1,"a":2}', b""),
    "no JSON": (b"{nonsense", b""),
    "no text": (b"{\xff\xff}", b""),
    "deep": (b'{"a":' + b"[" * 100_000, b""),
    "a number of 5,000 digits": (b'{"a":' + b"9" * 5_000 + b"}", b""),
}


@pytest.mark.timeout(20)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path: Path) -> None:
    def holds(case: str) -> None:
        header, data = HOSTILE[case]
        refused(
            "cannot be read as safetensors",
            read_weights,
            written(tmp_path / "x.safetensors", header, data),
        )

    all_hold(holds, ((case,) for case in HOSTILE))


def test_a_header_longer_than_the_file_or_than_any(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in (1_000, 15_999_999, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + b'{"a":1}')
        refused("safetensors", read_weights, path)


def test_bytes_that_are_no_bools_become_bools(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {"a": entry(0, 3, 3, dtype="BOOL")}, b"\0\1\7")
    assert read_safetensors(path)[0]["a"].tolist() == [False, True, True]
