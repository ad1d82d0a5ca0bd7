"""A replay on disk takes disk and hardly any memory: metered by the system, in a process of its
own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

FILL = """
import json, sys
from pathlib import Path

import torch

from dfme.students.replay import Replay
from dfme.spec import ImageSpec


def status(entry):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(entry)) * 1024


folder, items = Path(sys.argv[1]), int(sys.argv[2])
spec = ImageSpec((3, 32, 32), levels=256)
replay = Replay(items, spec, torch.Generator().manual_seed(0), folder=folder)
images, answers = torch.rand(250, 3, 32, 32), torch.rand(250, 10)
before = status("VmRSS:")
for _ in range(items // 250):
    replay.add(images, answers)
replay.state_dict()
for _ in range(50):
    replay.sample(256)
print(json.dumps({"held": len(replay), "memory": status("VmHWM:") - before}))
"""


def fill(folder: Path, items: int) -> tuple[dict[str, float], int]:
    """What the process says, and the bytes that the folder really takes on the disk."""
    command = [sys.executable, "-c", FILL, str(folder), str(items)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=PROJECT, env=environment, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    told: dict[str, float] = json.loads(done.stdout)
    return told, sum(path.stat().st_blocks * 512 for path in folder.iterdir())


@pytest.mark.integration
def test_images_take_their_disk_and_not_their_memory(tmp_path: Path) -> None:
    told, disk = fill(tmp_path / "replay", 40_000)
    assert told["held"] == 40_000
    assert disk == pytest.approx(40_000 * (3 * 32 * 32 + 4 * 10), rel=0.01)
    assert told["memory"] < 0.3 * disk
