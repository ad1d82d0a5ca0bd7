"""The time of a run: foretold before the first query, fitted to, told on the way, and of no effect
on it.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from processes import Bench
from small_runs import JOB, SMALL, lasting, narrow_generators, student
from tables import exhaustive
from torch import Tensor
from toys import LinearTeacher, make_method, make_parts

from dfme.cli.main import main
from dfme.config.yaml_files import load_yaml
from dfme.nets import build_net
from dfme.queries.programs import PROGRAMS, ProceduralImages, sketching
from dfme.run import build
from dfme.run.checkpoint import load_checkpoint
from dfme.run.run import Run
from dfme.run.student_file import save_student
from dfme.run.work import TRUST, Rehearsed, UnitTime, Work
from dfme.spec import ImageSpec

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.full("generator", "rehearsal")]

EMBEDDED = {
    "digits": "--budget 2k --evaluation.dataset digits",
    "shapes": "--recipe frugal --budget 60 --evaluation.dataset shapes "
    "--teacher.checkpoint teachers/checkpoints/shapes.safetensors",
    "disguide": "--method.name disguide --budget 1k --evaluation.dataset digits",
    "28x28": (
        "--method.name procedural --budget 500 --student.arch lenet5 "
        "--teacher.checkpoint t.safetensors"
    ),
}
FACTOR = 1.5


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of every run, from its first line about the time on.

    The rehearsal and the run are timed in CPU seconds of this process, so other work on the machine
    does not count: wall seconds of one and the same run were seen to differ by a factor of three.
    """
    taken: list[float] = []
    go = Run.go
    monkeypatch.setattr(time, "perf_counter", time.process_time)

    def timed(self: Run, interrupt: Any) -> Any:
        began = time.process_time()
        result = go(self, interrupt)
        taken.append(time.process_time() - began)
        return result

    monkeypatch.setattr(Run, "go", timed)
    return taken


@pytest.fixture
def lenet(here: Path) -> None:
    """A teacher of 28 x 28 pixels in the file t.safetensors."""
    torch.manual_seed(0)
    net = build_net("lenet5", (1, 28, 28), 10)
    save_student(here / "t.safetensors", net, "lenet5", ImageSpec((1, 28, 28)), 10)


def foretold(text: str) -> float:
    """Seconds of the line before the first query."""
    (time,) = re.findall(
        r"^about ([\d:]+)(?: s)? on this machine.*: student .* steps of \d+ images", text, re.M
    )
    parts = [int(part) for part in time.split(":")]
    return sum(60**place * part for place, part in enumerate(reversed(parts)))


