"""What finished copies are good for: each beside its teacher's answers on record, and what the teacher is asked anew.

That is asked with the purpose ``transfer`` by an oracle with a ledger and a journal of its own, in ``OUT/examined``: a
teacher on this machine is asked undefended, a service as it is. Where it was stopped, the same call asks nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count, product
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfme.answers.reading import top_class
from dfme.benchmarks.audit import fidelity
from dfme.benchmarks.audit.findings import Entry
from dfme.benchmarks.audit.transfer import ATTACKS, Logits, Surrogate, eps_of, gains, measure
from dfme.benchmarks.compare.figures import spread
from dfme.compute import DeferredChecks, choose_device, within_memory
from dfme.config.answer_settings import AnswersConfig
from dfme.config.settings import Job, TeacherConfig
from dfme.data import ImageSet
from dfme.data.class_names import in_order
from dfme.errors import DfmeError, UserError
from dfme.files import make_folder, write_text
from dfme.nets import auto_net, is_own
from dfme.oracle.ledger import Totals, audit
from dfme.precision import ieee_fp32
from dfme.queries.programs import ProceduralImages
from dfme.randomness import derived_seed
from dfme.report.summary_file import read_summary
from dfme.run.build import build_oracle, build_teacher, facts_of, is_local, white_box
from dfme.run.checkpoint import fitting, load_checkpoint, require_paid
from dfme.run.components import fresh_nets
from dfme.run.directory import RunDirectory, as_begun
from dfme.run.evaluation import EvaluationSet, evaluation_images, examination_of
from dfme.run.resuming import take_up_threads
from dfme.run.scores import batches, evaluation_batch, scores
from dfme.run.student_file import load_student_of_run, student_facts
from dfme.spec import ImageSpec, LabelMode

PROCEDURAL, PROGRAMS = 2_000, ("leaves", "strokes")  # images that are in no evaluation set, and what draws them
MAX_IMAGES = 500
"""That are perturbed for each eps and attack, and for each source too, unless a service is asked."""
NOT_ASKED = "a service, or a teacher of one's own, is asked only with --transfer true"
Tell = Callable[[str], None]


class ExaminedCell(NamedTuple):
    """A finished run in ``directory``; but of those ``examined_in_full`` only the figures over seeds are taken."""

    name: str
    row: str
    mode: str
    seed: int
    directory: Path
    examined_in_full: bool


def examine(
    out: Path, cells: Sequence[ExaminedCell], job: Job, twin: Path | None, transfer: bool | None, tell: Tell
) -> Entry:
    """``fidelity``, ``fidelity_seeds`` and ``transfer`` as ``audit.json`` has them, and what there is to say of them.

    ``transfer``: whether the job's teacher is asked; None: if it is of a built-in kind on this machine. ``twin``:
    weights of a net trained on the owner's data. ``asked``: images that were, with those of an examination of other
    copies, which is set aside.
    """
    device, folder, why = choose_device(job.config.device), out / "examined", ""
    earlier = _set_aside(folder, json.dumps([[cell.name for cell in cells], twin and twin.name, transfer]))
    found: Entry = {"fidelity": [], "fidelity_seeds": [], "transfer": None, "asked": 0, "twin": None}
    rows, nets, first, box = dict[tuple[str, str], list[Entry]](), list[Any](), None, None
    with within_memory(device), ieee_fp32():
        for cell, on, answers in _recorded(cells, job, device):
            net = load_student_of_run(cell.directory / "student.safetensors").to(device)
            seen = answers, on.mode, scores(net, on.images).cpu()
            rows.setdefault((cell.row, cell.mode), []).append(fidelity.figures(*seen))
            if cell.examined_in_full:
                first, nets = first or on, [*nets, net]
                told = dict(zip(("cell", "row", "mode", "seed"), cell[:4], strict=True))
                told |= fidelity.examined(*seen, on.labels, on.class_names)
                found["fidelity"].append(told | dict.fromkeys(("procedural", "adversarial")))
        if first is None or first.answers is None:
            why = "no copy was scored on an evaluation set"
        elif twin is not None:
            box, beside = _twin(twin, job, first, nets[0]), (top_class(first.answers), first.labels)
            with torch.no_grad():
                class_N = torch.cat([box(x_BCHW).argmax(1).cpu() for x_BCHW in batches(first.images)])
            shares = [None if of is None else (class_N == of).double().mean().item() for of in beside]
            found["twin"] = {"agreement": shares[0], "accuracy": shares[1], "file": twin.name}
        if first is not None and (is_local(job) if transfer is None else transfer):
            _ask(found, nets, first, job, box, folder, tell)
        elif first is not None:
            why = NOT_ASKED if transfer is None else "--transfer false"
    found["asked"] += sum(each.transfer_queries for each in earlier)
    found["not_run"] = [{"what": "agreement on other images, and adversarial transfer", "why": why}] if why else []
    for ((row, mode), every), name in product(rows.items(), fidelity.FIGURES):
        values = [each[name] for each in every]
        told, of = {"row": row, "mode": mode, "figure": name, "values": values}, spread(values)
        found["fidelity_seeds"].append({**told, "mean": of and of.mean, "sd": of and of.sd})
    for name, content in (("fidelity", {**found, "transfer": None}), ("transfer", found["transfer"])):
        write_text(folder / f"{name}.json", json.dumps(content, indent=2, allow_nan=False) + "\n")
    return found


def _set_aside(folder: Path, of: str) -> list[Totals]:
    """Make a folder for an examination ``of`` these copies, or go on with it; what was asked about others."""
    known = folder / "of.json"
    if (folder / "ledger.jsonl").exists() and not (known.exists() and known.read_text(encoding="utf-8") == of):
        folder.rename(next(place for n in count(1) if not (place := folder.with_name(f"examined-{n}")).exists()))
    make_folder(folder)
    write_text(known, of)
    return [audit(path) for path in sorted(folder.parent.glob("examined-*/ledger.jsonl"))]


def _recorded(cells: Sequence[ExaminedCell], job: Job, device: torch.device) -> Iterator[tuple[Any, Any, Tensor]]:
    """The evaluation and the teacher's answers to it, on the CPU; a student trained again has those of its run."""
    data = None
    for cell in cells if job.config.evaluation.dataset != "none" else ():
        run, summary = cell.directory, read_summary(cell.directory / "summary.json") or {}
        if not (run / "checkpoint.pt").exists() and "source" in summary:
            run = Path(as_begun(str(run / "config.yaml"), summary["source"]["run"]))
            summary = read_summary(run / "summary.json") or {}
        if "label_mode" not in summary:
            raise UserError(f"{run}: expected the directory of a finished run; go on with it first")
        (_, spec, classes), mode = student_facts(cell.directory), LabelMode.parse(summary["label_mode"])
        names = (summary.get("teacher") or {}).get("class_names")
        data = data or evaluation_images(job.config.evaluation, spec, classes, names)
        on, state = examination_of(data, spec, mode, device, None), load_checkpoint(run / "checkpoint.pt")
        with fitting(run / "checkpoint.pt"):
            on.load_state_dict(state["examination"])
            require_paid(on.paid, spec, classes, mode)
        assert isinstance(on, EvaluationSet) and on.answers is not None  # noqa: PT018 (one condition)
        on.answers, on.labels = on.answers.cpu(), None if on.labels is None else on.labels.cpu()
        yield cell, on, on.answers


