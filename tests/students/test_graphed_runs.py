"""A run with graphs is the run without, bit for bit. On a CPU, what was captured runs anew on its
buffers.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import parse_extract
from fake_graphs import FakeGraph, faked
from small_runs import SMALL as WORDS
from small_runs import Metered, break_down, clone, ctrl_c, student
from tiers import exhaustive
from torch import Tensor, nn

from dfme.errors import TeacherError
from dfme.graphs import GraphedForward
from dfme.run import build

SMALL = {"batch_size": 8, "latent_size": 16, "student_steps": 3}
BUDGET = 8 * 5 * 7 + 3
"""Seven steps of DFME and three images more."""


def small_net(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, num_classes)
    )


def dropping_net(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), small_net(num_classes))


@contextmanager
def with_graphs(graph: type[FakeGraph] = FakeGraph) -> Iterator[None]:
    """Runs of ``dfme.extract`` with --graphs, which as an option is the command line's."""
    plain = build.run_job

    def run_job(job: Any, **others: Any) -> Any:
        return plain(
            dataclasses.replace(job, config=dataclasses.replace(job.config, graphs=True)), **others
        )

    with pytest.MonkeyPatch.context() as patch, faked(graph):
        patch.setattr(build, "run_job", run_job)
        yield


def cloned(
    out: Path, teacher: Metered | None = None, resume: bool = False, **changes: Any
) -> bytes:
    quick = {} if "method" in changes else {"queries": {"programs": ("noise",)}}
    settings = {"method": "dfme", "method_options": SMALL} | quick | changes
    plain = {"lr": 0.01, "replay_steps": 1, "average": 0.9}
    settings["student"] = {"arch": small_net, **settings.get("student", plain)}
    clone(out, teacher or Metered(), BUDGET, resume, **settings)
    return student(out)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The student of a run without graphs, nothing else said."""
    return cloned(tmp_path_factory.mktemp("without") / "run")


CASES: dict[str, dict[str, Any]] = {
    "replay and average": {},
    "average of every second step": {"student": {"lr": 0.01, "average": 0.9, "average_every": 2}},
    "adam": {"student": {"lr": 0.001, "optimizer": "adam"}},
    "rounds": {
        "student": {
            "lr": 0.01,
            "steps": 90,
            "rounds": (0.4, 1.0),
            "average": 0.9,
            "replay_batch": 24,
        }
    },
    "weight decay of what is held": {
        "student": {"lr": 0.01, "replay_steps": 1, "decay_images": 500}
    },
}


TELLING = ["rounds"]


@pytest.mark.parametrize(
    "name", [*TELLING, *exhaustive(*(name for name in CASES if name not in TELLING))]
)
def test_a_run_with_graphs_is_the_run_without(tmp_path: Path, name: str, without: bytes) -> None:
    expected = cloned(tmp_path / "without", **CASES[name]) if CASES[name] else without
    with with_graphs():
        assert cloned(tmp_path / "with", **CASES[name]) == expected
        assert FakeGraph.captured >= 3
        assert FakeGraph.replayed > 25


def test_a_killed_run_with_graphs_is_resumed_to_the_student_of_one_without(
    tmp_path: Path, without: bytes
) -> None:
    with with_graphs():
        cloned(tmp_path / "with", Metered({14: ctrl_c}))
        with pytest.raises(TeacherError):
            cloned(tmp_path / "with", Metered({9: break_down}), resume=True)
        assert cloned(tmp_path / "with", resume=True) == without


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"method": "dual_students"},
            "the students' step goes on without, since there are several",
        ),
        (
            {"estimator": {"direction": "range"}},
            "the generator goes on without, since a hook watches",
        ),
    ],
)
def test_what_cannot_be_captured_goes_on_without_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    without = cloned(tmp_path / "without", **changes)
    with with_graphs():
        assert cloned(tmp_path / "with", **changes) == without
        assert FakeGraph.replayed > 10, "the rest is replayed"
    assert caplog.text.count(said) == 1


class Breaking(FakeGraph):
    """A capture that fails once it has drawn, computed and changed all that it could."""

    def record(self, run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        run()
        torch.rand(3)
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "the student's step goes on without, since it cannot be captured (RuntimeError: op"
    student = {"arch": dropping_net, "lr": 0.1, "replay_steps": 1, "average": 0.9}
    without = cloned(tmp_path / "without", student=student)
    with with_graphs(Breaking):
        assert cloned(tmp_path / "with", student=student) == without
    assert caplog.text.count(said) == 1


def test_a_local_teacher_is_replayed_too_and_all_nets_are_given_back(tmp_path: Path) -> None:
    digits = ["--teacher.checkpoint", "teachers/checkpoints/digits.safetensors", "--budget", "200"]
    teachers: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        made = build.build_teacher
        patch.setattr(
            build, "build_teacher", lambda *given: teachers.append(made(*given)) or teachers[-1]
        )
        build.run_job(
            parse_extract([*WORDS, *digits, "--out", str(tmp_path / "without")]), console=False
        )
        with with_graphs():
            job = parse_extract([*WORDS, *digits, "--out", str(tmp_path / "with")])
            assert isinstance(build.run_job(job, console=False).student, nn.Module)
            assert FakeGraph.captured >= 3, "the generator, the student's step, the teacher"
    assert student(tmp_path / "with") == student(tmp_path / "without")
    assert not isinstance(teachers[1].info.network.forward, GraphedForward)
