"""A comparison as processes, with stand-ins that do what a cell is told to."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import parse_extract

from dfme.audits.compare import rehearsal, session
from dfme.audits.compare.engines import pool
from dfme.audits.compare.plan import ComparisonPlan
from dfme.audits.compare.session import Begun, CellProgress
from dfme.cli.compare import plan_of
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.errors import TeacherError, UserError
from dfme.report.terminal import StatusLine
from dfme.run.job import PACKAGE, config_hash
from dfme.spec import ImageSpec

pytestmark = pytest.mark.integration

STAND_IN = '''
"""Leaves what a run leaves; finishes, fails or waits to be interrupted, as its batch size says."""
import json, os, pathlib, shutil, sys, time

config, out, do, identity, budget = sys.argv[1:]
out = pathlib.Path(out)
do = int(do)
out.mkdir(parents=True, exist_ok=True)
(out / "starts").open("a").write("x")
shutil.copy(config, out / "config.yaml")
print("under way", flush=True)
if do == 5:
    sys.exit("dfme: no such teacher")
if do == 7 and not (out / "killed").exists():
    (out / "killed").touch()
    os.kill(os.getpid(), 9)
if do == 6:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        (out / "interrupted").open("a").write("x")
        sys.exit(130)
evaluations = [{"queries": queries, "agreement": 0.9, "accuracy": 0.9} for queries in (1000, 2000)]
(out / "metrics.jsonl").write_text("".join(json.dumps(each) + "\\n" for each in evaluations))
summary = {"budget": int(budget), "spent": int(budget), "accuracy": 0.9, "agreement": 0.9, "kl": 0.1}
summary |= {"teacher_accuracy": 1.0, "wall_seconds": 1.0, "student_steps": 40, "device": "cpu"}
summary |= {"version": "1", "torch": "2", "config_hash": identity, "teacher": {"num_classes": 10}}
(out / "summary.json").write_text(json.dumps(summary))
'''

RUNNING = (
    '(out / "metrics.jsonl").write_text(json.dumps({"queries": 1000}) + "\\n")\ntime.sleep(1)\n'
)
"""What a run does that is half done for a second."""

FINE, FAILS, WAITS, IS_KILLED = 4, 5, 6, 7
"""Batch sizes that tell the stand-in what to do."""


@pytest.fixture
def stand_in(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Cells are stand-ins; the words that each was started with."""
    (here / "stand_in.py").write_text(STAND_IN)
    started: list[Sequence[str]] = []

    def start(
        words: Sequence[str], log: Path, threads: int, gpu: str | None
    ) -> subprocess.Popen[bytes]:
        started.append(words)
        job = parse_extract([*words[1:]])
        told = [str(job.method_config.batch_size), config_hash(job), str(job.config.budget)]
        command = [sys.executable, "-S", "stand_in.py", words[2], words[4], *told]
        with log.open("ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)

    monkeypatch.setattr(pool, "start", start)
    return started


def plan(flags: str = "", **rows: int) -> ComparisonPlan:
    """Rows of the stand-in, each with what it is to do."""
    content: dict[str, Any] = {
        "rows": {row: {"method": {"name": "static", "batch_size": do}} for row, do in rows.items()},
        "seeds": [0, 1],
        "budgets": ["2k"],
        "student_steps": 40,
        "teacher": {"checkpoint": "teachers/checkpoints/digits.safetensors"},
        "student": {"arch": "cnn_small"},
        "evaluation": {"dataset": "digits"},
    }
    Path("c.yaml").write_text(dump_yaml(content))
    return plan_of(["--config", "c.yaml", "--out", "out", *flags.split()])


def compare(comparison: ComparisonPlan) -> tuple[int, list[str], str]:
    """The exit code, the lines told and the text shown at the end."""
    told, shown = io.StringIO(), list[str]()
    code = session.compare(comparison, StatusLine(told), shown.append)
    progress = re.compile(r"teacher |about |\d+ of \d+ cells done")
    lines = [line for line in told.getvalue().splitlines() if not progress.match(line)]
    assert all(f"{line.split()[1][:-1]}: begun" in lines for line in lines if line.startswith("["))
    return code, [line for line in lines if not line.endswith(": begun")], "\n".join(shown)


def report() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path("out/comparison.json").read_text())
    return content


def states() -> dict[str, str]:
    return {cell["run"].removeprefix("cells/"): cell["state"] for cell in report()["cells"]}