def open_twin(path: Path, job: Job, spec: ImageSpec, num_classes: int) -> Any:
    """The white box of a file of weights. UserError where it holds none, or a net for other images or classes."""
    try:
        box = white_box(replace(job, teacher=TeacherConfig(kind="torch"), teacher_options={"checkpoint": str(path)}))
    except DfmeError as error:
        reason = str(error).removeprefix("--teacher.checkpoint").lstrip(": ")
        raise UserError(f"--twin {path}: expected the weights of a net: {reason}") from error
    if (box.spec.shape, box.num_classes) != (spec.shape, num_classes):
        expected = f"expected a net for images {spec.shape} and {num_classes} classes"
        raise UserError(f"--twin {path}: {expected}, got {box.spec.shape} and {box.num_classes}")
    return box


def _twin(path: Path, job: Job, on: EvaluationSet, copy: Any) -> Logits:
    """The net's logits of images as the teacher takes them, in the teacher's order of classes; UserError for others."""
    spec, classes = copy.spec, copy.num_classes
    box = open_twin(path, job, spec, classes)
    own = ImageSet("twin", torch.empty(classes, 1, 1, 1), torch.arange(classes), box.class_names or ())
    ordered, (low, high), (least, most) = in_order(own, on.class_names), spec.bounds, box.spec.bounds
    order_K = (own if ordered is None else ordered).required_labels.argsort().to(box.device)
    mean, std = job.config.evaluation.mean or (low / (low - high),), job.config.evaluation.std or (1 / (high - low),)
    added_C11, times_C11 = (torch.tensor(each, device=box.device).view(-1, 1, 1) for each in (mean, std))
    return lambda x_BCHW: box.logits((x_BCHW * times_C11 + added_C11) * (most - least) + least)[:, order_K]


