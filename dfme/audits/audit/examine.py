"""Use of finished copies: each beside its teacher's recorded answers, and adversarial transfer."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import product
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, answered_class, top_class
from dfme.audits.audit.differences import differences
from dfme.audits.audit.fidelity import FIGURES, examined, figures
from dfme.audits.audit.findings import over_seeds
from dfme.audits.audit.model import Entry
from dfme.audits.audit.transfer import ATTACKS, Logits, Surrogate, eps_of, gains, measure
from dfme.compute.deferred import DeferredChecks
from dfme.compute.device import choose_device, on_accelerator, within_memory
from dfme.compute.progress import Seldom
from dfme.config.answer_settings import AnswersConfig
from dfme.config.settings import Job, TeacherConfig
from dfme.data import ImageSet
from dfme.data.class_names import order_of
from dfme.errors import DfmeError, UserError
from dfme.files import make_folder, write_text
from dfme.nets import auto_net, is_own
from dfme.oracle.ledger import Ledger, Totals, audit
from dfme.precision import ieee_fp32
from dfme.queries.programs import ProceduralImages
from dfme.randomness import derived_seed
from dfme.report.summary_file import read_summary
from dfme.run.build import build_oracle, build_teacher, facts_of, is_local, white_box
from dfme.run.checkpoint import explain_load_errors, load_checkpoint, require_paid
from dfme.run.components import fresh_nets
from dfme.run.directory import RunDirectory
from dfme.run.evaluation import EvaluationSet, examination_of
from dfme.run.evaluation_images import evaluation_images
from dfme.run.opening import take_up_threads
from dfme.run.scores import batches, evaluation_batch, scores
from dfme.run.student_file import load_student_of_run, student_facts
from dfme.spec import ImageSpec, LabelMode

PROCEDURAL = 2_000  # images that are in no evaluation set
MAX_IMAGES = 500
"""That are perturbed for each eps and attack, and for each source too, unless a service is asked.
"""
NOT_ASKED = "a service, or a teacher of one's own, is asked only with --transfer true"
Tell = Callable[[str], None]


class ExaminedCell(NamedTuple):
    """A finished run in ``directory``; runs that are not examined in full give only figures over
    seeds.

    ``pictured``: images on which this copy and the teacher differ are shown.
    """

    name: str
    row: str
    mode: str
    seed: int
    directory: Path
    examined_in_full: bool
    pictured: bool = False


def examine(
    out: Path,
    cells: Sequence[ExaminedCell],
    job: Job,
    twin: Path | None,
    transfer: bool | None,
    tell: Tell,
    brief: bool = False,
) -> Entry:
    """Return ``fidelity``, ``fidelity_seeds``, ``differences`` and ``transfer`` for ``audit.json``.

    ``transfer``: whether the job's teacher is asked; None: if it is of a built-in kind on this
    machine. ``brief``: adversarial images are made with one size of perturbation. ``twin``: weights
    of a net trained on the owner's data. ``asked``: images that were, in all. ``not_run``: what was
    not, and why.
    """
    device = choose_device(job.config.device)
    folder = out / "examined"
    why = ""
    earlier = _set_aside(
        folder, json.dumps([[cell.name for cell in cells], twin and twin.name, transfer])
    )
    found: Entry = {
        "fidelity": [],
        "asked": 0,
        "differences": None,
        "transfer": None,
        "twin": None,
    }
    rows = dict[tuple[str, str], list[Entry]]()
    nets = list[Any]()
    first = None
    box = None
    with within_memory(device), ieee_fp32():
        for cell, on, answers in _recorded(cells, job, device):
            net = load_student_of_run(cell.directory / "student.safetensors").to(device)
            seen = answers, on.mode, scores(net, on.images).cpu()
            rows.setdefault((cell.row, cell.mode), []).append(figures(*seen))
            if cell.pictured:
                found["differences"] = differences(on, net, answers, seen[-1], cell.row)
            if cell.examined_in_full:
                first = first or on
                nets = [*nets, net]
                told = dict(zip(("cell", "row", "mode", "seed"), cell[:4], strict=True))
                told |= examined(*seen, on.labels, on.class_names)
                found["fidelity"].append(told | dict.fromkeys(("procedural", "adversarial")))
        if first is None or first.answers is None:
            why = "no copy was scored on an evaluation set"
        elif twin is not None:
            box = _twin(twin, job, first, nets[0])
            beside = (top_class(first.answers), first.labels)
            with torch.no_grad():
                class_N = torch.cat(
                    [box(x_BCHW).argmax(1).cpu() for x_BCHW in batches(first.images)]
                )
            shares = [
                None if of is None else (class_N == of).double().mean().item() for of in beside
            ]
            found["twin"] = {"agreement": shares[0], "accuracy": shares[1], "file": twin.name}
        if first is not None and (is_local(job) if transfer is None else transfer):
            _ask(found, nets, first, job, box, folder, tell, brief)
        elif first is not None:
            why = NOT_ASKED if transfer is None else "--transfer false"
    found["asked"] += sum(each.transfer_queries for each in earlier)
    found["not_run"] = (
        [{"what": "other images, and adversarial transfer", "why": why}] if why else []
    )
    found["fidelity_seeds"] = _over_seeds(rows)
    for name, content in (
        ("fidelity", {**found, "transfer": None}),
        ("transfer", found["transfer"]),
    ):
        write_text(folder / f"{name}.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    return found


def _over_seeds(rows: Mapping[tuple[str, str], Sequence[Entry]]) -> list[Entry]:
    """Every figure of an attacker's copies, with its mean and deviation."""
    found = []
    for ((row, mode), every), name in product(rows.items(), FIGURES):
        values = [each[name] for each in every]
        told = {"row": row, "mode": mode, "figure": name, "values": values}
        found.append(told | over_seeds(values))
    return found