def test_a_failed_cell_is_reported_and_stops_nothing(stand_in: list[Sequence[str]]) -> None:
    code, told, shown = compare(plan(bad=FAILS, good=FINE))
    assert code == 1
    assert [*states().values()] == ["failed", "finished"] * 2
    assert [line.partition(" ")[0] for line in told] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    log = "out/cells/bad-probabilities-2k-seed0.log"
    assert told[0].endswith(f"FAILED: no such teacher ({log})")
    assert told[1].endswith("agreement 90.00%, accuracy 90.00%, 1.0 s")
    assert f"- failed: `bad-probabilities-2k-seed0`: no such teacher ({log})" in shown
    assert Path("out/comparison.md").read_text().count("no such teacher") == 2
    assert Path("out/comparison.png").is_file()
    assert load_yaml("out/cells/good-probabilities-2k-seed1.yaml")["seed"] == 1


@pytest.mark.parametrize(("seconds", "message"), [(1190.0, "19:50"), (1210.0, "20:10")])
def test_what_takes_more_than_twenty_minutes_says_what_shortens_it(
    stand_in: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, seconds: float, message: str
) -> None:
    monkeypatch.setattr(rehearsal.Rehearsal, "total", lambda *_: seconds)
    told = io.StringIO()
    assert session.compare(plan("--seeds 0", good=FINE), StatusLine(told), lambda text: None) == 0
    (line,) = (line for line in told.getvalue().splitlines() if line.startswith("about "))
    shorter = "; shorter with smaller --budgets, fewer --student-steps, --methods or --seeds"
    assert line == f"about {message} on this machine for 1 cells of 2,000 images" + shorter * (
        seconds > 1200
    )


def test_a_dry_run_says_images_and_time_and_begins_nothing(stand_in: list[Sequence[str]]) -> None:
    told = io.StringIO()
    assert session.compare(plan("--dry-run", bad=FAILS, good=FINE), StatusLine(told), print) == 0
    about = r"^about [\d:]+( s)? on this machine for 4 cells of 8,000 images$"
    assert re.search(about, told.getvalue(), re.M)
    assert "not asked before the cells" in told.getvalue()
    assert not stand_in
    assert not Path("out").exists()
    compare(plan(bad=FAILS, good=FINE))
    told = io.StringIO()
    session.compare(plan("--resume --dry-run", bad=FAILS, good=FINE), StatusLine(told), print)
    assert "for 2 cells of 4,000 images\n" in told.getvalue()
    assert len(stand_in) == 4


def test_a_cell_that_the_system_kills_is_gone_on_with(stand_in: list[Sequence[str]]) -> None:
    message = "killed by signal 9 (the system does that when memory runs out)"
    _, told, _ = compare(plan("--seeds 0 --retries 0", first=IS_KILLED))
    assert f"{message}; what was paid is kept; under way" in told[0]
    _, told, _ = compare(
        plan("--seeds 0 --resume --retries 1", first=IS_KILLED, then=IS_KILLED, bad=FAILS)
    )
    assert told[1] == f"then-probabilities-2k-seed0: {message}, and is gone on with (retry 1)"
    rows = [Path(words[4]).name.partition("-")[0] for words in stand_in]
    assert rows == "first first then then bad".split()
    assert sorted(states().values()) == ["failed", "finished", "finished"]


def test_a_cell_that_says_nothing_at_all_has_a_reason(stand_in: list[Sequence[str]]) -> None:
    """As on a full disk, which takes no log either; 0.5.0 gave an empty one."""
    Path("stand_in.py").write_text("raise SystemExit(3)")
    assert (
        "FAILED: exit code 3, and nothing said (out/cells/"
        in compare(plan("--seeds 0", a=FINE))[1][0]
    )


def test_finished_cells_are_kept_and_the_others_are_resumed(stand_in: list[Sequence[str]]) -> None:
    assert compare(plan(bad=FAILS, good=FINE))[0] == 1
    stand_in.clear()
    code, told, _ = compare(plan_of(["--resume", "--out", "out"]))
    assert (code, told[0]) == (1, "2 cells were finished before and are kept")
    assert [words[4][-9:] for words in stand_in] == ["-2k-seed0", "-2k-seed1"]
    assert all(words[5:7] == ("--resume", "auto") for words in stand_in)
    assert Path("out/cells/good-probabilities-2k-seed0/starts").read_text() == "x"
    stand_in.clear()
    assert compare(plan("--resume --seeds 0,1,2", good=FINE, more=FINE))[0] == 0
    assert len(stand_in) == 4, "seeds and rows are added to what there is"