@pytest.mark.integration
@pytest.mark.usefixtures("lenet")
@pytest.mark.parametrize("name", EMBEDDED)
def test_the_time_is_foretold_before_the_first_query(
    name: str, seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = []
    for number in range(3):  # others may take the machine while one of them runs
        assert main([*EMBEDDED[name].split(), "--out", f"run{number}"]) == 0
        ratios.append(foretold(capsys.readouterr().err) / seconds[-1])
        if 1 / FACTOR <= ratios[-1] <= FACTOR:
            return
    pytest.fail(f"foretold, in units of the true time: {ratios}")


@pytest.mark.integration
def test_minutes_are_kept_and_written_down_as_steps(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--recipe frugal --budget 1k --evaluation.dataset digits --minutes".split()
    for number in range(3):
        assert main([*words, "0.1", "--out", f"run{number}"]) == 0
        if 6 / FACTOR <= seconds[-1] <= 6 * FACTOR:
            break
    else:
        pytest.fail(f"expected six seconds, took {seconds}")
    written = load_yaml(Path(f"run{number}/config.yaml"))
    assert written["minutes"] is None
    summary = json.loads(Path(f"run{number}/summary.json").read_text())
    assert written["student"]["steps"] == summary["student_steps"]
    assert main(["--resume", "--out", f"run{number}", "--minutes", "0.1"]) == 0
    assert "finished before" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.usefixtures("lenet")
def test_where_the_automatic_student_does_not_fit_a_smaller_one_is_trained(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    # steps of 256 images, so that most of the time is the student's
    words = (
        "--recipe frugal --teacher.checkpoint t.safetensors --budget 3k --student.replay-batch 256"
    ).split()
    least = {}
    for arch in ("cnn_small", "cnn_large"):
        assert main([*words, "--student.arch", arch, "--minutes", "0.001"]) == 2
        (chosen,) = re.findall(
            r"at least ([\d.]+) on this machine, for \d+ steps of", capsys.readouterr().err
        )
        least[arch] = float(chosen)
    assert main([*words, "--minutes", f"{1.5 * least['cnn_large']}", "--dry-run"]) == 0
    assert "cnn_large" in capsys.readouterr().out
    minutes = (least["cnn_small"] + least["cnn_large"]) / 2
    for number in range(3):
        assert main([*words, "--minutes", f"{minutes}", "--out", f"run{number}"]) == 0
        assert "student cnn_small, " in capsys.readouterr().err
        assert load_yaml(Path(f"run{number}/config.yaml"))["student"]["arch"] == "cnn_small"
        if 60 * minutes / FACTOR <= seconds[-1] <= 60 * minutes * FACTOR:
            return
    pytest.fail(f"expected {60 * minutes} seconds, took {seconds}")


@pytest.mark.parametrize("more", ["", "--dry-run", "--student.arch cnn_medium"])
def test_a_time_in_which_nothing_fits_is_refused(
    more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--minutes", "0.001", "--out", "run", *more.split()]) == 2
    faster = r", a faster student \(--student.arch cnn_small\)" * ("medium" in more)
    assert re.fullmatch(
        r"dfme: --minutes 0.001: expected at least [\d.]+ on this machine, for 10 steps of cnn_\w+, "
        rf"[\d:]+( s)? of it [\w' ]+(, \d+ ms each)?; give more{faster}(, other --queries.programs)?"
        r" or a smaller --budget; nothing was asked\n",
        capsys.readouterr().err,
    )
    assert not list(Path().iterdir())


def test_a_program_that_draws_slowly_is_named_and_seldom_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[int] = []

    def draw(count: int, spec: ImageSpec, rng: torch.Generator) -> Tensor:
        drawn.append(count)
        time.sleep(0.02 * count)
        return torch.rand(count, *spec.shape, generator=rng, device=rng.device)

    module = types.ModuleType("slow_program")
    monkeypatch.setattr(module, "draw", draw, raising=False)
    monkeypatch.setitem(sys.modules, "slow_program", module)
    monkeypatch.setitem(PROGRAMS, "text", "slow_program:draw")
    assert main("--recipe frugal --budget 12k --minutes 0.1 --out run".split()) == 2
    lines = capsys.readouterr().err
    (minutes,) = re.findall(r"expected at least ([\d.]+) on this machine", lines)
    words = r"([\d:]+) of it drawing images by text, (\d+) ms each; give more, other"
    ((of_it, each),) = re.findall(words, lines)
    assert sum(drawn) <= 31, "1, 2, 4, 8 and 16 images take more than the time for one program"
    assert 20 <= int(each) <= 40
    # a third of 12,000 images and of the three others that are drawn beside each one
    seconds = 12_000 / 3 * 4 * int(each) / 1000
    assert (
        seconds * 0.6 <= 60 * int(of_it.split(":")[0]) + int(of_it.split(":")[1]) <= seconds * 1.5
    )
    assert float(minutes) * 60 > 0.6 * seconds
    with sketching() as sketch:
        assert ProceduralImages(ImageSpec((1, 8, 8)), ("text", "text", "leaves")).draw(
            3_000, torch.Generator().manual_seed(0)
        ).shape == (3_000, 1, 8, 8)
    assert sketch.seconds["text"] == pytest.approx(2_000 * sketch.of_image["text"])
    assert sum(drawn) <= 62


def test_minutes_go_by_the_batch_that_the_students_will_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 256 images of 8x8 pixels in a batch; above 16 pixels a side it is 187 of the 12,000
    assert "for 50 steps of cnn_small" in refused_words(
        "--recipe frugal --budget 12k --minutes 0.001 --out run --dry-run".split(), capsys
    )


@pytest.mark.parametrize(
    "words",
    [
        "--method.name dfme --method.learn-from all --student.replay-steps 1",
        "--recipe frugal --student.steps 12 --student.arch cnn_small --method.batch-size 20",
        *exhaustive("--method.name disguide --student.count 2"),
        *exhaustive("--method.name maze --method.partial-data procedural --method.seed-images 20"),
        "--method.name knockoff --method.pool digits",
    ],
)
def test_a_rehearsal_changes_nothing(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = " ".join(SMALL)
    if "knockoff" in words:
        small = small.replace("--method.latent-size 16", "")
    flags = [*small.split(), *words.split(), "--budget", "200"]
    rehearsed = []
    rehearse = build.rehearse
    monkeypatch.setattr(
        build, "rehearse", lambda *parts, **how: rehearsed.append(rehearse(*parts, **how))
    )
    with narrow_generators():
        assert main([*flags, "--out", "without"]) == 0
        assert rehearsed[0] is not None
        assert rehearsed[0].image > 0 < rehearsed[0].fresh
        monkeypatch.setattr(build, "rehearse", rehearse)
        assert main([*flags, "--out", "with"]) == 0
    assert lasting(Path("without")) == lasting(Path("with"))
    assert student(Path("without")) == student(Path("with"))


def test_a_pace_is_foretold_and_then_measured() -> None:
    pace = UnitTime(0.5)
    assert pace.mean == 0.5
    pace.add(TRUST, 1)  # as much as was foretold, four times as slow
    assert pace.mean == pytest.approx(2 * TRUST / (TRUST / 0.5 + 1))
    for _ in range(1_000):
        pace.add(3.0, 1)
    assert pace.mean == pytest.approx(3.0, rel=0.01)
    assert UnitTime(None).mean is None


def test_time_left_is_of_the_work_that_is_left() -> None:
    """Rounds of 40 and 80 steps of 256 images at a quarter and at the whole of 320 images."""
    parts = make_parts(LinearTeacher(ImageSpec((1, 8, 8))), 320, steps=120, rounds=(0.25, 1.0))
    method = make_method("static", parts)
    rehearsed = Rehearsed(image=0.5, learnt=1 / 16, fresh=9.0, replayed=2.0, score=0.0, answer=None)
    work = Work(JOB, method, rehearsed)
    assert work.left == pytest.approx(320 * 0.5 + 120 * 2.0)
    assert work.standing(0.0).left is None, "the teacher's own time is not known before it answers"
    for _ in range(5):
        method.step()
    assert work.left == pytest.approx(240 * 0.5 + 120 * 2.0)
    parts.students.train_pending(15)
    assert work.left == pytest.approx(240 * 0.5 + 105 * 2.0)
    assert work.standing(10.0).where == "round 1 of 2, step 15 of 40"
    assert work.standing(10.0).queries == 80


@pytest.mark.parametrize(("rounds", "left"), [((), 0), ((1.0,), 40)])
def test_steps_on_a_lone_batch_are_told_as_parts_of_all(
    rounds: tuple[float, ...], left: int
) -> None:
    """A budget of one batch: while its 40 steps are taken, nothing is left to be paid for."""
    parts = make_parts(LinearTeacher(ImageSpec((1, 8, 8))), 8, steps=40, rounds=rounds)
    trainer = parts.students
    work = Work(JOB, make_method("static", parts))
    lines: list[str] = []
    step = trainer._step

    def watched(images: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        lines.append(work.standing(1.0).where)
        return step(images, answers)

    trainer._step = watched  # type: ignore[method-assign]
    images = torch.rand(8, 1, 8, 8)
    trainer.learn(images, parts.oracle(images, "student"))
    assert trainer.steps_left == left
    trainer.train_pending(40)
    # the batch is held once its first step is taken
    assert lines[1:] == [f"step {number} of 40" for number in range(1, 40)]


@pytest.mark.integration
def test_killed_within_a_round_a_run_loses_no_more_than_the_pace_of_checkpoints(
    tmp_path: Path,
) -> None:
    flags = (
        "--method.name static --method.batch-size 20 --budget 200 --student.arch cnn_small "
        "--evaluation.dataset none --student.steps 1000 --student.rounds 0.9,1 "
        "--checkpoint-seconds 0.2"
    )
    whole, killed = Bench(tmp_path / "whole"), Bench(tmp_path / "killed")
    whole.here(whole.flags("run", *flags.split()))
    process = killed.start(killed.flags("run", *flags.split()))
    checkpoint = killed.folder / "run" / "checkpoint.pt"
    saved = set[float]()
    while len(saved) < 3 and process.poll() is None:  # two checkpoints within the first round
        time.sleep(0.02)
        last = json.loads(_last(killed.folder / "run/metrics.jsonl"))
        with contextlib.suppress(FileNotFoundError):  # while it is replaced
            saved |= {checkpoint.stat().st_mtime} if last["student_steps"] > 20 else set()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert time.time() - max(saved) < 2.0  # at the pace of a busy machine
    assert 0 < load_checkpoint(checkpoint)["trainer"]["steps"] < 470, (
        "it was killed within the first round"
    )
    killed.here(["--resume", "--out", "run"])
    assert killed.student("run") == whole.student("run")
    assert lasting(killed.folder / "run") == lasting(whole.folder / "run")


def _last(metrics: Path) -> str:
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return lines[-1] if lines else '{"student_steps": 0}'
