"""Files that are not what their names say: links out of a run, pipes, folders."""

import itertools
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
from small_runs import Metered, clone
from tables import all_hold, exhaustive

from dfme.config.wandb_settings import WandbConfig
from dfme.data import load_dataset
from dfme.errors import RunError, UserError
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


@pytest.fixture
def copies(master: tuple[Path, int], tmp_path: Path) -> Callable[[], Path]:
    """Copies of a run that was cut short, one for each case of a table."""
    numbers = itertools.count()
    return lambda: Path(shutil.copytree(master[0], tmp_path / f"run{next(numbers)}"))


@pytest.mark.timeout(60)
def test_what_is_no_file_is_an_error_at_once_and_nothing_is_asked(
    copies: Callable[[], Path],
) -> None:
    def holds(name: str, kind: str) -> None:
        out, teacher = copies(), Metered()
        (out / name).unlink()
        STRANGE[kind](out / name)
        with pytest.raises(UserError) as caught:
            clone(out, teacher, resume=True)
        assert str(out) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert teacher.calls == 0

    all_hold(holds, itertools.product(FILES, STRANGE))


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
def test_weights_that_are_no_file(tmp_path: Path) -> None:
    def holds(kind: str) -> None:
        path = tmp_path / f"{kind}.safetensors"
        STRANGE[kind](path)
        with pytest.raises(UserError):
            read_weights(path)
        if kind != "folder":
            with pytest.raises(UserError, match="no such file"):
                load_student(path)

    all_hold(holds, ((kind,) for kind in STRANGE))


# Names


REACHING = [
    "a\0b",
    "",
    *"../../x /etc/passwd .. os:system torch.nn.Linear dfme.nets.architectures:SmallCnn".split(),
]


def test_an_architecture_and_a_data_set_are_names_of_their_lists() -> None:
    def holds(name: str) -> None:
        with pytest.raises(UserError, match="unknown net"):
            build_net(name, (1, 8, 8), 10)
        if name not in (
            "..",
            "/etc/passwd",
        ):  # which are there, and so a folder or a file of images
            with pytest.raises(UserError, match="data set"):
                load_dataset(name, "test")

    all_hold(holds, ((name,) for name in REACHING))


def test_the_name_of_a_run_stays_under_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    job = parse_extract(["--evaluation.dataset", "digits"])

    def holds(dataset: str) -> None:
        object.__setattr__(job.config.evaluation, "dataset", dataset)
        assert free_name(job, job.method).resolve().parent == tmp_path / "runs"

    all_hold(holds, ((dataset,) for dataset in ("..", "/", "../..", "a/../../b", "digits")))


def test_the_run_in_wandb_has_a_plain_name(tmp_path: Path) -> None:
    """wandb makes folders of it; the name lies in the run directory."""

    def holds(identity: str) -> None:
        (tmp_path / "wandb.json").write_text(f'{{"id": {identity}}}')
        made = WandbRun(WandbConfig(), tmp_path, {}, lambda line: None)._identity()
        assert made.isalnum()
        assert WandbRun(WandbConfig(), tmp_path, {}, lambda line: None)._identity() == made, (
            "and keeps it"
        )

    identities = ('"../../x"', '"a b"', '""', "3.5", '["x"]', "[" * 100_000, '"' + "x" * 2_000)
    all_hold(holds, ((identity,) for identity in identities))


def test_members_of_an_archive_name_arrays_and_no_files(tmp_path: Path) -> None:
    """An .npz file with the names of a path in it: an array of that name, nothing is unpacked
    anywhere.
    """
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        for name in ("../escaped.npy", "/tmp/../escaped.npy", "escaped.txt"):
            archive.writestr(name, archive.read("labels.npy"))
    folder = tmp_path / "inside"
    folder.mkdir()
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
