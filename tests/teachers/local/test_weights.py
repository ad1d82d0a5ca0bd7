"""Reading and writing weights: every form people publish, and everything that is no weights at
all.
"""

import itertools
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import save_weights
from refusals import refused
from safetensors import safe_open
from safetensors.torch import save_file
from tables import all_hold
from torch import Tensor, nn

from dfme.errors import UserError
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
        found, card = read_weights(path)
        assert_same(found, state)
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
    known = {
        "mean": (0.5,),
        "std": (0.25,),
        "bounds": (-1.0, 1.0),
        "class_names": ("a", "b", "\u00fc"),
    }
    card = Card(
        arch="lenet5", shape=(1, 8, 8), num_classes=3, accuracy=0.98, recipe={"lr": 0.1}, **known
    )
    contents = set()
    for _ in range(8):
        save_weights(path, module, card)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    state, found = read_weights(path)
    assert_same(state, module.state_dict())
    assert found == card
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
        with pytest.raises(UserError, match=message) as error:
            read_weights(path)
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)

    all_hold(holds, itertools.product(NO_WEIGHTS, (".pt", ".safetensors")))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    refused("no such file", read_weights, tmp_path / "none.pt")
    refused("is a directory", read_weights, tmp_path)


def test_an_onnx_model_is_told_what_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    refused("is an ONNX model, for which say --teacher onnx --teacher.model;", read_weights, path)


def test_load_into_counts_and_names_what_does_not_fit() -> None:
    module = net()
    state = module.state_dict()
    del state["0.weight"], state["3.bias"]
    state["3.weight"] = torch.zeros(5, 2)
    state["4.extra"] = torch.zeros(1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(UserError) as error:
        load_into(module, state)
    assert "2 of 9 missing, first 0.weight" in str(error.value)
    assert "1 unexpected, first 4.extra" in str(error.value)
    assert "1 of another shape, first 3.weight: (5, 2) in the file, (3, 2) in the network" in str(
        error.value
    )
    assert_same(module.state_dict(), before)


def test_load_into_does_without_batch_counters_but_not_with_nan() -> None:
    state = {name: value for name, value in net().state_dict().items() if "num_batches" not in name}
    load_into(net(), state)
    state["3.bias"] = torch.tensor([0.0, torch.nan, 0.0])
    refused("NaN or infinite values in 1 tensors, first", load_into, net(), state)
