"""Files that are not what their names say, and files that are whole or absent whatever the disk does."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import parse_extract
from damage import file_size_limit, refused
from small_runs import Metered, clone
from tables import exhaustive

from dfme.config.sections import WandbConfig
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
from dfme.files import AppendFile, replacing
from dfme.nets import build_net
from dfme.report.page import write_report
from dfme.report.wandb_run import WandbRun
from dfme.run.opening import free_name
from dfme.run.student_file import load_student
from dfme.teachers.local.weights import read_weights

SECRET = b"a file of somebody else's, without a newline at its end"


STRANGE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "dead link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "link to itself": lambda path: path.symlink_to(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
}
FILES = ["checkpoint.pt", "ledger.jsonl", "metrics.jsonl", "journal/000001.bin", "config.yaml"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_an_error_at_once_and_nothing_is_asked(
    name: str, kind: str, cut_short: tuple[Path, int]
) -> None:
    out, teacher = cut_short[0], Metered()
    (out / name).unlink()
    STRANGE[kind](out / name)
    refused(str(out), clone, out, teacher, resume=True)
    assert teacher.calls == 0


@pytest.mark.parametrize(
    "name",
    ["curve.png.tmp", *exhaustive("report.html", "report.html.tmp", "curve.png", "samples.png")],
)
def test_a_report_writes_into_its_own_folder_alone(name: str, whole: Path, tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "precious"
    shutil.copytree(whole, run)
    target.write_bytes(SECRET)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    page = write_report(run).read_bytes()
    assert target.read_bytes() == SECRET
    assert SECRET not in page


def test_a_pipe_among_the_samples_is_named(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "samples").mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "run" / "samples" / "queries-000000001.npz")
    with pytest.raises(RunError, match=r"queries-000000001\.npz.*no regular file"):
        write_report(tmp_path / "run")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", STRANGE)
def test_weights_that_are_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    STRANGE[kind](path)
    with pytest.raises(UserError):
        read_weights(path)
    if kind != "folder":
        with pytest.raises(UserError, match="no such file"):
            load_student(path)


# Names


REACHING = [
    "a\0b",
    "",
    *"../../x /etc/passwd .. os:system torch.nn.Linear dfme.nets.architectures:SmallCnn".split(),
]


@pytest.mark.parametrize("name", REACHING)
def test_an_architecture_and_a_data_set_are_names_of_their_lists(name: str) -> None:
    with pytest.raises(UserError, match="unknown net"):
        build_net(name, (1, 8, 8), 10)
    if name not in ("..", "/etc/passwd"):  # which are there: a folder or a file of images
        with pytest.raises(UserError, match="data set"):
            load_dataset(name, "test")


@pytest.mark.parametrize("dataset", ["..", "/", "../..", "a/../../b", "digits"])
def test_the_name_of_a_run_stays_under_runs(dataset: str, here: Path) -> None:
    (here / "a").mkdir()
    job = parse_extract(["--evaluation.dataset", "digits"])
    object.__setattr__(job.config.evaluation, "dataset", dataset)
    assert free_name(job, job.method).resolve().parent == here / "runs"


@pytest.mark.parametrize(
    "identity",
    ['"../../x"', '"a b"', '""', "3.5", '["x"]', "[" * 100_000, '"' + "x" * 2_000],
    ids=lambda identity: identity[:9],
)
def test_the_run_in_wandb_has_a_plain_name_and_keeps_it(identity: str, tmp_path: Path) -> None:
    """wandb makes folders of it; the name lies in the run directory."""
    (tmp_path / "wandb.json").write_text(f'{{"id": {identity}}}')
    first, again = (
        WandbRun(WandbConfig(), tmp_path, {}, lambda line: None)._identity() for _ in range(2)
    )
    assert first.isalnum()
    assert again == first


def test_members_of_an_archive_name_arrays_and_no_files(tmp_path: Path) -> None:
    """An .npz file with the names of a path in it: an array of that name, nothing is unpacked
    anywhere.
    """
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        for name in ("../escaped.npy", "/tmp/../escaped.npy", "escaped.txt"):
            archive.writestr(name, archive.read("labels.npy"))
    (tmp_path / "inside").mkdir()
    assert len(load_dataset(str(tmp_path / "x.npz"), "test")) == 2
    assert not list(tmp_path.rglob("escaped*"))


def test_a_folder_of_links_is_a_data_set_and_only_pictures_are_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    outside, folder = tmp_path / "outside", tmp_path / "set"
    (outside / "deep").mkdir(parents=True)
    image.fromarray(np.full((8, 8), 7, np.uint8)).save(outside / "x.png")
    (outside / "deep" / "loop").symlink_to(outside)
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "x.png").symlink_to(outside / "x.png")
    (folder / "two").symlink_to(outside, target_is_directory=True)
    os.mkfifo(folder / "one" / "pipe.png")
    assert load_dataset(str(folder), "test").labels.tolist() == [0, 1]
    (folder / "one" / "y.png").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"y\.png cannot be read as an image"):
        load_dataset(str(folder), "test")


def test_no_picture_starts_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript under the name of a PNG, which Pillow would hand to Ghostscript."""
    pytest.importorskip("PIL.Image")
    (tmp_path / "one").mkdir()
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) run\n%%EOF\n"
    (tmp_path / "one" / "x.png").write_bytes(script)
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(UserError, match="cannot be read as an image: cannot identify"):
        load_dataset(str(tmp_path), "test")


@pytest.mark.integration
def test_a_config_from_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    """``--config <(...)`` names a pipe, and is no attack."""
    code = "from dfme.config.yaml_files import load_yaml; print(load_yaml('/dev/stdin'))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, input="seed: 3\n", capture_output=True, text=True, timeout=30)
    assert done.stdout == "{'seed': 3}\n", done.stderr


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