def _set_aside(folder: Path, of: str) -> list[Totals]:
    """Make a folder for an examination ``of`` these copies, or go on with it; what was asked about
    others.
    """
    known = folder / "of.json"
    same = known.exists() and known.read_text(encoding="utf-8") == of
    if (folder / "ledger.jsonl").exists() and not same:
        folder.rename(RunDirectory.free_name(folder.with_name("examined-1")))
    make_folder(folder)
    write_text(known, of)
    return [audit(path) for path in sorted(folder.parent.glob("examined-*/ledger.jsonl"))]


def _recorded(
    cells: Sequence[ExaminedCell], job: Job, device: torch.device
) -> Iterator[tuple[Any, Any, Tensor]]:
    """The evaluation and the teacher's answers to it, on the CPU."""
    data = None
    for cell in cells if job.config.evaluation.dataset != "none" else ():
        run = cell.directory
        summary = read_summary(run / "summary.json") or {}
        (_, spec, classes) = student_facts(cell.directory)
        mode = LabelMode.parse(summary["label_mode"])
        names = (summary.get("teacher") or {}).get("class_names")
        data = data or evaluation_images(job.config.evaluation, spec, classes, names)
        on = examination_of(data, spec, mode, device, None)
        state = load_checkpoint(run / "checkpoint.pt")
        with explain_load_errors(run / "checkpoint.pt"):
            on.load_state_dict(state["examination"])
            require_paid(on.paid, spec, classes, mode)
        # one condition
        assert isinstance(on, EvaluationSet) and on.answers is not None  # noqa: PT018
        on.answers = on.answers.cpu()
        on.labels = None if on.labels is None else on.labels.cpu()
        yield cell, on, on.answers


def open_twin(
    path: Path, job: Job, spec: ImageSpec, num_classes: int, option: str = "--twin"
) -> Any:
    """White box of a weights file. UserError where it has no weights, or is for other images or
    classes.
    """
    own = replace(
        job, teacher=TeacherConfig(kind="torch"), teacher_options={"checkpoint": str(path)}
    )
    try:
        box = white_box(own)
    except DfmeError as error:
        reason = str(error).removeprefix("--teacher.checkpoint").lstrip(": ")
        raise UserError(f"{option} {path}: expected the weights of a net: {reason}") from error
    if (box.spec.shape, box.num_classes) != (spec.shape, num_classes):
        expected = f"expected a net for images {spec.shape} and {num_classes} classes"
        raise UserError(f"{option} {path}: {expected}, got {box.spec.shape} and {box.num_classes}")
    return box


def _twin(path: Path, job: Job, on: EvaluationSet, copy: Any) -> Logits:
    """Return the net's logits, classes in the teacher's order; UserError for a net that does not
    fit.
    """
    spec = copy.spec
    classes = copy.num_classes
    box = open_twin(path, job, spec, classes)
    (low, high) = spec.bounds
    (least, most) = box.spec.bounds
    order_K = order_of(classes, box.info.class_names or (), on.class_names).argsort().to(box.device)
    mean = job.config.evaluation.mean or (low / (low - high),)
    std = job.config.evaluation.std or (1 / (high - low),)
    added_C11, times_C11 = (
        torch.tensor(each, device=box.device).view(-1, 1, 1) for each in (mean, std)
    )
    return lambda x_BCHW: box.logits((x_BCHW * times_C11 + added_C11) * (most - least) + least)[
        :, order_K
    ]


