"""The run directory: fresh or resumable, the summary last; checkpoints: whole, or damage that is
named.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from damage import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import Metered, clone

from dfme.errors import RunError, UserError
from dfme.methods.static import Static
from dfme.run.checkpoint import load_checkpoint, previous, save_checkpoint
from dfme.run.directory import RunDirectory


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "x")
    directory.write_config("seed: 0\n")
    begun = os.path.relpath(Path.cwd(), tmp_path / "runs/x")
    assert directory.config.read_text().startswith(
        f"seed: 0\n# relative paths begin at, from here: {begun}\n"
    )
    assert not directory.has_checkpoint


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        layout = {
            path.relative_to(tmp_path).as_posix()
            for path in vars(run).values()
            if isinstance(path, Path)
        }
    assert layout - {"."} == {
        *(
            "config.yaml adapter.yaml ledger.jsonl journal metrics.jsonl checkpoint.pt "
            "checkpoint.previous.pt student.safetensors watch.jsonl summary.json"
        ).split()
    }


@pytest.mark.parametrize("out", ["file", "file/x", "/proc/x", "/dev/null"])
def test_what_cannot_be_a_directory_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*cannot create the run directory: "):
        RunDirectory.create(tmp_path / out)


def test_resuming_needs_a_ledger_beside_a_checkpoint(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path) as run:
        run.write_config("seed: 0")
    RunDirectory.open_for_resume(tmp_path).close()
    save_checkpoint(run.checkpoint, {"step": 1})
    with pytest.raises(RunError, match=r"ledger.jsonl: missing, beside a checkpoint"):
        RunDirectory.open_for_resume(tmp_path)
    run.ledger.touch()
    with RunDirectory.open_for_resume(tmp_path) as again:
        assert again.has_checkpoint


def test_free_names_count_up(tmp_path: Path) -> None:
    for name in ("digits", "digits-2"):
        assert RunDirectory.free_name(tmp_path / "digits").name == name
        (tmp_path / name).mkdir()


def test_the_summary_is_whole_or_absent(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    with file_size_limit(10), pytest.raises(RunError, match=r"summary.json"):
        run.write_summary({"method": "dfme", "accuracy": 0.5})
    assert not run.summary.exists()
    run.write_summary({"method": "dfme", "accuracy": None})
    assert json.loads(run.summary.read_text()) == {"method": "dfme", "accuracy": None}


def raising(failure: type[BaseException]) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise failure

    return fail


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_a_run_that_fails_before_its_first_charge_leaves_no_directory(
    failure: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(Static, "prepare", raising(failure))
    with pytest.raises(failure):
        clone(out, Metered())
    assert not out.exists()
    monkeypatch.setattr(
        Static, "prepare", lambda _: (out / "own.log").touch() or raising(failure)()
    )
    with pytest.raises(failure):
        clone(out, Metered())
    assert [path.name for path in out.iterdir()] == ["own.log"], "what is not the run's stays"


# Checkpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


def test_everything_a_run_holds_comes_back(path: Path) -> None:
    rng = torch.Generator().manual_seed(3)
    plain = [1, 2.5, True, None, "text", b"bytes", (1, 2), 2**70]
    save_checkpoint(
        path, {"net": {"weight": torch.arange(3.0)}, "rng": rng.get_state(), "plain": plain}
    )
    again = load_checkpoint(path)
    assert again["plain"] == torch.load(path, weights_only=True)["plain"] == plain
    assert again["net"]["weight"].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(
        torch.rand(5, generator=rng), torch.rand(5, generator=rng.set_state(again["rng"]))
    )


def test_after_a_kill_between_the_two_renames_the_one_before_is_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renames, rename = [], os.replace

    def killed_at_the_second(old: Path, new: Path) -> None:
        renames.append(new)
        if len(renames) == 2:
            raise KeyboardInterrupt
        rename(old, new)

    save_checkpoint(path, {"step": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, {"step": 2})
    assert not path.exists()
    assert load_checkpoint(path) == {"step": 1}
    save_checkpoint(path, {"step": 2})
    assert (load_checkpoint(path), load_checkpoint(previous(path))) == ({"step": 2}, {"step": 1})
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "checkpoint.previous.pt",
        "checkpoint.pt",
    ]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damage_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
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


def test_a_full_disk_leaves_the_old_checkpoint_untouched(path: Path) -> None:
    save_checkpoint(path, {"step": 1})
    before = path.read_bytes()
    for size in (0, 5_000, 300_000):
        with (
            file_size_limit(size),
            pytest.raises(RunError, match=r"cannot write .*free some space"),
        ):
            save_checkpoint(path, {"x": torch.zeros(100_000)})
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": [0, {"b": Path("x")}]}, r"state\['a'\]\[1\]\['b'\] is a PosixPath"),
        ({"a": {1, 2}}, r"state\['a'\] is a set"),
        ({"a": {(1, 2): 3}}, r"state\['a'\] has the key \(1, 2\)"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(
    path: Path, state: dict[str, Any], where: str
) -> None:
    with pytest.raises(TypeError, match=where):
        save_checkpoint(path, state)
    assert not list(path.parent.iterdir())
