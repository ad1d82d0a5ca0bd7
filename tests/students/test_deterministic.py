"""--deterministic: what is set while a run lasts, what is refused, and that nothing of it stays."""

import os
from pathlib import Path

import pytest
import torch

from dfme.cli.main import main
from dfme.compute.device import deterministic
from dfme.config.values import GONE
from dfme.errors import DfmeError, UserError

NAME = "CUBLAS_WORKSPACE_CONFIG"
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def settings() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.get_deterministic_debug_mode(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get(NAME),
    )


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


@pytest.mark.parametrize("value_before", [None, ":4096:8", ":16:8"])
def test_on_a_gpu_it_lasts_as_long_as_the_run(
    monkeypatch: pytest.MonkeyPatch, value_before: str | None
) -> None:
    if value_before:
        monkeypatch.setenv(NAME, value_before)
    before = settings()
    with deterministic(True, CUDA):
        assert settings() == (2, True, False, value_before or ":4096:8")
    assert settings() == before
    with pytest.raises(ZeroDivisionError), deterministic(True, CUDA):
        raise ZeroDivisionError
    assert settings() == before == (0, False, True, value_before)
    for idle in (deterministic(False, CUDA), deterministic(True, CPU)):
        with idle:
            assert settings() == before


@pytest.mark.parametrize(("value", "started"), [(":0:0", False), ("", False), (None, True)])
def test_what_comes_too_late_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str | None, started: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    if value is not None:
        monkeypatch.setenv(NAME, value)
    before = settings()
    late = pytest.raises(
        UserError, match=f"--deterministic: expected {NAME}=:4096:8 before CUDA starts, got"
    )
    with late, deterministic(True, CUDA):
        pytest.fail("nothing may start")
    assert settings() == before


def test_an_operation_that_does_not_repeat_ends_the_run_in_one_line() -> None:
    refused = "put_ with accumulate=False does not have a deterministic implementation"
    with pytest.raises(DfmeError) as caught, deterministic(True, CUDA):
        raise RuntimeError(f"{refused}, but you set 'torch.use...")
    assert str(caught.value) == f"--deterministic: {refused}; start a new run without it"
    with pytest.raises(RuntimeError, match="another"), deterministic(True, CUDA):
        raise RuntimeError("another")


def test_an_option_that_is_gone_says_what_to_write_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--teacher.checkpoint", "teachers/checkpoints/digits.safetensors", "--device", "cpu"]
    assert main(["extract", *words, "--graphs", "true", "--out", str(tmp_path / "run")]) == 2
    assert f"--graphs: {GONE['graphs']}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
