"""Copies of the embedded digits teacher, examined: what is asked, counted, kept, and never asked
twice.
"""

import base64
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from command_line import parse_extract
from matplotlib.image import imread
from torch import Tensor

from dfme.audits.audit import examine as module
from dfme.audits.audit import fidelity as differences
from dfme.audits.audit.examine import examine
from dfme.audits.audit.fidelity import ExaminedCell
from dfme.audits.audit.options import TWIN_EPOCHS
from dfme.audits.audit.parts import SeedsOfFigure
from dfme.audits.audit.transfer import ATTACKS
from dfme.compute import modules
from dfme.config.settings import EvaluationConfig, Job
from dfme.errors import RunError, UserError
from dfme.oracle.ledger import audit
from dfme.owner_side import owner_of
from dfme.run.build import build_teacher, run_job
from dfme.run.job import PACKAGE
from dfme.run.scores import evaluation_images
from dfme.run.student_file import load_student
from dfme.spec import RequestPolicy, Teacher

LIMIT, MODES = 40, ("probabilities", "label")
WORDS = (
    "--recipe digits_procedural --budget 200 --student.arch cnn_small --student.steps 40"
    f" --evaluation.limit {LIMIT} --evaluation.points 1 --device cpu --student.lr 0.02"
).split()


Cells = list[ExaminedCell]


def job_of(*words: str) -> Job:
    return parse_extract([*WORDS, *words])


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[ExaminedCell]:
    """A copy by scores and one by labels."""
    folder, examination = tmp_path_factory.mktemp("cells"), []
    with small_runs.no_pictures():
        for mode in MODES:
            run_job(
                job_of("--teacher.label-mode", mode, "--out", str(folder / mode)), console=False
            )
            examination.append(
                ExaminedCell(f"cell-{mode}", "procedural", mode, 0, folder / mode, mode == MODES[0])
            )
    return examination


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pgd20", "mifgsm"):
        monkeypatch.setitem(ATTACKS, name, ATTACKS[name]._replace(steps=2, step=0.5))
    monkeypatch.setattr(module, "PROCEDURAL", 100)


class Meter:
    """The job's teacher, counting what it served; ``at``: what it does before it answers so many-th
    calls.
    """

    def __init__(self, teacher: Teacher, at: dict[int, Callable[[], object]]) -> None:
        self._teacher, self._at, self.served, self.calls = teacher, at, 0, 0
        self.spec, self.num_classes, self.label_mode = (
            teacher.spec,
            teacher.num_classes,
            teacher.label_mode,
        )
        self.info = teacher.info

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        self._at.get(self.calls, int)()
        self.served += len(images)
        return self._teacher(images)


Metering = Callable[..., list[Meter]]


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> Metering:
    """Every teacher that is asked from now on counts."""

    def meter(at: dict[int, Callable[[], object]] | None = None, **attributes: Any) -> list[Meter]:
        examination: list[Meter] = []

        def build(job: Job, given: Any, device: torch.device) -> Any:
            examination.append(Meter(build_teacher(job, given, device), at or {}))
            for name, value in attributes.items():
                setattr(examination[-1], name, value)
            return examination[-1]

        monkeypatch.setattr(module, "build_teacher", build)
        return examination

    return meter


def quiet(line: str) -> None: ...


