"""Files that are whole or absent, whatever the disk does; the system's own limits make it
refuse.
"""

from pathlib import Path

import pytest
from damage import file_size_limit

from dfme.errors import RunError
from dfme.files import AppendFile, replacing


def test_opening_cuts_a_torn_end_and_appends_are_on_file_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"whole|tor")
    file = AppendFile(tmp_path / "log", size=6)
    file.append(b"next", memoryview(b"|"))
    assert (tmp_path / "log").read_bytes() == b"whole|next|"
    file.close()
    file.close()


@pytest.mark.parametrize("limit", [4, 6, 9])
def test_an_append_that_does_not_fit_is_taken_back(tmp_path: Path, limit: int) -> None:
    file = AppendFile(tmp_path / "log")
    file.append(b"1234")
    with (
        file_size_limit(limit),
        pytest.raises(RunError, match=r"cannot write .*log: File too large"),
    ):
        file.append(b"567", b"890")
    assert (tmp_path / "log").read_bytes() == b"1234"
    file.append(b"567")
    assert (tmp_path / "log").read_bytes() == b"1234567"


def test_a_full_device_is_explained() -> None:
    with pytest.raises(RunError, match=r"No space left on device.*free some space"):
        AppendFile(Path("/dev/full")).append(b"x")


def test_replacing_swaps_whole_files_and_keeps_the_old_one(tmp_path: Path) -> None:
    path, keep = tmp_path / "new", tmp_path / "old"
    for text in (b"a", b"b", b"c"):
        with replacing(path, keep) as file:
            file.write(text)
    assert (path.read_bytes(), keep.read_bytes()) == (b"c", b"b")


def test_replacing_leaves_everything_as_it_was_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with (
        file_size_limit(2),
        pytest.raises(RunError, match="File too large"),
        replacing(path) as file,
    ):
        file.write(b"newer")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(bytes([1 // 0]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_missing_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot open .*No such file"):
        AppendFile(tmp_path / "none" / "log")
    with pytest.raises(RunError, match=r"cannot write .*No such file"):
        replacing(tmp_path / "none" / "x").__enter__()
