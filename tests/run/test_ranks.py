"""One run on several ranks: what it computes, counts and survives is that of one process."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time

import pytest
import torch
from hostile import Hostile, every
from http_runs import meters_agree, words
from ranked import DOUBLE, OF_A_RUN, RankedBench

from dfme.oracle.ledger import audit

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> RankedBench:
    return RankedBench(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def stopped(bench: RankedBench) -> str:
    """A run of two ranks, stopped by SIGTERM to torchrun: kept, with no answer beyond its checkpoint."""
    process = bench.torchrun(2, bench.metered("stopped", "--checkpoint-seconds", "0.1"))
    bench.await_requests(process, "stopped", 6)
    process.send_signal(signal.SIGTERM)
    _, said = bench.ended(process)
    assert "stopped and kept after" in said
    return "stopped"


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Of two networks' weights and statistics, relative to their size."""
    apart, size = (
        torch.stack([x.double().square().sum() for x in each]).sum().sqrt()
        for each in ([a[name].double() - b[name].double() for name in a], a.values())
    )
    return float(apart / size)


def test_one_two_and_four_ranks_learn_the_same(bench: RankedBench) -> None:
    """In float64, after five iterations of batches that do not divide evenly: within 1e-9, ranks bitwise alike."""
    (bench.folder / "double.py").write_text(DOUBLE)
    run = ["double.py", "extract", *OF_A_RUN, "--budget", "1050", "--teacher.levels", "256"]
    run += ["--teacher.label-mode", "probabilities:4", "--evaluation.limit", "20", "--out"]
    nets = {}
    for ranks in (1, 2, 4):
        bench.whole(ranks, [*run, f"double{ranks}"])
        each = [torch.load(bench.folder / f"double{ranks}-{rank}.pt") for rank in range(ranks)]
        nets[ranks] = each[0]
        for name in ("student", "generator"):
            for other in each[1:]:
                assert all(torch.equal(other[name][key], each[0][name][key]) for key in other[name])
    for ranks in (2, 4):
        for name in ("student", "generator"):
            assert difference(nets[1][name], nets[ranks][name]) < 1e-9, (ranks, name)
    assert bench.summary("double4")["ranks"] == 4
    assert "ranks" not in bench.summary("double1")


COUNTING = '''
"""extract; at the very end every rank says how many threads of gloo it still has, any of which may abort its exit."""

import atexit
import sys
from pathlib import Path


@atexit.register
def say():
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    print("threads of gloo:", sum("gloo" in name for name in names), flush=True)


from dfme.cli.main import main

raise SystemExit(main(sys.argv[1:]))
'''


def test_ranks_end_without_threads_of_their_own(bench: RankedBench) -> None:
    (bench.folder / "counting.py").write_text(COUNTING)
    said = bench.whole(2, ["counting.py", *bench.metered("counted", "--budget", "90")])
    assert said.count("threads of gloo: 0") == 2, said


def test_killed_ranks_start_again_and_end_as_the_unkilled(bench: RankedBench) -> None:
    """By torchrun --max-restarts and --resume auto: the student bitwise, every image asked and paid for once."""
    bench.whole(2, bench.metered("whole"))
    run = bench.metered("killed", "--checkpoint-seconds", "0.3", "--resume", "auto")
    process = bench.torchrun(2, run, "--max-restarts", "3")
    rng = random.Random()
    strikes = [(requests, rng.randrange(2)) for requests in sorted(rng.sample(range(2, 18), 2))]
    for requests, rank in strikes:
        bench.await_requests(process, "killed", requests)
        bench.kill(process, rank)
    code, said = bench.ended(process)
    assert code == 0, (strikes, said)
    assert bench.student("killed") == bench.student("whole"), strikes
    summary, ledger = bench.summary("killed"), audit(bench.folder / "killed" / "ledger.jsonl")
    assert summary["spent"] == ledger.spent == 600
    assert bench.served("killed") == 600 + summary["lost"] == 600 + ledger.lost
    assert bench.served("whole") == bench.summary("whole")["spent"] == 600