def test_an_interruption_stops_the_cells_once_and_says_how_to_go_on(
    stand_in: list[Sequence[str]],
) -> None:
    comparison, handler = plan("--jobs 2", slow=WAITS, good=FINE), signal.getsignal(signal.SIGINT)
    threading.Thread(
        target=interrupt_after, args=["good-probabilities-2k-seed0"], daemon=True
    ).start()
    code, told, _ = compare(comparison)
    assert code == 130
    assert told[-1] == "  python run.py compare --resume --out out"
    folder = Path("out/cells/slow-probabilities-2k-seed0")
    assert (folder / "interrupted").read_text() == "x", "told once"
    assert states()["slow-probabilities-2k-seed0"] == "waiting"
    assert signal.getsignal(signal.SIGINT) is handler, "as it was"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--teacher.checkpoint wrong.safetensors",
            "its images are 1x8x8, but 3x12x12 was asked for",
        ),
        ("--teacher broken:Mine --teacher.shape 1,8,8 --teacher.num-classes 10", "no luck"),
    ],
)
def test_a_teacher_that_cannot_work_is_said_once_and_no_cell_is_started(
    stand_in: list[Sequence[str]], flags: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = PACKAGE / "teachers/checkpoints/shapes.safetensors"
    Path("wrong.safetensors").write_bytes(shapes.read_bytes())
    Path("broken.py").write_text(
        "class Mine:\n def __call__(self, x): raise RuntimeError('no luck')\n"
    )
    monkeypatch.syspath_prepend(".")
    with pytest.raises((UserError, TeacherError), match=message) as caught:
        compare(plan(flags, a=FINE, b=FINE))
    assert "\n" not in str(caught.value)
    assert stand_in == []
    assert not Path("out").exists(), "the same --out can be given again"


def test_the_teacher_of_a_finished_comparison_is_not_asked_again(
    stand_in: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison, asked = plan("--seeds 0", a=FINE), list[str]()
    monkeypatch.setattr(
        rehearsal, "Oracle", lambda *_, **__: lambda images, purpose: asked.append(purpose)
    )
    assert compare(comparison)[0] == 0
    assert asked == ["check"]
    assert compare(plan_of(["--resume", "--out", "out"]))[0] == 0
    assert asked == ["check"]


def test_a_terminal_shows_cells_images_and_time_from_the_first_cell_on(
    stand_in: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    script = STAND_IN.replace("evaluations =", RUNNING + "evaluations =")
    Path("stand_in.py").write_text(script)
    stream, shown = Terminal(), list[str]()
    assert (
        session.compare(plan("--seeds 0", a=FINE, b=FINE), StatusLine(stream), shown.append, 80)
        == 0
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    drawn = [line.rstrip() for line in re.split(r"[\r\n]", plain) if line.startswith("━")]
    assert all(len(line) <= 80 for line in drawn)
    message = [line.lstrip("━╸╺ ").split("  ") for line in drawn]
    assert message[0][:2] == ["0 of 2 cells done, 1 running", "0/4,000 images"]
    assert message[0][2].endswith(" left")
    assert any(
        parts[1] == "1,000/4,000 images" and parts[2].endswith(" left") for parts in message
    ), "half of the first"
    assert message[-1] == ["2 of 2 cells done, 0 running", "4,000/4,000 images"]
    assert not any("begun" in line for line in stream.getvalue().splitlines()), "the line says it"
    assert shown[0].startswith("teacher: digits.safetensors (embedded digits)\n")


@pytest.mark.usefixtures("here")
def test_time_left_goes_by_what_cells_have_done_and_one_that_is_slow_does_not_end_at_nothing() -> (
    None
):
    comparison = plan("--seeds 0", a=FINE, b=FINE)
    waiting = session.Session(comparison, {}, StatusLine(io.StringIO()))
    seconds: dict[tuple[str, int], float | None] = {
        (cell.row, cell.budget): 10.0 for cell in comparison.cells
    }
    waiting.rehearsal = rehearsal.Rehearsal(0, 0, ImageSpec((1, 8, 8)), 10, seconds, [])
    waiting._due = {cell.name: cell for cell in comparison.cells}
    assert waiting._seconds_left(0.0) == pytest.approx(20.0)
    first = comparison.cells[0].name
    waiting._begun[first] = Begun(0.0, 0.0)
    assert waiting._seconds_left(4.0) == pytest.approx(16.0), (
        "no record so far, and four seconds less"
    )
    assert waiting._seconds_left(30.0) == pytest.approx((5 + 30) / (5 + 9) * (1 + 10)), (
        "nor where it should have ended"
    )
    waiting._progress[first] = CellProgress(
        1_000, 0.5
    )  # after three times as long as the whole of it was to take
    assert waiting._seconds_left(30.0) == pytest.approx((5 + 30) / (5 + 5) * (5 + 10))


def interrupt_after(name: str) -> None:
    """Interrupt this process once the cell is finished, or never is."""
    report, deadline = Path("out/comparison.json"), time.monotonic() + 20
    while time.monotonic() < deadline and not (report.exists() and states()[name] == "finished"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
