"""A run of its own process takes the threads that pay, and keeps them; whoever says how many is
obeyed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import parse_extract
from small_runs import SMALL, Metered, clone, student

from dfme.cli.main import main
from dfme.run.build import run_job
from dfme.run.work import worthwhile_threads

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
            each: own if isinstance(own, tuple) else (own,) for each, own in milliseconds.items()
        }
        self._steps = {each: cycle(own) for each, own in turns.items()}

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
    assert machine.worthwhile(16) == 16
    assert machine.now == 2 * 40 * 8 / 64
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


def summary(out: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return content


def test_a_run_says_and_records_its_threads_and_goes_on_with_them(
    unsaid: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unsaid(1)
    assert main([*RUN, "--out", "chosen"]) == 0
    assert LINE in capsys.readouterr().err
    assert summary("chosen")["threads"] == 1
    assert torch.get_num_threads() == 3
    job = parse_extract([*RUN, "--out", "killed", "--budget", "200"])
    assert not run_job(job, own_process=True, console=False, callback=lambda *_: True).finished
    unsaid(-1)
    assert main(["--resume", "--out", "killed"]) == 0
    assert "begun with 1 threads of torch, this process had 3" in capsys.readouterr().err
    assert [each["threads"] for each in summary("killed")["stretches"]] == [1, 1]
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
        assert summary(name)["threads"] == 3
        assert "threads:" not in capsys.readouterr().err
