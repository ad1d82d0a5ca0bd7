"""report.html: one self-contained page with the question, the answer, the evidence and its
limits.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dfme.config.messages import harmless
from dfme.files import replacing
from dfme.report.console import balanced_agreement, constant_answer, paid_answers, teacher_name
from dfme.report.facts import LEVELS, answer, beside_of, disagreements, scored_on
from dfme.report.metrics import METRICS, Metric, latest_of_callback
from dfme.report.run_files import RunFiles
from dfme.report.summary_file import defended, ended_early, knowledge, without_labels
from dfme.statistics import wilson_interval

PICTURES = {
    "curve.png": "Agreement and accuracy against the queries spent; the band is the 95% interval.",
    "samples.png": (
        "Generated queries, with the teacher's top class and, where it is told, its probability."
    ),
    "losses.png": "Training: losses and gradient norms against the queries spent.",
}
OF_CALLBACK = Metric("its own", "Returned by the callback that was handed to dfme.extract.")
CHOSEN = (
    "{kind}, {form}, {directions} x {direction}, step {step:g} in space {space}, "
    "objective {objective}"
)
MAX_SHOWN = 20  # classes in the table of answers, the most frequent


def render(template: str, path: Path, contents: Mapping[str, Any]) -> Path:
    """Write the page that a template of ours, by its place in dfme/, makes of the contents; its
    path.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.loader = PackageLoader("dfme", ".")
    html = environment.get_template(template).render(contents)
    with replacing(path) as file:
        file.write(html.encode("utf-8", errors="replace"))  # a log may name half a character
    return path


def _harmless(value: object) -> object:
    """What a page shows of a value: of text all but what steers a reader, such as a turned
    direction.
    """
    # what a macro gives is escaped, and stays so
    return type(value)(harmless(value)) if isinstance(value, str) else value


def write_page(run: RunFiles, path: Path) -> Path:
    """Write the page beside the pictures, which it carries inside itself; its path."""
    asked = run.config.get("teacher") or {}
    logged = {name for record in run.metrics for name in record}
    known = METRICS | dict.fromkeys(latest_of_callback(run.metrics), OF_CALLBACK)
    pictures = [(path.with_name(name), text) for name, text in PICTURES.items()]
    beside = beside_of(run)
    reached = [(level, beside.queries_to(run.series("agreement"), level)) for level in LEVELS]
    summary = run.summary or {}
    contents = {
        "name": run.name,
        "target": teacher_name(asked) if asked.get("kind") else run.name,
        "answer": answer(run),
        "finished": run.summary is not None,
        "scored_on": scored_on(run),
        "warnings": summary.get("warnings", ()),
        "audited": _audited(run),
        "facts": _facts(run),
        "answers": _answers(run),
        "constant": beside.constant,
        "prices": [
            (f"{at:.0%}", "not reached" if count is None else f"{count:,}") for at, count in reached
        ],
        "purposes": _purposes(run),
        "pictures": [
            (embedded(picture.read_bytes()), text)
            for picture, text in pictures
            if picture.is_file()
        ],
        "disagreements": disagreements(run),
        "ledger": run.ledger,
        "service": summary.get("service"),
        "defences": summary.get("defences"),
        "cost": summary.get("cost"),
        "metrics": [(name, known[name]) for name in known if name in logged],
        "config": run.config_text,
    }
    return render("report/report.html", path, contents)


def _audited(run: RunFiles) -> list[tuple[str, str]]:
    """Whom was audited, on whose word, when and at what price, as far as it is on record."""
    told = run.summary or {}
    asked = run.config.get("teacher") or {}
    teacher = told.get("teacher") or {}
    adapter = teacher.get("adapter") or {}
    rows = [
        ("Target", teacher.get("target") or (teacher_name(asked) if asked.get("kind") else None)),
        (
            "Adapter",
            f"{adapter['file']} (SHA-256 {adapter['sha256'][:16]}...)" if adapter else None,
        ),
        ("Authorised by", _text(asked.get("authorised_by"))),
        ("Started", _text(told.get("started"))),
        ("Ended", _text(told.get("ended"))),
        (
            "Price",
            _text(
                told.get("cost"), "{:,.2f} for all that may have been served, evaluation included"
            ),
        ),
    ]
    return [(label, value) for label, value in rows if value]


