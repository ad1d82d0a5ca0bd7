"""Checkpoints: the same state again, whole files only, and damage told apart from health byte by byte."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.errors import RunError
from dfme.run.checkpoint import load_checkpoint, previous, save_checkpoint


def test_everything_a_run_holds_comes_back(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    adam = torch.optim.Adam(net.parameters())
    net(torch.rand(4, 3)).sum().backward()
    adam.step()
    rng = torch.Generator().manual_seed(3)
    state: dict[str, Any] = {
        "net": net.state_dict(),
        "adam": adam.state_dict(),
        "rng": rng.get_state(),
        "plain": [1, 2.5, True, None, "text", b"bytes", (1, 2), 2**70],
    }
    save_checkpoint(tmp_path / "checkpoint.pt", state)
    again = load_checkpoint(tmp_path / "checkpoint.pt")
    assert again["plain"] == state["plain"]
    assert all(torch.equal(again["net"][name], value) for name, value in net.state_dict().items())
    torch.optim.Adam(net.parameters()).load_state_dict(again["adam"])
    assert torch.equal(
        torch.rand(5, generator=rng),
        torch.rand(5, generator=torch.Generator().set_state(again["rng"])),
    )
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["plain"] == state["plain"]


def test_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for step in range(3):
        save_checkpoint(path, {"step": step})
    assert load_checkpoint(path) == {"step": 2}
    assert previous(path) == tmp_path / "checkpoint.previous.pt"
    assert load_checkpoint(previous(path)) == {"step": 1}
    assert len(list(tmp_path.iterdir())) == 2


def test_after_a_kill_between_the_two_renames_the_one_before_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, renames, rename = tmp_path / "checkpoint.pt", [], os.replace

    def killed_at_the_second(old: Path, new: Path) -> None:
        renames.append(new)
        if len(renames) == 2:
            raise KeyboardInterrupt
        rename(old, new)

    save_checkpoint(path, {"step": 1})
    monkeypatch.setattr(os, "replace", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {"step": 2})
    assert not path.exists()
    assert load_checkpoint(path) == {"step": 1}
    monkeypatch.undo()
    save_checkpoint(path, {"step": 2})
    assert (load_checkpoint(path), load_checkpoint(previous(path))) == ({"step": 2}, {"step": 1})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damage_anywhere_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    save_checkpoint(path, {"x": torch.arange(20.0)})
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"expected a whole checkpoint, but .*start a new run"):
        load_checkpoint(path)


def test_the_message_says_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    save_checkpoint(path, {"step": 2})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"cut short \(100 bytes\); checkpoint.previous.pt is whole: rename it"):
        load_checkpoint(path)
    os.replace(previous(path), path)
    assert load_checkpoint(path) == {"step": 1}


def test_a_missing_one_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"checkpoint.pt: expected a whole checkpoint, but there is none"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_a_full_disk_leaves_the_old_checkpoint_untouched(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})
    before = path.read_bytes()
    for size in (0, 5_000, 300_000):
        with file_size_limit(size), pytest.raises(RunError, match=r"cannot write .*free some space"):
            save_checkpoint(path, {"x": torch.zeros(100_000)})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [0, {"b": Path("x")}]}, r"state\['a'\]\[1\]\['b'\] is a PosixPath"),
        ({"a": {1, 2}}, r"state\['a'\] is a set"),
        ({"a": {(1, 2): 3}}, r"state\['a'\] has the key \(1, 2\)"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, state: dict[str, Any], where: str) -> None:
    with pytest.raises(TypeError, match=where):
        save_checkpoint(tmp_path / "checkpoint.pt", state)
    assert not list(tmp_path.iterdir())
