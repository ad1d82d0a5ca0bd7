"""Files of strangers that claim, or unpack to, far more than they hold."""

import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import LAUGHS, saved, with_header
from model_folders import save_weights
from pickled import PICKLES, archive, series, zipped
from processes import PROJECT

from dfme.nets import build_net
from dfme.run.student_file import save_student
from dfme.spec import ImageSpec
from dfme.teachers.local.weights import Card

pytestmark = pytest.mark.integration

HUGE = 10**12
SPARE = 2 << 30
"""Bytes of address space that the process may take beyond what its imports took."""

READER = """
import json, resource, sys, time
import torch
from pathlib import Path
from dfme.config.settings import TeacherConfig
from dfme.config.yaml_files import load_yaml
from dfme.errors import DfmeError
from dfme.report.run_files import read_run
from dfme.run.student_file import load_student
from dfme.teachers.options import TorchOptions
from dfme.teachers.local.pytorch import load_torch

READERS = {
    "student": load_student, "recipe": load_yaml, "run": read_run,
    "teacher": lambda path: load_torch(TorchOptions(str(path)), TeacherConfig(), torch.device("cpu")),
}
build = torch.nn.Linear(8, 8)(torch.ones(1, 8))
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + int(sys.argv[2]),) * 2)
for path in sorted(Path(sys.argv[1]).iterdir()):
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        READERS[path.name.partition(".")[0]](path)
        outcome = "read"
    except DfmeError as error:
        outcome = f"{type(error).__name__}: {error}"
    except BaseException as error:
        outcome = f"NOT OURS: {type(error).__name__}: {error}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([path.name, outcome, grown / 1024, time.process_time() - started]))
"""


def claims(content: bytes, small: int, huge: int) -> bytes:
    """A pickle in the format before PyTorch 1.6 that claims a storage, and a shape, of ``huge``
    elements.
    """
    number = pickle.dumps(huge, 2)[2:-1]
    short = b"K" + bytes([small])
    assert content.count(short + b"N") == 1
    assert content.count(short + b"\x85") == 1
    return content.replace(short + b"N", number + b"N").replace(short + b"\x85", number + b"\x85")


def squeezed(archive: bytes) -> bytes:
    """The archive with its entries compressed, which PyTorch reads too."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        return zipped({name: old.read(name) for name in old.namelist()}, zipfile.ZIP_DEFLATED)


def npz_that_claims(shape: tuple[int, ...]) -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return zipped({"images.npy": head.getvalue()})


def make_run(folder: Path, sheet: bytes) -> None:
    (folder / "samples").mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "samples" / "queries-000000001.npz").write_bytes(sheet)


def make_files(folder: Path) -> None:
    """One file, or run, for each claim; what comes before the dot says who reads it."""
    bomb, legacy = (
        squeezed(saved({"x": torch.zeros(400_000_000, dtype=torch.uint8)}, True)),
        claims(saved({"x": torch.arange(7.0)}, False), 7, HUGE),
    )
    net = build_net("lenet5", (1, 8, 8), 3)
    (folder / "teacher.bomb").write_bytes(bomb)
    newer = re.sub(rb"(PK\x01\x02..)..", lambda found: found[1] + b"\x64\0", bomb, flags=re.DOTALL)
    (folder / "teacher.newer bomb").write_bytes(newer)
    for name, pickled in PICKLES.items():
        (folder / f"teacher.{name}, in an archive").write_bytes(archive(pickled))
        (folder / f"teacher.{name}, in a series").write_bytes(series(pickled))
    (folder / "teacher.legacy").write_bytes(legacy)
    (folder / "teacher.expanded").write_bytes(
        saved({"fc.weight": torch.ones(1).expand(HUGE)}, True)
    )
    (folder / "teacher.meta").write_bytes(
        saved({"fc.weight": torch.empty(HUGE, device="meta")}, True)
    )
    save_weights(folder / "teacher.classes", net, Card("lenet5", (1, 8, 8), 10**9))
    save_weights(folder / "teacher.channels", net, Card("resnet18_8x", (10**9, 8, 8), 3))
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "classes": lambda header: header["__metadata__"].update(num_classes=str(10**9)),
        "channels": lambda header: header["__metadata__"].update(shape=f"[{HUGE}, 8, 8]"),
        "tensor": lambda header: header["fc2.weight"].update(shape=[HUGE]),
    }
    for name, change in changes.items():
        path = folder / f"student.{name}"
        save_student(path, net, "lenet5", ImageSpec((1, 8, 8)), 3)
        path.write_bytes(with_header(path.read_bytes(), change))
    make_run(folder / "run.claim", npz_that_claims((HUGE,)))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=np.zeros((400, 1, 1000, 1000), np.uint8))
    make_run(folder / "run.bomb", buffer.getvalue())
    (folder / "recipe.laughs").write_text(LAUGHS)
    (folder / "recipe.sparse").touch()
    os.truncate(folder / "recipe.sparse", 4 << 30)


def test_claims_take_neither_memory_nor_time(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    make_files(folder)
    command = [sys.executable, "-c", READER, str(folder), str(SPARE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2_000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(list(folder.iterdir())) > 15
    ours = ("UserError", "RunError")
    wrong = [
        line for line in results if not line[1].startswith(ours) or line[2] > 100 or line[3] > 3
    ]
    assert wrong == [], "not an error of ours, or more than 100 MB or 3 seconds"