def test_what_is_asked_is_in_a_ledger_outside_the_budget_and_told(
    cells: Cells, metered: Metering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(modules, "LULL", -1.0)
    meters, outcome = metered(), list[str]()
    examination = examine(tmp_path, cells, job_of(), None, None, outcome.append)
    totals = audit(tmp_path / "examined" / "ledger.jsonl")
    right, sources = examination.transfer.images, 4  # random signs, untrained, teacher, copy
    assert (
        meters[0].served
        == totals.transfer_queries
        == examination.asked
        == examination.transfer.asked
    )
    assert totals.transfer_queries == 100 + right * 3 * (1 + 3 * (sources - 1))
    far = [int(line.split()[1].replace(",", "")) for line in outcome if line.startswith("asked ")]
    assert far == sorted(far)
    assert (far[0], far[-1], len(far)) == (100, examination.asked, 1 + 3 * (1 + 3 * (sources - 1)))
    assert (totals.spent, totals.evaluation_queries, totals.lost) == (0, 0, 0)
    assert totals.served == meters[0].served
    assert set(totals.spent_by_purpose) == {"generator", "student", "seed", "check"}
    assert LIMIT - 3 < right <= LIMIT


def test_the_figures_are_those_of_the_cells_own_files(
    cells: Cells, metered: Metering, tmp_path: Path
):
    metered()
    both = [replace(cell, examined_in_full=True) for cell in cells]
    examination = examine(tmp_path, both, job_of(), None, None, quiet)
    for cell, outcome in zip(both, examination.fidelity, strict=True):
        summary = json.loads((cell.directory / "summary.json").read_text())
        assert outcome.agreement == summary["agreement"]
        assert outcome.kl == (
            pytest.approx(summary["kl"]) if cell.mode == "probabilities" else None
        )
        soft = outcome.l1, outcome.kendall_tau, outcome.top3_equal, outcome.teacher_ece
        assert [figure is None for figure in soft] == [cell.mode == "label"] * 4
        assert sum(map(sum, outcome.table)) == LIMIT
    seeds = {(row.mode, row.figure): row for row in examination.fidelity_seeds}
    assert seeds["label", "agreement"].values == [examination.fidelity[1].agreement]
    unknown = SeedsOfFigure("procedural", "label", "kl", [None], mean=None, sd=None)
    assert seeds["label", "kl"] == unknown
    clones = {row.source for row in examination.transfer.rows if row.kind == "clone"}
    assert clones == {"clone: procedural, probabilities", "clone: procedural, label"}
    top = {row.eps: row.success for row in examination.transfer.rows if row.source == "teacher"}
    assert top[0.2] > 0.9  # white box
    first, second = (outcome.procedural for outcome in examination.fidelity)
    assert first.images == 100
    assert first.agreement > second.agreement / 2 > 0
    assert examination.fidelity[0].adversarial.images == examination.transfer.images * 2 * 3


@pytest.mark.parametrize("most", [2, 40])
def test_images_that_differ_are_the_evaluations_own_with_both_answers(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
):
    """The copy by labels differs often; pixels of the digits are 17 levels of grey."""
    monkeypatch.setattr(differences, "MAX_SHOWN", most)
    cell = replace(cells[1], examined_in_full=True, pictured=True)
    examination = examine(tmp_path, [cell], job_of(), None, False, quiet)
    outcome = examination.differences
    count = LIMIT - sum(row[k] for k, row in enumerate(examination.fidelity[0].table))
    assert (outcome.row, outcome.images, outcome.differ) == ("procedural", LIMIT, count)
    assert len(outcome.shown) == min(most, count) > 1
    student = load_student(cell.directory)
    low, high = student.spec.bounds
    data = evaluation_images(job_of().config.evaluation, student.spec, 10)
    grey_NHW = ((data.images[:, 0] - low) / (high - low)).numpy()
    shown = [
        imread(io.BytesIO(base64.b64decode(entry.image.partition(",")[2])))
        for entry in outcome.shown
    ]
    places = [int(abs(grey_NHW - image[..., 0]).max((1, 2)).argmin()) for image in shown]
    assert all(
        abs(grey_NHW[at] - of[..., 0]).max() < 0.003 for at, of in zip(places, shown, strict=True)
    )
    assert places == sorted({*places})
    answers = student(data.images[places]).argmax(1).tolist()
    assert [entry.clone for entry in outcome.shown] == [*map(str, answers)]
    assert all(entry.model != entry.clone for entry in outcome.shown)


def test_after_a_kill_nothing_answered_is_asked_again(
    cells: Cells, metered: Metering, tmp_path: Path
):
    """What a kill leaves are the files as they are while the teacher is at work: they are copied
    then.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    metered({13: lambda: shutil.copytree(whole, killed)})
    expected = examine(whole, cells, job_of(), None, None, quiet)
    answered = audit(killed / "examined" / "ledger.jsonl")
    meters = metered()
    examination = examine(killed, cells, job_of(), None, None, quiet)
    totals = audit(killed / "examined" / "ledger.jsonl")
    in_flight = totals.lost
    assert 0 < in_flight <= LIMIT
    assert meters[0].served == expected.asked - (answered.transfer_queries - in_flight)
    assert meters[0].calls == 1 + 3 * (1 + 3 * 3) - 12
    assert examination == expected
    assert totals.served == expected.asked + in_flight
    again = metered()
    assert examine(killed, cells, job_of(), None, None, quiet) == examination
    assert again[0].served == 0


def test_other_copies_are_examined_anew_beside_what_was_paid(
    cells: Cells, metered: Metering, tmp_path: Path
):
    first = examine(tmp_path, cells, job_of(), None, None, quiet)
    meters = metered()
    examination = examine(
        tmp_path, [replace(cells[0], name="another")], job_of(), None, None, quiet
    )
    totals = audit(tmp_path / "examined" / "ledger.jsonl")
    assert meters[0].served == totals.transfer_queries == examination.asked - first.asked > 0
    assert audit(tmp_path / "examined-1" / "ledger.jsonl").transfer_queries == first.asked


def test_a_teacher_on_this_machine_is_asked_behind_its_defences(cells: Cells, tmp_path: Path):
    """A quota of ten images would refuse the first batch."""
    defended = job_of("--teacher.defences", "quota:images=10+reverse_sigmoid")
    assert examine(tmp_path / "a", cells, defended, None, True, quiet) == (
        examine(tmp_path / "b", cells, job_of(), None, True, quiet)
    )


def test_a_service_is_asked_only_where_that_is_said(
    cells: Cells, metered: Metering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    meters = metered(wire=RequestPolicy())
    job = job_of()
    monkeypatch.setattr(module, "is_local", lambda job: False)
    silent = examine(tmp_path / "no", cells, job, None, None, quiet)
    assert (meters, silent.transfer, silent.asked) == ([], None, 0)
    assert not (tmp_path / "no/examined/ledger.jsonl").exists()
    assert silent.fidelity[0].agreement > 0
    assert silent.not_run[0].why == module.NOT_ASKED
    outcome = examine(tmp_path / "no", cells, job, None, False, quiet)
    assert outcome.not_run[0].why == "--transfer false"
    monkeypatch.setattr(module, "MAX_IMAGES", 20)
    examination = examine(tmp_path / "yes", cells, job, None, True, quiet)
    assert examination.transfer.images == 20 // 4
    assert meters[0].served == examination.asked <= 20 * 3 * 3
    assert examination.fidelity[0].procedural is None
    assert examination.fidelity[0].adversarial.images == 5 * 2 * 3


def test_another_teacher_on_record_is_refused(cells: Cells, tmp_path: Path):
    examine(tmp_path, cells, job_of(), None, True, quiet)
    with pytest.raises(
        UserError, match="this run was started with a teacher of label_mode probabilities"
    ):
        examine(tmp_path, cells, job_of("--teacher.label-mode", "label"), None, True, quiet)
    fewer = job_of("--evaluation.limit", "30")
    with pytest.raises(RunError, match="does not fit this run"):
        examine(tmp_path, cells, fewer, None, False, quiet)
    config = replace(fewer.config, evaluation=EvaluationConfig(dataset="none"))
    without = examine(tmp_path, cells, replace(fewer, config=config), None, None, quiet)
    assert (without.fidelity, without.transfer) == ((), None)
    assert without.not_run[0].why == "no copy was scored on an evaluation set"


@pytest.mark.integration
def test_a_twin_is_trained_alike_every_time_and_scored_by_its_own_logits(
    cells: Cells, tmp_path: Path
):
    job, copy = job_of(), cells[0].directory
    student = load_student(copy)
    one, two = (tmp_path / f"{name}.safetensors" for name in ("one", "two"))
    for path in (one, two):
        owner_of(job).train_twin("cnn_small", student.spec.shape, TWIN_EPOCHS, path, quiet)
    assert one.read_bytes() == two.read_bytes()
    one.write_bytes(b"kept")
    owner_of(job).train_twin("cnn_small", student.spec.shape, TWIN_EPOCHS, one, quiet)
    assert one.read_bytes() == b"kept"
    examination = examine(tmp_path, cells, job, two, False, quiet).twin
    data = evaluation_images(job.config.evaluation, student.spec, 10)
    from dfme.teachers.local.weights import read_weights

    state, card = read_weights(two)
    student.load_state_dict(state)  # of the same architecture
    top = student((data.images - card.mean[0]) / card.std[0]).argmax(1)
    assert data.labels is not None
    assert examination.file == "two.safetensors"
    assert examination.accuracy == (top == data.labels).double().mean().item() > 0.85
    with pytest.raises(UserError, match=r"--twin .*expected a net for images"):
        examine(
            tmp_path, cells, job, PACKAGE / "teachers/checkpoints/shapes.safetensors", False, quiet
        )