def _ask(
    found: Entry, nets: list[Any], on: EvaluationSet, job: Job, twin: Logits | None, folder: Path, tell: Tell
) -> None:
    """Ask the job's teacher, and put what comes of it into ``found``."""
    job = replace(job, config=replace(job.config, answers=AnswersConfig(), budget=1))  # nothing here is charged to it
    device, deferred, seed = choose_device(job.config.device), DeferredChecks(), job.config.seed
    counts = {name: [0] * (len(nets) + 1) for name in ("procedural", "adversarial")}
    with ExitStack() as held:
        teacher = build_teacher(job, None, device)
        held.callback(getattr(teacher, "close", lambda: None))
        held.callback(torch.set_num_threads, torch.get_num_threads())
        parts = teacher, held.enter_context(RunDirectory(folder)), dict[str, Any](), deferred, facts_of(job, teacher)
        oracle = build_oracle(job, *parts, lambda ledger: tell("; ".join(take_up_threads(ledger, device)) or "asking"))
        held.enter_context(closing(oracle)).report_to(tell)
        (_, headline, _), spec = eps_of(oracle.spec), oracle.spec

        def ask(source: Surrogate | None, eps: float, x_BCHW: Tensor) -> Tensor:
            """The teacher's classes; of some images it is kept on how many each copy follows, and their number."""
            class_B = top_class(oracle(x_BCHW, "transfer"))
            kind = "procedural" if source is None else "adversarial"
            if source is None or (source.kind != "clone" and source.logits is not None and eps == headline):
                alike = [int((scores(net, x_BCHW).argmax(1) == class_B).sum()) for net in nets]
                counts[kind] = [*map(add, counts[kind], [*alike, len(x_BCHW)])]
            return class_B

        draw, rng = (
            ProceduralImages(spec, PROGRAMS).draw,
            torch.Generator().manual_seed(derived_seed(seed, "procedural")),
        )
        for part in torch.arange(PROCEDURAL).split(evaluation_batch(spec.shape)) if is_local(job) else ():
            ask(None, 0.0, spec.quantise(draw(len(part), rng)).to(device))
        sources = _sources(found, nets, job, twin)
        x_NCHW, labels_N = _right(on, MAX_IMAGES if is_local(job) else MAX_IMAGES // len(sources), device)
        rows = measure(sources, x_NCHW, labels_N, spec, seed, ask)
        deferred.verify()
        totals = oracle.ledger.totals()
    table = {"images": len(x_NCHW), "eps": list(eps_of(spec)), "headline_eps": headline, "attacks": list(ATTACKS)}
    found["asked"] = totals.transfer_queries
    found["transfer"] = table | {"asked": found["asked"], "rows": rows, "gain": gains(rows)}
    for place, told in enumerate(found["fidelity"]):
        told |= {name: {"images": n[-1], "agreement": n[place] / n[-1]} for name, n in counts.items() if n[-1]}
    tell(f"examined: {totals.transfer_queries:,} images asked, outside the budget")


def _sources(found: Entry, nets: list[Any], job: Job, twin: Logits | None) -> list[Surrogate]:
    """Strangers, the teacher where its gradients are here, and each copy."""
    own, seed = nets[0], derived_seed(job.config.seed, "untrained")
    arch = auto_net(own.spec.shape) if is_own(own.arch) else own.arch
    untrained = fresh_nets(arch, own.spec, own.num_classes, seed, 1)[0].to(choose_device(job.config.device)).eval()
    sources = [Surrogate("random signs", "stranger", None), Surrogate("untrained", "stranger", untrained)]
    sources += [] if twin is None else [Surrogate("twin", "stranger", twin, found["twin"]["agreement"])]
    sources += [Surrogate("teacher", "ceiling", white_box(job).logits, 1.0)] if job.teacher.kind == "torch" else []
    for told, net in zip(found["fidelity"], nets, strict=True):
        sources.append(Surrogate(f"clone: {told['row']}, {told['mode']}", "clone", net, told["agreement"]))
    return sources


def _right(on: Any, most: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """At most so many evaluation images that the teacher gets right, evenly over the set, and their labels."""
    top_N = top_class(on.answers)
    right_M = (top_N == (top_N if on.labels is None else on.labels)).nonzero()[:, 0]
    if not (count := min(most, len(right_M))):
        raise UserError("--transfer: expected a teacher that is right on an evaluation image; see run.py check")
    picked = right_M[torch.arange(count) * len(right_M) // count]
    images = on.images.batch(picked) if isinstance(on.images, ImageSet) else on.images[picked.to(device)]
    return images, top_N[picked].to(device)
