"""The tiers' rules, and runs that several test files start from."""

import atexit
import gc
import os
import re
import shutil
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: two workers are two threads
for name in [name for name in os.environ if name.startswith("WANDB_")]:
    del os.environ[name]  # they change what a run tracks; a test that wants one sets it

gc.disable()  # until all is imported, which stays to the end
atexit.register(gc.unfreeze)

OTHER_TIERS = ("integration", "exhaustive", "cluster", "gpu", "network")
SECONDS = 6.0
"""CPU time above which a test of the default tier is pointed out."""
WHOLE_FILE = re.compile(
    r"^pytestmark = (?:\[[^\]]*|.*)\b(?:integration|exhaustive|cluster)\b", re.M
)
LOOKING_UP = {"ldconfig", "gcc", "cc", "ld", "objdump", "fc-list", "uname", "lscpu"}
"""Programs that libraries start to find others."""
_reached: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Notes a process that is started, and a stream socket that is bound or connected."""
    if _reached is None or event not in ("subprocess.Popen", "socket.bind", "socket.connect"):
        return
    if event == "subprocess.Popen":
        outside = Path(os.fsdecode(arguments[0])).name not in LOOKING_UP  # type: ignore[arg-type]
    else:
        outside = getattr(arguments[0], "type", None) == socket.SOCK_STREAM
    if outside:
        _reached.append(f"{event} {arguments[1]!r:.150}")


sys.addaudithook(_watch)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The default tier does not import what only files of other tiers need: onnx, transformers,
    timm.
    """
    if "not integration" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if WHOLE_FILE.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_finish() -> None:
    """The collector need not look at what is loaded by now, again and again."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Once, for what fails while it is deleted; pytest itself then does so five times."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _quick_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of this process rehearse and draw nothing, and have a small generator.

    A file that needs one of the three says so: ``pytestmark = pytest.mark.full("generator")``, or
    ``"pictures"``, or ``"rehearsal"``. A file with tests of a slower tier that run now has the pictures and the published
    generator, since its runs go on in other processes.
    """
    import small_runs

    parts = {part for mark in request.node.iter_markers("full") for part in mark.args}
    tests = [test for test in request.session.items if test.path == request.path]
    slower = any(test.get_closest_marker(tier) for test in tests for tier in OTHER_TIERS)
    with ExitStack() as stack:
        if "rehearsal" not in parts:
            stack.enter_context(small_runs.no_rehearsal())
        if not (slower or "generator" in parts):
            stack.enter_context(small_runs.narrow_generators())
        if not (slower or "pictures" in parts):
            stack.enter_context(small_runs.no_pictures())
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of the tier for GPUs needs one, so where there is none it is left out."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of the default tier starts no process and opens no socket."""
    global _reached
    if any(item.get_closest_marker(tier) for tier in OTHER_TIERS):
        return (yield)
    started, _reached = time.process_time(), []
    try:
        result = yield
    finally:
        reached, _reached = _reached, None
    if reached:
        pytest.fail(
            f"expected neither a process nor a socket, or the mark integration; got {reached[0]}"
        )
    seconds = time.process_time() - started
    if seconds > SECONDS:
        message = (
            f"{item.name} took {seconds:.1f} s of CPU time; make it smaller, or mark it exhaustive"
        )
        warnings.warn(message, stacklevel=1)
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    from small_runs import Metered, clone

    out = tmp_path_factory.mktemp("whole") / "run"
    clone(out, Metered())
    return out


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run with a checkpoint and answers beyond it, and the images its teacher served; to be
    copied.
    """
    import small_runs

    out = tmp_path_factory.mktemp("cut_short") / "run"
    return out, small_runs.cut_short(out)


@pytest.fixture
def cut_short(master: tuple[Path, int], tmp_path: Path) -> tuple[Path, int]:
    """A copy of ``master`` of the test's own."""
    shutil.copytree(master[0], tmp_path / "run")
    return tmp_path / "run", master[1]