def _tell_begun(tell: Tell, device: torch.device, ledger: Ledger) -> None:
    tell("; ".join(take_up_threads(ledger, device)) or "asking")


def _ask(
    found: Entry,
    nets: list[Any],
    on: EvaluationSet,
    job: Job,
    twin: Logits | None,
    folder: Path,
    tell: Tell,
    brief: bool,
) -> None:
    """Ask the job's teacher, one on this machine undefended, and put what comes of it into
    ``found``.

    By an oracle with a ledger and a journal of its own, so that what was stopped asks nothing
    twice.
    """
    # nothing here is charged to it
    job = replace(job, config=replace(job.config, answers=AnswersConfig(), budget=1))
    device = choose_device(job.config.device)
    deferred = DeferredChecks()
    counts = {name: [0] * (len(nets) + 1) for name in ("procedural", "adversarial")}
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

        def ask(source: Surrogate | None, eps: float, x_BCHW: Tensor) -> Tensor:
            """The teacher's classes; the number of images on which each copy follows it."""
            class_B = answered_class(oracle(x_BCHW, "transfer"))
            seldom(f"asked {oracle.ledger.totals().transfer_queries:,} images")
            kind = "procedural" if source is None else "adversarial"
            if source is None or (
                source.kind != "clone" and source.logits is not None and eps == headline
            ):
                alike = [int((scores(net, x_BCHW).argmax(1) == class_B).sum()) for net in nets]
                counts[kind] = [
                    *map(add, counts[kind], [*alike, int((class_B != NO_ANSWER).sum())])
                ]
            return class_B

        draw = ProceduralImages(spec, ("leaves", "strokes")).draw
        rng = torch.Generator().manual_seed(derived_seed(job.config.seed, "procedural"))
        for part in (
            torch.arange(PROCEDURAL).split(evaluation_batch(spec.shape)) if is_local(job) else ()
        ):
            ask(None, 0.0, spec.quantise(draw(len(part), rng)).to(device))
        sources = _sources(found, nets, job, twin)
        x_NCHW, labels_N = _right(
            on, MAX_IMAGES if is_local(job) else MAX_IMAGES // len(sources), device
        )
        rows = measure(sources, x_NCHW, labels_N, spec, sizes, job.config.seed, ask)
        deferred.verify()
        totals = oracle.ledger.totals()
    found["asked"] = totals.transfer_queries
    found["transfer"] = {
        "images": len(x_NCHW),
        "eps": list(sizes),
        "headline_eps": headline,
        "attacks": list(ATTACKS),
        "asked": found["asked"],
        "rows": rows,
        "gain": gains(rows),
    }
    for place, told in enumerate(found["fidelity"]):
        for name, (*alike, asked) in counts.items():
            told[name] = {"images": asked, "agreement": alike[place] / asked} if asked else None
    tell(f"examined: {totals.transfer_queries:,} images asked, outside the budget")


def _sources(found: Entry, nets: list[Any], job: Job, twin: Logits | None) -> list[Surrogate]:
    """Strangers, the teacher where its gradients are here, and each copy."""
    own = nets[0]
    seed = derived_seed(job.config.seed, "untrained")
    device = choose_device(job.config.device)
    arch = auto_net(own.spec.shape, on_accelerator(device)) if is_own(own.arch) else own.arch
    (untrained,) = fresh_nets(arch, own.spec, own.num_classes, seed, 1)
    untrained = untrained.to(device).eval()
    sources = [
        Surrogate("random signs", "stranger", None),
        Surrogate("untrained", "stranger", untrained),
    ]
    if twin is not None:
        sources.append(Surrogate("twin", "stranger", twin, found["twin"]["agreement"]))
    if job.teacher.kind == "torch":
        sources.append(Surrogate("teacher", "ceiling", white_box(job).logits, 1.0))
    for told, net in zip(found["fidelity"], nets, strict=True):
        sources.append(
            Surrogate(f"clone: {told['row']}, {told['mode']}", "clone", net, told["agreement"])
        )
    return sources


def _right(on: Any, most: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return up to so many evaluation images that the teacher gets right, evenly spread, and their
    labels.
    """
    top_N = top_class(on.answers)
    right_M = (top_N == (top_N if on.labels is None else on.labels)).nonzero()[:, 0]
    if not (count := min(most, len(right_M))):
        raise UserError(
            "--transfer: the teacher is wrong on every evaluation image; see run.py check"
        )
    picked = right_M[torch.arange(count) * len(right_M) // count]
    images = (
        on.images.batch(picked) if isinstance(on.images, ImageSet) else on.images[picked.to(device)]
    )
    return images, top_N[picked].to(device)