def _answers(run: RunFiles) -> dict[str, Any] | None:
    """The most frequent classes with their shares of each kind's answers, and the number of
    others.
    """
    told = (run.summary or {}).get("answers")
    on = "held-back queries" if scored_on(run).held_back else "evaluation images"
    if not isinstance(told, dict):
        return None
    kinds = [
        ("Teacher", told.get("teacher"), on),
        ("Student", told.get("student"), on),
        ("Teacher", told.get("queries"), "paid queries"),
    ]
    known = [
        (f"{who}, {what}", counts, sum(counts))
        for who, counts, what in kinds
        if counts and sum(counts)
    ]
    if not known:
        return None
    most = sorted(
        range(len(told["classes"])),
        key=lambda row: -sum(counts[row] / whole for _, counts, whole in known),
    )
    names = told.get("names") or [f"class {number}" for number in told["classes"]]
    shown = sorted(most[:MAX_SHOWN])
    rows = [
        (names[row], [f"{counts[row] / whole:.1%}" for _, counts, whole in known]) for row in shown
    ]
    return {"heads": [head for head, _, _ in known], "rows": rows, "others": len(most) - len(rows)}


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    """The table of results, in the order people ask, without what is not known (yet)."""
    told = run.summary or {}
    images = scored_on(run).images
    rows = [
        ("Method", _text(told.get("method", (run.config.get("method") or {}).get("name")))),
        ("Budget", _text(told.get("budget", run.ledger.budget or None), "{:,} queries")),
        ("Spent", f"{run.ledger.spent:,} queries in {run.ledger.requests:,} requests"),
        ("Ended by", ended_early(told)),
        (
            "Teacher's accuracy",
            with_interval(run.final("teacher_accuracy"), images) or without_labels(told),
        ),
        (
            "Student's accuracy",
            with_interval(run.final("accuracy"), images) or without_labels(told),
        ),
        ("Agreement", with_interval(run.final("agreement"), images)),
        *((label.capitalize(), value) for label, value in balanced_agreement(told)),
        (
            "Teacher's class among the student's five",
            with_interval(run.final("agreement_top5"), images),
        ),
        *((label.capitalize(), value) for label, value in defended(told)),
        ("Constant answer", ", ".join(value for _, value in constant_answer(told)) or None),
        *((label.capitalize(), value) for label, value in paid_answers(told)),
        ("KL divergence from the teacher", _text(run.final("kl"), "{:.4f} nats")),
        ("Form of the answers", _text(told.get("label_mode"))),
        ("The attacker knew", knowledge(run.config)),
        ("Estimator", CHOSEN.format_map(told["estimator"]) if told.get("estimator") else None),
        ("Student", _text(told.get("student_arch"))),
        ("Student's training steps", _text(told.get("student_steps"), "{:,}")),
        ("Precision of these steps", _text(told.get("precision"))),
        ("Time", _text(told.get("wall_seconds"), "{:,.1f} s")),
        ("Speed", _text(told.get("queries_per_second"), "{:,.0f} queries/s")),
        ("Device", _text(told.get("device"))),
        ("Seed", _text(told.get("seed", run.config.get("seed")))),
        *((name, f"{value:.4g}") for name, value in latest_of_callback(run.metrics).items()),
        ("Configuration", _text(told.get("config_hash"))),
        ("dfme", _text(told.get("version"))),
        ("torch", _text(told.get("torch"))),
    ]
    return [(label, value) for label, value in rows if value is not None]


def with_interval(share: float | None, images: int) -> str | None:
    """A share in per cent, with its 95% interval where it was counted on ``images``."""
    if share is None or images < 1:
        return _text(share, "{:.2%}")
    low, high = wilson_interval(share, images)
    return f"{share:.2%} (95% interval {low:.1%} to {high:.1%})"


def _text(value: object, form: str = "{}") -> str | None:
    return None if value is None else form.format(value)


def _purposes(run: RunFiles) -> list[tuple[str, str, str]]:
    spent = run.ledger.spent or 1
    rows = [
        (purpose, f"{images:,}", f"{images / spent:.1%}")
        for purpose, images in run.ledger.spent_by_purpose.items()
        if images
    ]
    return [*rows, ("evaluation", f"{run.ledger.evaluation_queries:,}", "not charged")]


def embedded(picture: bytes, kind: str = "png") -> str:
    """A picture as an address that holds it."""
    return f"data:image/{kind};base64," + base64.b64encode(picture).decode("ascii")
