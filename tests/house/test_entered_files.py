"""How many files a plain run takes: those that it loads, and those of which it runs a function."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LOADED = 124
MAX_ENTERED = 93
"""Of dfme/ and teachers/; they only shrink."""

PROGRAM = """
import json, sys, threading
from inspect import CO_OPTIMIZED

ran = set()

def trace(frame, event, argument):
    ran.add(frame.f_code)

threading.settrace(trace)
sys.settrace(trace)
from dfme.cli.main import main

code = main(sys.argv[1:])
sys.settrace(None)
loaded = [name for name in sys.modules if name.partition(".")[0] == "dfme"]
# a thread may still run; the body of a module or of a class is no function
entered = [each.co_filename for each in list(ran) if each.co_flags & CO_OPTIMIZED]
print(json.dumps([code, loaded, entered]))
"""


@pytest.mark.integration
def test_a_run_loads_and_enters_few_files(tmp_path: Path) -> None:
    words = f"--budget 1k --student.steps 5 --student.arch cnn_small --out {tmp_path / 'run'}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    code, loaded, names = json.loads(done.stdout.splitlines()[-1])
    files = {Path(name).resolve() for name in names if name.endswith(".py")}
    rooms = (ROOT / "dfme", ROOT / "teachers")
    entered = {path for path in files if any(map(path.is_relative_to, rooms))}
    assert code == 0
    assert 60 < len(entered) <= MAX_ENTERED, sorted(map(str, entered))
    assert len(entered) < len(loaded) <= MAX_LOADED, sorted(loaded)
