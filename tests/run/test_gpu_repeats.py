"""On a GPU with --deterministic: a run repeats to the bit, also when it was killed.

What is killed has a process of its own. All other runs share one, so that a lent GPU does not wait
for imports.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from processes import Strike, strike, written
from small_runs import student

from dfme.cli.main import main

pytestmark = pytest.mark.gpu
WORDS = [
    "--config",
    "configs/digits.yaml",
    "--deterministic",
    "true",
    "--device",
    "cuda",
    "--checkpoint-seconds",
    "0.2",
]
LONG = ("--budget", "200k")
"""A second at least, so that it lives when it is struck."""
Run = Callable[..., bytes]


def extract(words: list[str]) -> tuple[int, str]:
    """Exit code, and what the run wrote to stderr."""
    with redirect_stderr(StringIO()) as err:
        return main(["extract", *words]), err.getvalue()


def finished(pool: ProcessPoolExecutor, out: Path, *more: str) -> bytes:
    code, err = pool.submit(extract, [*WORDS, "--out", str(out), *more]).result()
    assert code == 0, err
    assert "UserWarning" not in err
    return student(out)


def killed(out: Path, *more: str) -> None:
    """Begin a run, and kill it after its first checkpoint."""
    words = [sys.executable, "-m", "dfme", "extract", *WORDS, "--out", str(out), *more]
    started = time.time()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert strike(
        process, out, Strike(lambda run, _: written(run / "checkpoint.pt", started), 0), started
    )


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield partial(finished, pool)


@pytest.fixture(scope="module")
def usual(run: Run, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run(tmp_path_factory.mktemp("usual") / "run", *LONG)


def test_the_same_seed_twice(tmp_path: Path, run: Run, usual: bytes) -> None:
    assert run(tmp_path / "run", *LONG) == usual


def test_killed_and_resumed(tmp_path: Path, run: Run, usual: bytes) -> None:
    killed(tmp_path / "run", *LONG)
    assert run(tmp_path / "run", *LONG, "--resume") == usual


def test_the_state_of_defences_comes_from_the_checkpoint_alone(tmp_path: Path, run: Run) -> None:
    """A network of ours on a GPU has no journal: what was asked since is asked again."""
    more = (*LONG, "--teacher.defences", "modelguard_s:epsilon=0.6")
    whole = run(tmp_path / "whole", *more)
    killed(tmp_path / "run", *more)
    assert run(tmp_path / "run", *more, "--resume") == whole
