"""What a run says of itself, by the teacher's own count and early enough; the threads that it takes and
keeps.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import parse_extract
from processes import summary
from small_runs import BUDGET, SMALL, Metered, Recording, clone, student
from torch import Tensor

from dfme.cli.main import main
from dfme.run.build import run_job
from dfme.run.job import PROJECT
from dfme.run.work import worthwhile_threads

pytestmark = pytest.mark.full("generator")

SCORED: dict[str, Any] = {"evaluation": {"dataset": "digits", "limit": 100}}


class OneAnswer(Metered):
    """Knows one class."""

    def __call__(self, images: Tensor) -> Tensor:
        self.served += len(images)
        return torch.eye(10)[torch.full((len(images),), 3)]


Heard = tuple[OneAnswer, list[tuple[int, str]]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Heard:
    """A teacher, and what the logger says, as there is no console, with the images served by
    then.
    """
    teacher, lines = OneAnswer(), list[tuple[int, str]]()
    caplog.set_level(logging.WARNING, "dfme")
    emit = lambda record: lines.append((teacher.served, record.getMessage()))  # noqa: E731
    monkeypatch.setattr(caplog.handler, "emit", emit)
    return teacher, lines


def test_paid_answers_are_counted_as_the_teacher_counts_them(
    tmp_path: Path,
) -> None:
    """By class, whatever they were for."""
    teacher = Recording()
    summary = clone(tmp_path / "run", teacher, **SCORED).summary
    answers = summary["answers"]
    counts = zip(answers["queries"], answers["teacher"], strict=True)
    by_class = torch.cat(teacher.answers).argmax(1).bincount(minlength=10)
    assert [sum(pair) for pair in counts] == by_class.tolist()
    assert sum(answers["queries"]) == summary["spent"] == BUDGET
    assert sum(answers["teacher"]) == sum(answers["student"]) == 100
    assert summary["baselines"]["constant_agreement"] == max(answers["teacher"]) / 100
    assert summary["baselines"]["constant_accuracy"] == pytest.approx(0.1, abs=0.03)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["answers"] == answers


def test_a_teacher_of_one_answer_is_told_before_anything_is_paid(
    tmp_path: Path, heard: Heard
) -> None:
    teacher, lines = heard
    summary = clone(tmp_path / "run", teacher, **SCORED).summary
    assert summary["agreement"] == summary["baselines"]["constant_agreement"] == 1.0
    (line,) = summary["warnings"]
    assert "class 3 to all 100 evaluation images" in line
    assert lines == [(100, f"warning: {line}")], "once, when only the evaluation had been asked"
    clone(tmp_path / "run", teacher, resume=True, **SCORED)
    assert lines[1:] == [(100 + BUDGET, f"warning: {line}")], "with a finished run's result, too"


def test_one_class_among_the_paid_is_told_while_most_of_the_budget_is_left(
    tmp_path: Path, heard: Heard
) -> None:
    teacher, lines = heard
    summary = clone(tmp_path / "run", teacher).summary
    assert lines[0][0] == 100 < BUDGET
    assert "class 3 to 100.0% of the 100 images" in lines[0][1]
    (line,) = summary["warnings"]
    assert "to all 20 held-back queries" in line


def test_a_student_that_learns_nothing_is_told_why_by_the_runs_own_record(tmp_path: Path) -> None:
    still: dict[str, Any] = {
        "student": {"lr": 1e-9, "replay_steps": 1, "replay_batch": 8},
        "evaluation": {"dataset": "digits", "limit": 50, "points": 20},
        "method_options": {"batch_size": 20, "student_steps": 1, "latent_size": 16},
    }
    result = clone(tmp_path / "still", Metered(), **still).summary
    assert "the loss did not fall (" in result["warnings"][-1]
    in_rounds = {**still, "student": {"lr": 1e-9, "steps": 20, "rounds": (0.5, 1.0)}}
    result = clone(tmp_path / "rounds", Metered(), **in_rounds).summary
    assert "images that it was trained on it agrees on" in result["warnings"][-1], (
        "losses there tell no fall"
    )
    assert "images unlike" not in " ".join(result["warnings"])


def test_the_command_line_shows_baselines_and_warnings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "stuck.py").write_text(
        "import torch\n\n\ndef answer(*_):\n    return lambda images: "
        "torch.eye(10)[torch.full((len(images),), 3)]\n"
    )
    words = (
        "--teacher stuck:answer --teacher.shape 1,8,8 --teacher.num-classes 10 "
        "--evaluation.dataset digits"
        " --method.name static --method.batch-size 20 --budget 100 --evaluation.limit 50 --out run"
    )
    assert main(words.split()) == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())  # whatever the width
    assert "constant answer accuracy 16.00%, agreement 100.00%; a guess: 10.00%" in out
    warned = "the teacher answers class 3 to all 50 evaluation images"
    assert f"warning {warned}" in out
    assert err.index(f"warning: {warned}") < err.index("100 / 100 queries")


RECIPES = {
    **{"digits": (3_000, 400), "digits_dfms": (3_000, 150), "digits_disguide": (2_500, 300)},
    **{
        "digits_dni": (10_000, None),
        "digits_dual_students": (2_500, 300),
        "digits_frugal": (1_500, 400),
    },
    **{
        "digits_knockoff": (5_000, None),
        "digits_maze": (20_000, 600),
        "digits_paper": (20_000, None),
    },
    **{"digits_procedural": (2_500, 400), "digits_static": (3_000, 400)},
}
"""Our recipes, and fewer queries than their own, and fewer student steps where those are many."""


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_our_recipes_is_warned_of_nothing(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget, steps = RECIPES[name]
    words = (
        f"--config {PROJECT}/configs/{name}.yaml --budget {budget} --out run --device cpu".split()
    )
    assert main(words + ([] if steps is None else ["--student.steps", str(steps)])) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["warnings"] == []
    assert "warning: the" not in capsys.readouterr().err


# Threads

RUN = [*SMALL, *"--student.replay-batch 8 --device cpu".split()]
LINE = "threads: 1 of 3, by timing a few steps of the student; OMP_NUM_THREADS=N takes N"


class Machine:
    """A clock on which a step of a batch takes ``milliseconds[threads]``, in turn where there are
    several.
    """

    def __init__(
        self, milliseconds: Mapping[int, float | tuple[float, ...]], cores: float = 1.0
    ) -> None:
        self.now, self._cores = 0.0, cores
        turns = {
            threads: times if isinstance(times, tuple) else (times,)
            for threads, times in milliseconds.items()
        }
        self._steps = {threads: cycle(times) for threads, times in turns.items()}

    def step(self, images: int) -> None:
        self.now += next(self._steps[torch.get_num_threads()]) / 1000 * images / 64

    def worthwhile(self, most: int) -> int:
        return worthwhile_threads(
            self.step, 64, most, lambda: self.now, lambda: self.now * self._cores
        )


@pytest.mark.parametrize(
    ("milliseconds", "most", "taken"),
    [
        ({1: 12, 2: 6, 4: 3, 8: 1.5}, 8, 8),
        ({1: 12, 2: 6, 4: 3, 6: 2}, 6, 6),
        ({1: 12, 2: 6, 4: 5.9}, 8, 2),
        ({1: 12, 2: 10, 4: 1}, 8, 1),  # a fifth more is not worth the second
        ({1: 8, 2: 4, 4: 2}, 4, 1),  # nor is whatever a short step gains
        ({1: 12, 2: (6, 300, 200)}, 2, 1),  # on a busy machine they wait for each other
        ({1: (99, 99, 40, 16, 50), 2: 13}, 2, 1),  # and one thread now and then for a core
        ({1: 16, 2: (20, 8, 8, 8, 8)}, 2, 2),  # a first step makes what the others find
        ({1: 8}, 1, 1),
    ],
)
def test_threads_are_doubled_for_as_long_as_that_pays(
    milliseconds: Any, most: int, taken: int
) -> None:
    before, machine = torch.get_num_threads(), Machine(milliseconds)
    assert machine.worthwhile(most) == taken
    assert torch.get_num_threads() == before
    assert machine.now < 0.4


def test_a_long_step_is_worth_all_and_is_not_taken_to_find_out() -> None:
    machine = Machine({1: 40_000})
    assert (machine.worthwhile(16), machine.now) == (16, 2 * 40 * 8 / 64)
    starved = Machine({1: 900, 2: 9_000}, cores=0.1)  # it waited for a core: no long step
    assert starved.worthwhile(2) == 1


@pytest.fixture
def unsaid(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Nobody says how many threads, of three; the function says how many are found to pay."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)

    def finds(threads: int) -> None:
        def found(step: Callable[[int], object], images: int, most: int) -> int:
            step(images)
            assert (images, most) == (8, 3)
            return threads

        monkeypatch.setattr("dfme.run.work.worthwhile_threads", found)

    finds(-1)  # no number that can be set
    yield finds
    torch.set_num_threads(before)


def test_a_run_says_and_records_its_threads_and_goes_on_with_them(
    unsaid: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unsaid(1)
    assert main([*RUN, "--out", "chosen"]) == 0
    assert LINE in capsys.readouterr().err
    assert summary(Path("chosen"))["threads"] == 1
    assert torch.get_num_threads() == 3
    job = parse_extract([*RUN, "--out", "killed", "--budget", "200"])
    assert not run_job(job, own_process=True, console=False, callback=lambda *_: True).finished
    unsaid(-1)
    assert main(["--resume", "--out", "killed"]) == 0
    assert "begun with 1 threads of torch, this process had 3" in capsys.readouterr().err
    assert [each["threads"] for each in summary(Path("killed"))["stretches"]] == [1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as if it had been there when torch was loaded
    torch.set_num_threads(1)
    assert main([*RUN, "--out", "said"]) == 0
    assert "threads:" not in capsys.readouterr().err
    assert student(Path("chosen")) == student(Path("said"))


def test_nothing_is_measured_where_somebody_says_how_many_or_another_program_or_service_runs(
    unsaid: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert clone(Path("python"), Metered(), budget=20, device="cpu").summary["threads"] == 3
    words = (
        "--budget 20 --teacher v2 --teacher.shape 1,8,8 --teacher.num-classes 10 --teacher.model m"
    ).split()
    job = parse_extract([*RUN, *words, "--teacher.url", "http://127.0.0.1:9", "--out", "service"])
    assert run_job(job, teacher=Metered(), own_process=True, console=False).summary["threads"] == 3
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "3")
            assert main([*RUN, "--budget", "20", "--out", name]) == 0
        assert summary(Path(name))["threads"] == 3
        assert "threads:" not in capsys.readouterr().err
