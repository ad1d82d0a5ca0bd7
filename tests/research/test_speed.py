"""The bench: the loop's time, with its log as a run has it, beside the bare work."""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dfme.errors import UserError
from dfme.report.metrics import read_metrics
from dfme.run import loop
from dfme.spec import ImageSpec
from research import speed
from research.options import BenchConfig
from research.published import PublishedLoop


def test_the_loop_is_timed_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOG_SECONDS", 0.0)
    config = BenchConfig(
        cases=("digits_paper",), batch_size=2, seconds=0.01, rounds=1, device="cpu"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    work, progress = (
        speed.Work(speed.CASES["digits_paper"], config, torch.device("cpu")),
        loop.Progress(),
    )
    with work.opened(progress) as (_, run_on):
        run_on(1)
        run_on(2)
        records = read_metrics(next(tmp_path.glob("*/metrics.jsonl")))
    assert [record["queries"] for record in records] == [
        work.queries,
        2 * work.queries,
        3 * work.queries,
    ]
    assert "difference_snr" in records[0]
    assert 0 < progress.logging < progress.seconds
    monkeypatch.setattr(speed, "time_in_turn", lambda *_: (0.5, 0.4, 0.8))
    monkeypatch.setattr(loop, "Progress", lambda: SimpleNamespace(logging=0.0123, seconds=1.0))
    heads, _, figures = speed.run_bench(config).splitlines()[-3:]
    cells = dict(
        zip(*([cell.strip() for cell in line.split("|")] for line in (heads, figures)), strict=True)
    )
    assert (cells["loop ms"], cells["bare / loop"], cells["log %"]) == ("500.0", "0.800", "1.23")
    assert (cells["case"], cells["queries/s"]) == ("digits_paper", f"{work.queries / 0.5:,.0f}")


def test_the_loop_is_timed_with_any_option_of_a_run() -> None:
    options = ("deterministic=true", "estimator.step=0.3", "teacher.precision=bf16")
    config = BenchConfig(batch_size=2, options=options)
    work = speed.Work(speed.CASES["digits_paper"], config, torch.device("cpu"))
    assert work.job.config.deterministic is True
    assert (work.job.estimator.step, work.network.precision) == (0.3, "bf16")
    with pytest.raises(UserError, match=r"--options: .*did you mean deterministic"):
        speed.Work(
            speed.CASES["digits_paper"],
            BenchConfig(options=("determinstic=true",)),
            torch.device("cpu"),
        )


def test_the_published_loop_is_timed_beside_ours() -> None:
    """It trains both nets, and leaves the process's arithmetic as it was."""
    loop_at = PublishedLoop(
        ImageSpec((1, 8, 8)), "cnn_small", "cnn_small", 10, 4, torch.device("cpu")
    )
    nets = (loop_at.student, loop_at.generator, loop_at.teacher)
    before = [[weight.clone() for weight in net.parameters()] for net in nets]
    loop_at.run(2)
    student, generator, teacher = (
        all(torch.equal(*pair) for pair in zip(was, net.parameters(), strict=True))
        for was, net in zip(before, nets, strict=True)
    )
    assert (student, generator, teacher) == (False, False, True)
    assert torch.backends.cudnn.deterministic is False
    config = BenchConfig(
        cases=("digits_paper",),
        against="published",
        batch_size=2,
        seconds=0.01,
        rounds=1,
        device="cpu",
    )
    assert "| published ms | queries/s | published / loop |" in speed.run_bench(config)
    with pytest.raises(
        UserError, match="no replay, digits has; choose --cases digits_paper, resnet"
    ):
        speed.run_bench(replace(config, cases=("digits",)))
