"""What cannot work in a comparison is found once, by its parent; a service's cells ask what it counts."""

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from damage import refused
from processes import EVALUATION, MOST, STUDENT, command
from safetensors.torch import save_file
from tables import exhaustive_rows
from toys import LinearTeacher

from dfme.audits.compare import session
from dfme.audits.compare.engines import ENGINES, Task
from dfme.audits.compare.engines.pool import WorkerPool
from dfme.audits.compare.plan import Cell, ComparisonPlan, as_asked
from dfme.audits.compare.rehearsal import rehearse
from dfme.cli.compare import plan_of
from dfme.config.yaml_files import load_yaml
from dfme.nets import build_net
from dfme.oracle.ledger import audit
from dfme.report.terminal import StatusLine
from dfme.run.job import PROJECT, config_hash, differing_keys
from dfme.spec import ImageSpec

DIGITS = f"--teacher.checkpoint {PROJECT}/teachers/checkpoints/digits.safetensors"
OWN = """
import torch
from torch import nn

from dfme.spec import RequestPolicy

calls = []


class Local:
    shape, num_classes = (1, 8, 8), 10

    def __call__(self, images):
        calls.append(len(images))
        return images.flatten(1)[:, :10].softmax(1)


class Service(Local):
    def __init__(self, images_per_second: float = None, requests_per_second: float = None):
        rates = {"images_per_second": images_per_second, "requests_per_second": requests_per_second}
        self.wire = RequestPolicy(**rates)


class Silent(Local):
    wire = RequestPolicy(images_per_second=5)


class Broken(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(3, num_classes)

    def forward(self, x):
        return self.linear(x.flatten(1))
"""


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """What the teachers of one's own were asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "owned", raising=False)
    (tmp_path / "owned.py").write_text(OWN)
    return lambda: list(__import__("owned").calls)


def planned(words: str, **changes: object) -> ComparisonPlan:
    shared = (
        "--methods static,dfme --seeds 0,1 --budgets 2k --student-steps 4 --out out"
        " --label-modes probabilities --evaluation.dataset none"
    )
    plan = plan_of([*shared.split(), *words.split()])
    return replace(plan, config=SimpleNamespace(**vars(plan.config) | changes))  # installed or not


def rehearsed(words: str, ask: bool = True, **changes: object) -> tuple[int, str]:
    """How many cells ask a service at once, and what is said."""
    lines = list[str]()
    plan = planned(words, **changes)
    return rehearse(plan, plan.cells, lines.append, ask).sharing, "\n".join(lines)


def refusal(words: str, **changes: object) -> str:
    return str(refused("", rehearsed, words, **changes))


def test_what_fits_is_told_in_a_line_and_costs_one_image(calls: Callable[[], list[int]]) -> None:
    own = "teacher owned:Local: 1x8x8, 10 classes, probabilities; "
    assert rehearsed("--teacher owned:Local", ask=False) == (0, f"{own}not asked before the cells")
    assert calls() == []
    assert rehearsed("--teacher owned:Local") == (
        0,
        f"{own}it answers (an image each, charged to no run)",
    )
    assert calls() == [1]
    assert not Path("out").exists()


def test_a_shape_that_the_weights_leave_open_is_the_evaluation_s_or_asked_for_once() -> None:
    save_file(build_net("resnet18", (3, 32, 32), 10).state_dict(), "weights.safetensors")
    words = "--methods static --teacher.checkpoint weights.safetensors --teacher.arch resnet18"
    message = refusal(words)
    assert message.startswith("--teacher.shape: ")
    assert message.endswith("give --teacher.shape C,H,W")
    np.savez("own.npz", images=np.zeros((40, 3, 16, 16), np.uint8), labels=np.arange(40) % 10)
    lines = rehearsed(f"{words} --evaluation.dataset own.npz")[1]
    assert "probabilities, images 3x16x16, as those of the evaluation (--teacher.shape)" in lines


def test_each_problem_is_said_once_with_the_rows_that_have_it(
    calls: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("c.yaml").write_text(
        "methods: [static, tight, dfme]\nseeds: [0, 1, 2]\nbudgets: [200, 300]\nstudent_steps: "
        "4\nrows:\n  "
        "tight: {method: {name: dfme}}\nteacher: {kind: 'owned:Local'}\nevaluation: {dataset: "
        "none}\n"
    )
    plan = plan_of(["--config", "c.yaml", "--estimator.kind", "auto", "--out", "out"])
    error = refused("", rehearse, plan, plan.cells, print)
    first, second = str(error).split("; tight, dfme: ")
    assert first.startswith("tight, dfme: --budget: expected at least 352 images for the check")
    assert "200 are left" in first
    assert "300 are left" in second
    assert calls() == []
    message = refusal("--teacher owned:Local --student.arch owned:Broken")
    assert message.startswith(
        "static, dfme: the student Broken: expected floats (2, 10) for (2, 1, 8, 8)"
    )
    assert "; static" not in message
    assert not Path("out").exists()


def test_device_and_replay_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusal(f"{DIGITS} --device cuda:99")
    assert message.startswith("static, dfme: --device cuda:99: this machine has")
    assert (
        rehearsed(f"{DIGITS} --device cuda:99", engine="slurm")[0] == 0
    )  # whose machines are others
    monkeypatch.setattr("dfme.run.parts.free_memory", lambda device: 1)
    words = f"{DIGITS} --methods static --student.replay-steps 1 --device cpu"
    assert refusal(words).startswith("static: --student.replay-capacity: the full replay takes ")
    assert rehearsed(words, engine="ray")[0] == 0


# Services


def test_several_cells_at_a_service_without_a_rate_are_refused(
    calls: Callable[[], list[int]],
) -> None:
    for kind in (
        "Service",
        "Silent",
    ):  # the second states a rate in its code, which no option can divide
        message = refusal(f"--teacher owned:{kind} --jobs 3")
        assert message.startswith(
            f"--jobs: 3 cells would ask owned:{kind} at once, and nobody says how fast"
        )
        assert "; give --teacher.images-per-second or --teacher.requests-per-second" in message
        assert rehearsed(f"--teacher owned:{kind} --jobs 1")[0] == 1
    assert (
        rehearsed("--teacher owned:Service --jobs 3 --methods static --seeds 0")[0] == 1
    )  # one cell is one
    # any at once
    assert refusal("--teacher owned:Service --engine commands").startswith(
        "--jobs: 4 cells would ask"
    )
    assert calls() == []


@pytest.mark.parametrize(("jobs", "share"), [(9, 4), *exhaustive_rows([(1, 1), (3, 3)])])
def test_rates_are_divided_by_the_cells_at_once_and_decide_nothing(jobs: int, share: int) -> None:
    words = (
        "--teacher owned:Service --teacher.images-per-second 60 --teacher.requests-per-second 6"
        f" --jobs {jobs}"
    )
    sharing, lines = rehearsed(words)
    assert sharing == share
    line = f"{share} cells ask at once, each at 1/{share} of its "
    assert (f"{line}60 images per second and 6 requests per second" in lines) == (share > 1)
    job = planned(words).cells[0].job
    asked = as_asked(job, sharing, away=False)
    assert asked.teacher_options == {
        "images_per_second": 60 / share,
        "requests_per_second": 6 / share,
    }
    assert not asked.config.fsync
    assert config_hash(asked) == config_hash(job)
    assert differing_keys(asked, job) == differing_keys(job, asked) == []


def test_on_other_machines_a_service_s_records_wait_for_the_disk_and_no_others_do() -> None:
    job = planned("--teacher owned:Service --teacher.images-per-second 60").cells[0].job
    assert as_asked(job, 1, away=True).config.fsync
    assert not as_asked(job, 1, away=False).config.fsync
    assert not as_asked(job, 0, away=True).config.fsync
    asked = as_asked(replace(job, config=replace(job.config, fsync=True)), 1, away=False)
    assert asked.config.fsync
    assert differing_keys(asked, job) == []


@pytest.mark.integration
def test_two_cells_keep_together_to_what_the_server_allows_and_other_jobs_may_go_on(
    tmp_path: Path,
) -> None:
    serving_of = pytest.importorskip("dfme.teachers.owner.serve.server").Serving
    out, rate = tmp_path / "out", 40
    words = "compare --methods static --seeds 0,1 --budgets 120 --student-steps 4".split()
    served = LinearTeacher(ImageSpec((1, 4, 4)), num_classes=5, mode="logits")
    with serving_of(served, "m", max_batch=MOST, images_per_second=rate) as serving:
        teacher = ["--teacher", "v2", "--teacher.url", serving.url, "--teacher.model", "m"]
        words += [
            *teacher,
            *STUDENT,
            *EVALUATION,
            "--label-modes",
            "probabilities",
            "--out",
            str(out),
        ]
        ended = command([*words, "--jobs", "2"])
        assert ended.code == 2
        assert "2 cells would ask" in ended.line
        assert (serving.meter.images, out.exists()) == (0, False)
        ended = command([*words, "--jobs", "2", "--teacher.images-per-second", str(rate)])
        assert ended.code == 0, ended.err
        assert "2 cells ask at once, each at 1/2 of its 40 images per second" in ended.err
        assert (serving.meter.images, serving.meter.refused.total()) == (
            240,
            0,
        )  # by the server's own clock
        cells = sorted(out.glob("cells/*/config.yaml"))
        assert [load_yaml(path)["teacher"]["images_per_second"] for path in cells] == [20.0, 20.0]
        ledgers = [audit(path) for path in out.glob("cells/*/ledger.jsonl")]
        assert sum(each.spent + each.evaluation_queries for each in ledgers) == 240
        for path in out.glob("cells/*-seed0/summary.json"):
            path.unlink()
        ended = command(["compare", "--resume", "--out", str(out), "--jobs", "1"])
        assert ended.code == 0, ended.err
        assert "1 cells were finished before" in ended.err
        assert serving.meter.images == 240
    assert len(json.loads((out / "comparison.json").read_text())["cells"]) == 2


WORDS = "compare --methods static --seeds 0 --budgets 40,60 --student-steps 4".split()
TEACHER = [
    *"--teacher v2 --teacher.model m --teacher.requests-per-second 1000".split(),
    *(*STUDENT, *EVALUATION, "--label-modes", "label"),
]


def served() -> Any:
    serving_of = pytest.importorskip("dfme.teachers.owner.serve.server").Serving
    teacher = LinearTeacher(ImageSpec((1, 4, 4)), num_classes=5, mode="logits")
    return serving_of(teacher, "m", max_batch=MOST)


@pytest.mark.integration
def test_the_check_before_the_cells_asks_a_service_no_image(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served() as serving:
        ended = command([*WORDS, *TEACHER, "--teacher.url", serving.url, "--out", str(out)])
        assert ended.code == 0, ended.err
        ledgers = [audit(path) for path in out.glob("cells/*/ledger.jsonl")]
        assert (
            serving.meter.images
            == sum(each.spent + each.evaluation_queries for each in ledgers)
            == 100
        )
    assert "a service, not asked before the cells" in ended.err


class Taking(WorkerPool):
    """An engine that takes the cells, and runs none."""

    taken: ClassVar[list[Task]] = []

    def run(self, cells: Iterable[Cell], *_: object) -> None:
        self.taken.extend(map(self._task, cells))


@pytest.mark.integration
def test_what_a_service_was_paid_survives_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the disk before it is used where nodes come and go."""
    for name in ENGINES:
        monkeypatch.setitem(ENGINES, name, f"{__name__}:Taking")
    with served() as serving:
        for name in ("slurm", "ray", "local"):
            out = tmp_path / name
            plan = plan_of([*WORDS[1:], *TEACHER, "--teacher.url", serving.url, "--out", str(out)])
            named = replace(plan, config=SimpleNamespace(**vars(plan.config) | {"engine": name}))
            session.compare(named, StatusLine(io.StringIO()), lambda text: None)
            recipes = [
                load_yaml(task.words[task.words.index("--config") + 1]) for task in Taking.taken
            ]
            assert [recipe["fsync"] for recipe in recipes] == [name != "local"] * 2
            Taking.taken.clear()
