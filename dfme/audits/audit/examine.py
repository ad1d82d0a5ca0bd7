"""Use of finished copies: each beside its teacher's recorded answers, and adversarial transfer."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, answered_class, top_class
from dfme.audits.audit.fidelity import FIGURES, ExaminedCell, differences, fidelity, figures, pick
from dfme.audits.audit.parts import (
    CopyExamination,
    CopyFigures,
    Fidelity,
    Followed,
    NotRun,
    SeedsOfFigure,
    Transfer,
    Twin,
)
from dfme.audits.audit.prices import over_seeds
from dfme.audits.audit.transfer import ATTACKS, Logits, Surrogate, eps_of, gains, measure
from dfme.compute.device import (
    choose_device,
    derived_seed,
    ieee_fp32,
    on_accelerator,
    within_memory,
)
from dfme.compute.modules import DeferredChecks, Seldom
from dfme.config.sections import AnswersConfig
from dfme.config.settings import Job, TeacherConfig
from dfme.data.class_names import order_of
from dfme.errors import DfmeError, UserError
from dfme.files import make_folder, write_text
from dfme.nets import auto_net, is_own
from dfme.nets.sources import TRANSFORMERS
from dfme.oracle.ledger import Ledger, Totals, audit
from dfme.queries.programs import ProceduralImages
from dfme.report.run_files import read_summary
from dfme.run.build import build_oracle, build_teacher, facts_of, is_local, white_box
from dfme.run.checkpoint import explain_load_errors, load_checkpoint, require_paid
from dfme.run.components import fresh_nets
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import EvaluationSet, examination_of
from dfme.run.opening import take_up_threads
from dfme.run.scores import batches, evaluation_batch, evaluation_images, scores
from dfme.run.student_file import load_student_of_run, student_facts
from dfme.spec import ImageSpec, LabelMode

PROCEDURAL = 2_000  # images that are in no evaluation set
MAX_IMAGES = 500
"""That are perturbed for each eps and attack, and for each source too, unless a service is asked.
"""
NOT_ASKED = "a service, or a custom teacher, is asked only with --transfer true"
Tell = Callable[[str], None]


@dataclass
class _Copies:
    """The copies that are examined in full, scored on the images of an ``evaluation``, to which
    the teacher gives ``answers``.
    """

    evaluation: EvaluationSet
    answers: Tensor
    nets: list[Any] = field(default_factory=list)
    fidelity: list[Fidelity] = field(default_factory=list)


def examine(
    out: Path,
    cells: Sequence[ExaminedCell],
    job: Job,
    twin: Path | None,
    transfer: bool | None,
    tell: Tell,
    brief: bool = False,
) -> CopyExamination:
    """What the copies of these cells are good for.

    ``transfer``: whether the job's teacher is asked; None: if it is of a built-in kind on this
    machine. ``brief``: adversarial images are made with one size of perturbation. ``twin``: weights
    of a net trained on the owner's data.
    """
    device = choose_device(job.config.device)
    folder = out / "examined"
    earlier = _set_aside(
        folder, json.dumps([[cell.name for cell in cells], twin and twin.name, transfer])
    )
    rows = dict[tuple[str, str], list[CopyFigures]]()
    copies: _Copies | None = None
    examination = CopyExamination(asked=sum(totals.transfer_queries for totals in earlier))
    with within_memory(device), ieee_fp32():
        for cell, evaluation, answers in _recorded(cells, job, device):
            net = load_student_of_run(cell.directory / "student.safetensors").to(device)
            scores_NK = scores(net, evaluation.images).cpu()
            compared = answers, evaluation.mode, scores_NK
            rows.setdefault((cell.row, cell.mode), []).append(figures(*compared))
            if cell.pictured:
                picture = differences(evaluation, net, answers, scores_NK, cell.row)
                examination = replace(examination, differences=picture)
            if cell.examined_in_full:
                copies = copies or _Copies(evaluation, answers)
                copies.nets.append(net)
                copies.fidelity.append(
                    fidelity(cell, *compared, evaluation.labels, evaluation.class_names)
                )
        examination = replace(examination, fidelity_seeds=_over_seeds(rows))
        if copies is None:
            return _left_out(examination, "no copy was scored on an evaluation set")
        box = None if twin is None else _twin(twin, job, copies)
        if twin is not None and box is not None:
            examination = replace(examination, twin=_scored(box, copies, twin.name))
        examination = replace(examination, fidelity=copies.fidelity)
        if not (is_local(job) if transfer is None else transfer):
            return _left_out(examination, NOT_ASKED if transfer is None else "--transfer false")
        attacks = _ask(
            copies, _sources(copies, job, box, examination.twin), job, folder, tell, brief
        )
    return replace(
        examination,
        fidelity=copies.fidelity,
        transfer=attacks,
        asked=examination.asked + attacks.asked,
    )


def _left_out(examination: CopyExamination, why: str) -> CopyExamination:
    """Without what only the teacher's answers tell."""
    return replace(examination, not_run=[NotRun("other images, and adversarial transfer", why)])


