"""Look at a teacher before anything is built: its answers, and which differences survive them."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dfme.answers.reading import unanswered
from dfme.compute.modules import evaluating
from dfme.config.sections import EstimatorConfig, ObjectiveName
from dfme.errors import Unserved
from dfme.estimators.preflight.choose import Finding, choose, explain, flags, warning
from dfme.estimators.preflight.diagnostics import Resolution
from dfme.estimators.preflight.measure import POINTS, Channel, preflight_images, run_preflight
from dfme.nets import auto_net, build_net
from dfme.nets.generators import Generator
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.spec import LabelMode, Teacher
from dfme.students.losses import make_distance

OPEN = EstimatorConfig(kind="auto", step="auto")


def examine(
    teacher: Teacher, images: int, seed: int, tell: Callable[[str], None] | None = None
) -> str:
    """Ask for ``images`` images of uniform noise, twice, and what a probe takes, all charged as
    ``check``.

    Describes the answers, and the finite differences that would do with an untrained student, in
    lines. ``tell`` hears of a service's troubles. TeacherError if the answers are not what the
    teacher's own description says.
    """
    scores = teacher.label_mode.kind != "label"
    ledger = Ledger(2 * images + preflight_images(OPEN, teacher.spec, scores))
    oracle = Oracle(teacher, ledger, tell=tell)
    low, high = teacher.spec.bounds
    noise = torch.rand((images, *teacher.spec.shape), generator=torch.Generator().manual_seed(seed))
    queries_BCHW = teacher.spec.quantise(noise * (high - low) + low)
    first = oracle(queries_BCHW, purpose="check")
    started = time.perf_counter()
    second = oracle(queries_BCHW, purpose="check")
    seconds = time.perf_counter() - started
    answered = ~(unanswered(first) | unanswered(second))
    if not answered.any():
        raise Unserved(
            f"the service named a class for none of the {images} images of noise; that it answers "
            "to images of its own kind is not ruled out, but what it answers to others can teach a "
            "student nothing"
        )
    first, second = first[answered], second[answered]
    finding = _probe(oracle, seed)
    limit = teacher.info.max_batch
    most = "any number" if limit is None else f"at most {limit}"
    top = first if first.ndim == 1 else first.nan_to_num(nan=float("-inf")).argmax(dim=1)
    change = (first.double().nan_to_num() - second.double().nan_to_num()).abs().max().item()
    differ = "the same images' answers differ by up to {:.2g}"
    same = "the same images got the same answers"
    repeat = max(change, finding.repeat)
    among = f"matter: {differ.format(finding.batch)}" if finding.batch else f"do not matter: {same}"
    facts = {
        "images": f"{teacher.spec}, {most} in one call",
        "classes": f"{teacher.num_classes}, of which noise shows {len(top.unique())}",
        "answers": _answers(teacher, first, finding),
        "deterministic": f"no: {differ.format(repeat)}" if repeat else f"yes: {same}",
        "batches": f"{among} among others",
        "speed": f"{images / max(seconds, 1e-9):,.0f} images per second, {images} at a time",
        **_left_out(ledger),
        "queries": f"{ledger.spent} images charged (check), in {ledger.requests} requests",
    }
    lines = [f"{name:15}{text}" for name, text in facts.items()]
    return "\n".join([*lines, "", *_differences(finding, oracle)])


def _left_out(ledger: Ledger) -> dict[str, str]:
    """The line about images that a service named no class for; none where there are none."""
    left_out = ledger.paid_without_answer
    reasons = ", ".join(ledger.no_answer)
    text = f"to {left_out} of {ledger.spent} images ({reasons}); they are charged and left out"
    return {"no answer": text} if left_out else {}


def _probe(oracle: Oracle, seed: int) -> Finding:
    """Worth of differences for a student that knows nothing yet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = build_net(
            auto_net(oracle.spec.shape, accelerated=False), oracle.spec.shape, oracle.num_classes
        )
        generator = Generator(256, oracle.spec)  # latent size as methods have it by default

    def value_of(objective: ObjectiveName) -> Callable[[Tensor, Tensor], Tensor]:
        distance = make_distance("auto" if objective == "student" else objective, oracle.label_mode)
        return lambda x_NCHW, answers: -distance(student(x_NCHW).double(), answers.double())

    channel = Channel(
        partial(oracle, purpose="check"), oracle.spec, oracle.label_mode, oracle.ledger.remaining
    )
    with evaluating(student):
        return run_preflight(
            channel, generator, value_of, OPEN, torch.Generator().manual_seed(seed)
        )


def _differences(finding: Finding, oracle: Oracle) -> list[str]:
    """Table of what candidate steps are worth, and the flags to take."""
    if not finding.candidates:
        return [
            f"finite differences see nothing of {finding.answers}: take a method that needs none"
        ]
    chosen = choose(OPEN, finding, oracle.spec, reuse=False)
    unit = "levels" if finding.space == "lattice" else "step"
    table = [
        f"finite differences of an untrained student's loss at {POINTS} images, space "
        f"{finding.space}, "
        f"direction {finding.direction}; predicted correlation with the true slope:",
        f"{unit:>10}{'signal':>12}{'noise':>12}{'carried':>10}{'forward':>10}{'central':>10}",
        *(
            f"{candidate.step:>10g}{candidate.signal:>12.2g}{candidate.noise:>12.2g}"
            f"{candidate.carried:>10.2f}{candidate.forward:>10.2f}{candidate.central:>10.2f}"
            for candidate in finding.candidates
        ),
    ]
    remarks = [
        explain(finding, chosen)[1],
        warning(finding, chosen),
        f"recommended: {flags(chosen)}",
    ]
    return [*table, *filter(None, remarks)]


def _answers(teacher: Teacher, answers: Tensor, finding: Finding) -> str:
    if answers.ndim == 1:
        return f"{teacher.label_mode}: a class number per image, no scores"
    seen = Resolution.seen(answers).decimals
    places = None if None in (seen, finding.decimals) else max(seen or 0, finding.decimals or 0)
    rounded = "not rounded" if places is None else f"rounded to {places} decimals"
    text = f"{teacher.label_mode}, {rounded}"
    if finding.answers == "one-hot":
        return f"{text}; one class has all of it: as good as labels"
    mode = teacher.label_mode
    if places is not None and mode.kind != "logits" and places != mode.decimals:
        declared = LabelMode(mode.kind, places, mode.k)
        return f"{text}: say so with --teacher.label-mode {declared}"
    return text
