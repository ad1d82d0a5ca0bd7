"""Runs of several ranks, as torchrun starts them, on a teacher whose meter is a file; who stops or kills them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from processes import Bench

OF_A_RUN = ["--budget", "600", "--method.batch-size", "30", "--method.latent-size", "16", "--student.arch", "cnn_small"]
OF_A_RUN += ["--student.replay-steps", "1", "--student.replay-batch", "30", "--evaluation.points", "1"]

DOUBLE = '''
"""extract in float64: the networks, the teacher's too; at the end every rank keeps its own."""

import os
import sys

import torch

from dfme.cli.main import main
from dfme.run import components
from dfme.run.run import Run
from dfme.teachers.local import pytorch


def doubled(net):
    net.double().register_forward_pre_hook(lambda module, given: tuple(x.double() for x in given))
    return net


place, load, deliver = components._place, pytorch.load_torch, Run.deliver


def load_double(*given):
    teacher = load(*given)
    doubled(teacher.network)
    return teacher


def keep_nets(run, finished):
    nets = {"student": run.trainer.net.state_dict(), "generator": run.method.generator.state_dict()}
    torch.save(nets, f"{run.job.config.out}-{os.environ.get('RANK', 0)}.pt")
    return deliver(run, finished)


components._place = lambda *given: doubled(place(*given))
pytorch.load_torch, Run.deliver = load_double, keep_nets
raise SystemExit(main(sys.argv[1:]))
'''


class RankedBench(Bench):
    """A folder where runs are started by torchrun, as a person would start them, and are slow enough to be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment["METER_PAUSE"] = "0.06"

    def torchrun(self, ranks: int, words: Sequence[str], *more: str) -> subprocess.Popen[str]:
        """``torchrun --nproc-per-node ranks`` as a process; without ``-m`` words, ``python -m dfme``."""
        script = list(words) if words[0].endswith(".py") else ["-m", "dfme", *words]
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *more]
        command = [*start, *script] if ranks > 1 else [sys.executable, *script]
        options = {"cwd": self.folder, "env": self.environment, "text": True}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)  # type: ignore[call-overload,no-any-return]

    def whole(self, ranks: int, words: Sequence[str], *more: str) -> str:
        """The output of such a run, which ends well."""
        code, said = self.ended(self.torchrun(ranks, words, *more))
        assert code == 0, said
        return said

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            said, _ = process.communicate(timeout=200)
        finally:
            process.terminate()  # also its ranks, where they hang
        return process.returncode, said

    def metered(self, out: str, *more: str) -> list[str]:
        """A small run on the metering teacher."""
        return self.flags(out, *OF_A_RUN, "--evaluation.dataset", "none", *more)

    def requests(self, out: str) -> int:
        """Requests on the run's ledger."""
        return (self.folder / out / "ledger.jsonl").read_bytes().count(b'"charge"')

    def await_requests(self, process: subprocess.Popen[str], out: str, requests: int) -> None:
        """Wait until so many requests are on the ledger, and the run has a checkpoint."""
        while process.poll() is None:
            if (self.folder / out / "checkpoint.pt").exists() and self.requests(out) >= requests:
                return
            time.sleep(0.005)
        raise AssertionError(process.communicate()[0])

    def kill(self, process: subprocess.Popen[str], rank: int) -> None:
        """Kill one rank, by its own number."""
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # one that has ended
                if f"\0RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)

    def student(self, out: str) -> bytes:
        return (self.folder / out / "student.safetensors").read_bytes()