def _over_seeds(rows: Mapping[tuple[str, str], Sequence[CopyFigures]]) -> list[SeedsOfFigure]:
    """Every figure of an attacker's copies, with its mean and deviation."""
    seeds = []
    for ((row, mode), copies), name in product(rows.items(), FIGURES):
        values = [getattr(copy, name) for copy in copies]
        seeds.append(SeedsOfFigure(row, mode, name, values, *over_seeds(values)))
    return seeds


def _set_aside(folder: Path, key: str) -> list[Totals]:
    """Make a folder for the examination with this key, or resume it; what was asked about
    others.
    """
    on_file = folder / "of.json"
    same = on_file.exists() and on_file.read_text(encoding="utf-8") == key
    if (folder / "ledger.jsonl").exists() and not same:
        folder.rename(RunDirectory.free_name(folder.with_name("examined-1")))
    make_folder(folder)
    write_text(on_file, key)
    return [audit(path) for path in sorted(folder.parent.glob("examined-*/ledger.jsonl"))]


def _recorded(
    cells: Sequence[ExaminedCell], job: Job, device: torch.device
) -> Iterator[tuple[ExaminedCell, EvaluationSet, Tensor]]:
    """The evaluation and the teacher's answers to it, on the CPU."""
    data = None
    for cell in cells if job.config.evaluation.dataset != "none" else ():
        directory = cell.directory
        summary = read_summary(directory / "summary.json") or {}
        (_, spec, classes) = student_facts(directory)
        mode = LabelMode.parse(summary["label_mode"])
        data = data or evaluation_images(
            job.config.evaluation, spec, classes, (summary.get("teacher") or {}).get("class_names")
        )
        evaluation = examination_of(data, spec, mode, device, None)
        state = load_checkpoint(directory / "checkpoint.pt")
        with explain_load_errors(directory / "checkpoint.pt"):
            evaluation.load_state_dict(state["examination"])
            require_paid(evaluation.paid, spec, classes, mode)
        assert isinstance(evaluation, EvaluationSet)
        assert evaluation.answers is not None
        evaluation.answers = evaluation.answers.cpu()
        evaluation.labels = None if evaluation.labels is None else evaluation.labels.cpu()
        yield cell, evaluation, evaluation.answers


def open_twin(
    path: Path, job: Job, spec: ImageSpec, num_classes: int, option: str = "--twin"
) -> Any:
    """White box of a weights file. UserError where it has no weights, or is for other images or
    classes.
    """
    teacher = TeacherConfig(kind="torch")
    try:
        box = white_box(replace(job, teacher=teacher, teacher_options={"checkpoint": str(path)}))
    except DfmeError as error:
        reason = str(error).removeprefix("--teacher.checkpoint").lstrip(": ")
        raise UserError(f"{option} {path}: expected the weights of a net: {reason}") from error
    if (box.spec.shape, box.num_classes) != (spec.shape, num_classes):
        raise UserError(
            f"{option} {path}: expected a net for images {spec.shape} and {num_classes} "
            f"classes, got {box.spec.shape} and {box.num_classes}"
        )
    return box


def _twin(path: Path, job: Job, copies: _Copies) -> Logits:
    """Return the net's logits, classes in the teacher's order; UserError for a net that does not
    fit.
    """
    spec = copies.nets[0].spec
    classes = copies.nets[0].num_classes
    box = open_twin(path, job, spec, classes)
    (low, high) = spec.bounds
    (least, most) = box.spec.bounds
    names = copies.evaluation.class_names
    order_K = order_of(classes, box.info.class_names or (), names).argsort().to(box.device)
    mean = job.config.evaluation.mean or (low / (low - high),)
    std = job.config.evaluation.std or (1 / (high - low),)
    mean_C11 = torch.tensor(mean, device=box.device).view(-1, 1, 1)
    std_C11 = torch.tensor(std, device=box.device).view(-1, 1, 1)

    def logits(x_BCHW: Tensor) -> Tensor:
        x_BCHW = (x_BCHW * std_C11 + mean_C11) * (most - least) + least
        scores_BK: Tensor = box.logits(x_BCHW)[:, order_K]
        return scores_BK

    return logits


def _scored(logits: Logits, copies: _Copies, file: str) -> Twin:
    """Agreement and accuracy of the twin in a file."""
    evaluation = copies.evaluation
    with torch.no_grad():
        parts = [logits(x_BCHW).argmax(1).cpu() for x_BCHW in batches(evaluation.images)]
    class_N = torch.cat(parts)
    same_N = class_N == top_class(copies.answers)
    accuracy = None
    if evaluation.labels is not None:
        accuracy = (class_N == evaluation.labels).double().mean().item()
    return Twin(same_N.double().mean().item(), accuracy, file)


def _tell_begun(tell: Tell, device: torch.device, ledger: Ledger) -> None:
    tell("; ".join(take_up_threads(ledger, device)) or "asking")