def copied(bench: RankedBench, out: str, name: str) -> RankedBench:
    """A folder with a copy of a run and of its teacher's meter."""
    other = RankedBench(bench.folder / name)
    shutil.copytree(bench.folder / out, other.folder / out)
    shutil.copy(bench.folder / f"{out}.log", other.folder)
    assert 0 < other.served(out) < 600
    return other


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_stopped_run_goes_on_with_any_number_of_ranks(bench: RankedBench, stopped: str, ranks: int) -> None:
    other = copied(bench, stopped, f"with_{ranks}")
    other.whole(ranks, other.metered(stopped, "--resume"))
    summary = other.summary(stopped)
    assert (summary["spent"], summary["lost"], summary.get("ranks", 1)) == (600, 0, ranks)
    assert other.served(stopped) == 600


def test_a_killed_run_goes_on_with_as_many_ranks_only(bench: RankedBench, stopped: str) -> None:
    """Answers beyond the checkpoint are to questions that another number of ranks does not ask again."""
    other = copied(bench, stopped, "killed_later")
    before = other.requests(stopped)
    process = other.torchrun(2, other.metered(stopped, "--resume", "--checkpoint-seconds", "60"))
    other.await_requests(process, stopped, before + 3)
    other.kill(process, 0)
    assert other.ended(process)[0] == 1
    served = other.served(stopped)
    code, said = other.ended(other.torchrun(1, other.metered(stopped, "--resume")))
    assert code == 2, said
    (line,) = [line for line in said.splitlines() if line.startswith("dfme: ")]
    assert "Traceback" not in said
    assert "2 ranks of torchrun asked" in line
    assert "--nproc-per-node 2" in line
    assert other.served(stopped) == served


def test_two_ranks_are_one_client(bench: RankedBench) -> None:
    """Of a service that fails and limits its rate: its own count is the ledger's, and the rate is kept."""
    times: list[float] = []
    with Hostile(every(4, ["status:429/0", "failed", "status:503/1", "reset_served"])) as server:
        server.when_served = lambda number: times.append(time.monotonic())
        rate = ["--teacher.requests-per-second", "24", "--teacher.in-flight", "1"]
        bench.whole(2, ["extract", *words(server.url, "served", *rate, budget=200)])
        totals = meters_agree(server, bench.folder / "served")
        assert server.most_at_once == 1
    assert totals.spent == bench.summary("served")["spent"] == 200
    assert totals.refused
    assert totals.failed
    assert times[-1] - times[0] > 0.9 * (len(times) - 1) / 24


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["extract", "--compile"], "--compile: sums over several processes cannot be compiled"),
        (["extract", "--student.replay-store", "disk", "--student.replay-steps", "1"], "--student.replay-store: each"),
        (["evaluate", "--student", "x"], "torchrun starts the processes of one run; evaluate is none"),
        (["extract", "--teacher.checkpoint", "no.pt"], "no.pt"),
        (["extract", "--device", "cuda:0"], "--device: torchrun gives each"),
    ],
)
def test_what_cannot_be_shared_is_refused_once(bench: RankedBench, line: list[str], expected: str) -> None:
    code, said = bench.ended(bench.torchrun(2, line))
    assert code == 1  # torchrun's own, for a process that ended with 2
    assert [each for each in said.splitlines() if each.startswith("dfme: ")] == [
        each for each in said.splitlines() if expected in each
    ]
    assert said.count("dfme: ") == 1
    assert "exitcode  : 2" in said


def test_ranks_that_drift_apart_end_the_run(bench: RankedBench) -> None:
    drift = DOUBLE.replace("keep_nets(run, finished):", "never(run, finished):").replace(
        "pytorch.load_torch, Run.deliver = load_double, keep_nets",
        "step = Run.go\n"
        "def go(run, interrupt):\n"
        "    with torch.no_grad():\n"
        "        next(run.trainer.net.parameters()).mul_(1 + int(os.environ['RANK']) * 1e-6)\n"
        "    return step(run, interrupt)\n"
        "Run.go = go",
    )
    (bench.folder / "drift.py").write_text(drift)
    code, said = bench.ended(bench.torchrun(2, ["drift.py", *bench.metered("drift", "--budget", "60")]))
    assert code == 1
    assert said.count("expected the same weights and random streams on every rank") == 1
    assert not (bench.folder / "drift" / "summary.json").exists()
    assert json.loads((bench.folder / "drift" / "ledger.jsonl").read_text().splitlines()[-2])["spent"] == 60
