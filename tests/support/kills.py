"""When to kill a run's process, and what its records say without what kills change."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dfme.oracle.ledger import audit

KILLS = int(os.environ.get("DFME_KILLS", "3"))
OF_THE_SESSIONS = {"seconds", "queries_per_second", "requests", "refused", "lost"}
"""What a record says of how the run went, which kills do change."""

WRITE_UP = (
    "checkpoint.pt",
    "student.safetensors",
    "curve.png",
    "losses.png",
    "samples.png",
    "report.html",
)


@dataclass(frozen=True)
class Strike:
    """When to kill: ``delay`` seconds after the run directory first satisfies ``moment``."""

    moment: Callable[[Path, float], bool]
    delay: float


def at_once(run: Path, started: float) -> bool:
    return True


def after(requests: int) -> Callable[[Path, float], bool]:
    """Once so many requests are on the ledger, and at least one of them is of this session."""
    return lambda run, started: (
        written(run / "ledger.jsonl", started)
        and (run / "ledger.jsonl").read_bytes().count(b'"charge"') >= requests
    )


def saving(run: Path, started: float) -> bool:
    """In the middle of the save of a checkpoint."""
    return (run / "checkpoint.pt.tmp").exists()


def writing_up(name: str, budget: int) -> Callable[[Path, float], bool]:
    """Once a file of the end of a run is there, of this session."""
    return lambda run, started: (
        written(run / name, started) and audit(run / "ledger.jsonl").spent == budget
    )


def written(path: Path, started: float) -> bool:
    return path.exists() and path.stat().st_mtime > started


def plan(rng: random.Random, kills: int, budget: int, requests: int) -> list[Strike]:
    """Kills in the order in which a run meets them: at its start, on its way, at the end of its
    budget.
    """
    early, late = max(1, kills // 9), max(1, kills // 5)
    # Loading torch takes two seconds at least: later than this, a fast machine is done before it is
    # struck.
    strikes = [Strike(at_once, rng.uniform(0.0, 2.5)) for _ in range(early)]
    for target in sorted(rng.randrange(requests) for _ in range(kills - early - late)):
        moment = saving if rng.random() < 0.2 else after(target)
        strikes.append(Strike(moment, rng.choice([0.0, rng.uniform(0.0, 0.08)])))
    names = sorted((rng.choice(WRITE_UP) for _ in range(late)), key=WRITE_UP.index)
    return strikes + [Strike(writing_up(name, budget), rng.uniform(0.0, 0.1)) for name in names]


def strike(process: subprocess.Popen[str], run: Path, when: Strike, started: float) -> bool:
    """Kill the process at the moment; says whether it was still alive then, or else had ended
    well.
    """
    while process.poll() is None and not when.moment(run, started):
        time.sleep(0.001)
    time.sleep(when.delay)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode != 0


def scores(records: list[dict[str, float]]) -> list[dict[str, float]]:
    """Records without what only says how the run went."""
    return [
        {key: value for key, value in record.items() if key not in OF_THE_SESSIONS}
        for record in records
    ]


KILLED_AT_A_WRITE = """
import os
import sys

folder, number = os.path.realpath(sys.argv[1]), int(sys.argv[2])
seen = 0


def heard(event, arguments):
    global seen
    written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if not written and event not in ("os.rename", "os.remove", "os.mkdir"):
        return
    if isinstance(arguments[0], int) or not os.path.realpath(os.fsdecode(arguments[0])).startswith(folder):
        return
    seen += 1
    if seen == number:
        os.kill(os.getpid(), 9)


from dfme.cli.main import main

sys.addaudithook(heard)
code = main(sys.argv[3:])
print("writes", seen)
sys.exit(code)
"""
"""A program: a folder, a number, a command's words; it is killed before that many of its writes
there.
"""