def _ask(
    copies: _Copies,
    sources: Sequence[Surrogate],
    job: Job,
    folder: Path,
    tell: Tell,
    brief: bool,
) -> Transfer:
    """Ask the job's teacher, one on this machine undefended; the copies' fidelity gets figures.

    By an oracle with a ledger and a journal of its own, so that what was stopped asks nothing
    twice.
    """
    # nothing here is charged to it
    job = replace(job, config=replace(job.config, answers=AnswersConfig(), budget=1))
    device = choose_device(job.config.device)
    deferred = DeferredChecks()
    procedural = _Followers(copies.nets)
    adversarial = _Followers(copies.nets)
    local = is_local(job)
    with ExitStack() as held:
        teacher = build_teacher(job, None, device)
        held.callback(teacher.info.close)
        held.callback(torch.set_num_threads, torch.get_num_threads())
        directory = held.enter_context(RunDirectory(folder))
        parts = teacher, directory, dict[str, Any](), deferred, facts_of(job, teacher)
        oracle = build_oracle(job, *parts, partial(_tell_begun, tell, device))
        held.enter_context(closing(oracle)).report_to(tell)
        seldom = Seldom(tell)
        spec = oracle.spec
        (headline,) = eps_of(spec, brief=True)
        sizes = eps_of(spec, brief)

        def classes(x_BCHW: Tensor) -> Tensor:
            class_B = answered_class(oracle(x_BCHW, "transfer"))
            seldom(f"asked {oracle.ledger.totals().transfer_queries:,} images")
            return class_B

        def ask(source: Surrogate, eps: float, x_BCHW: Tensor) -> Tensor:
            """The teacher's classes; images of strangers tell how far each copy follows it."""
            class_B = classes(x_BCHW)
            if source.kind != "clone" and source.logits is not None and eps == headline:
                adversarial.count(x_BCHW, class_B)
            return class_B

        draw = ProceduralImages(spec, ("leaves", "strokes")).draw
        rng = torch.Generator().manual_seed(derived_seed(job.config.seed, "procedural"))
        at_once = evaluation_batch(spec.shape)
        for part in torch.arange(PROCEDURAL).split(at_once) if local else ():
            x_BCHW = spec.quantise(draw(len(part), rng)).to(device)
            procedural.count(x_BCHW, classes(x_BCHW))
        x_NCHW, labels_N = _right(
            copies, MAX_IMAGES if local else MAX_IMAGES // len(sources), device
        )
        rows = measure(sources, x_NCHW, labels_N, spec, sizes, job.config.seed, ask)
        deferred.verify()
        asked = oracle.ledger.totals().transfer_queries
    copies.fidelity = [
        replace(
            copy, procedural=procedural.followed(place), adversarial=adversarial.followed(place)
        )
        for place, copy in enumerate(copies.fidelity)
    ]
    tell(f"examined: {asked:,} images asked, outside the budget")
    return Transfer(len(x_NCHW), sizes, headline, [*ATTACKS], asked, rows, gains(rows))


@dataclass
class _Followers:
    """How many ``images`` the teacher answered with a class, and to how many of them each copy
    gives the same.
    """

    nets: Sequence[Any]
    images: int = 0
    same: Counter[int] = field(default_factory=Counter)

    def count(self, x_BCHW: Tensor, class_B: Tensor) -> None:
        self.images += int((class_B != NO_ANSWER).sum())
        for place, net in enumerate(self.nets):
            self.same[place] += int((scores(net, x_BCHW).argmax(1) == class_B).sum())

    def followed(self, place: int) -> Followed | None:
        return Followed(self.images, self.same[place] / self.images) if self.images else None


def _sources(copies: _Copies, job: Job, box: Logits | None, twin: Twin | None) -> list[Surrogate]:
    """Strangers, the teacher where its gradients are here, and each copy."""
    student = copies.nets[0]
    seed = derived_seed(job.config.seed, "untrained")
    device = choose_device(job.config.device)
    arch = student.arch
    if is_own(arch) or arch == TRANSFORMERS:  # which no name alone builds
        arch = auto_net(student.spec.shape, on_accelerator(device))
    (untrained,) = fresh_nets(arch, student.spec, student.num_classes, seed, 1)
    sources = [
        Surrogate("random signs", "stranger", None),
        Surrogate("untrained", "stranger", untrained.to(device).eval()),
    ]
    if twin is not None:
        sources.append(Surrogate("twin", "stranger", box, twin.agreement))
    if job.teacher.kind == "torch":
        sources.append(Surrogate("teacher", "ceiling", white_box(job).logits, 1.0))
    for copy, net in zip(copies.fidelity, copies.nets, strict=True):
        sources.append(Surrogate(f"clone: {copy.row}, {copy.mode}", "clone", net, copy.agreement))
    return sources


def _right(copies: _Copies, most: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return up to so many evaluation images that the teacher gets right, evenly spread, and their
    labels.
    """
    evaluation = copies.evaluation
    top_N = top_class(copies.answers)
    labels_N = top_N if evaluation.labels is None else evaluation.labels
    right_M = (top_N == labels_N).nonzero()[:, 0]
    count = min(most, len(right_M))
    if not count:
        raise UserError(
            "--transfer: the teacher is wrong on every evaluation image; see run.py check"
        )
    picked_S = right_M[torch.arange(count) * len(right_M) // count]
    return pick(evaluation.images, picked_S), top_N[picked_S].to(device)
