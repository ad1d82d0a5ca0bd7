"""report.html: one self-contained page with the question, the answer, the evidence and its
limits.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfme.config.messages import harmless
from dfme.files import replacing
from dfme.report.console import balanced_agreement, constant_answer, paid_answers, teacher_name
from dfme.report.metrics import METRICS, Metric, latest_of_callback
from dfme.report.run_files import (
    LEVELS,
    PUBLIC,
    RunFiles,
    answer,
    beside_of,
    defended,
    disagreements,
    ended_early,
    known_domain,
    pictures,
    public_weights,
    read_run,
    scored_on,
    without_labels,
)
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
    from jinja2 import Environment, PackageLoader, StrictUndefined

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


def write_report(run_dir: Path, *, summary: dict[str, Any] | None = None) -> Path:
    """Draw curve.png, losses.png and samples.png of a run and write its report.html; its path.

    What an unfinished run has not recorded is left out. ``summary``: of a run at its end that has
    not written it yet. Raises ``UserError`` for a directory without a run and ``RunError`` for
    damaged files.
    """
    run = read_run(run_dir)
    if summary is not None:
        run = replace(run, summary=summary)
    from dfme.report.curves import draw_curve, draw_losses, draw_samples

    draw_curve(run, run_dir / "curve.png")
    draw_losses(run, run_dir / "losses.png")
    draw_samples(run, run_dir / "samples.png")
    return write_page(run, run_dir / "report.html")


def write_page(run: RunFiles, path: Path) -> Path:
    """Write the page beside the pictures, which it carries inside itself; its path."""
    teacher = run.config.get("teacher") or {}
    logged = {name for record in run.metrics for name in record}
    meanings = METRICS | dict.fromkeys(latest_of_callback(run.metrics), OF_CALLBACK)
    pictures = [(path.with_name(name), text) for name, text in PICTURES.items()]
    beside = beside_of(run)
    reached = [(level, beside.queries_to(run.series("agreement"), level)) for level in LEVELS]
    summary = run.summary or {}
    contents = {
        "name": run.name,
        "target": teacher_name(teacher) if teacher.get("kind") else run.name,
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
        "metrics": [(name, meanings[name]) for name in meanings if name in logged],
        "config": run.config_text,
    }
    return render("report/report.html", path, contents)


def _audited(run: RunFiles) -> list[tuple[str, str]]:
    """Who was audited, who authorised it, when and at what price, where that is on record."""
    summary = run.summary or {}
    settings = run.config.get("teacher") or {}
    teacher = summary.get("teacher") or {}
    adapter = teacher.get("adapter") or {}
    rows = [
        (
            "Target",
            teacher.get("target") or (teacher_name(settings) if settings.get("kind") else None),
        ),
        (
            "Adapter",
            f"{adapter['file']} (SHA-256 {adapter['sha256'][:16]}...)" if adapter else None,
        ),
        ("Authorised by", _text(settings.get("authorised_by"))),
        ("Started", _text(summary.get("started"))),
        ("Ended", _text(summary.get("ended"))),
        (
            "Price",
            _text(
                summary.get("cost"),
                "{:,.2f} for all that may have been served, evaluation included",
            ),
        ),
    ]
    return [(label, value) for label, value in rows if value]


@dataclass(frozen=True)
class AnswerShares:
    """A table of the most frequent classes: their shares of each kind's answers, and how many
    classes are left out.
    """

    heads: list[str]
    rows: list[tuple[str, list[str]]]
    others: int


def _answers(run: RunFiles) -> AnswerShares | None:
    """The most frequent classes with their shares of each kind's answers, and the number of
    others.
    """
    answers = (run.summary or {}).get("answers")
    on = "held-back queries" if scored_on(run).held_back else "evaluation images"
    if not isinstance(answers, dict):
        return None
    kinds = [
        ("Teacher", answers.get("teacher"), on),
        ("Student", answers.get("student"), on),
        ("Teacher", answers.get("queries"), "paid queries"),
    ]
    columns = [
        (f"{who}, {what}", counts, sum(counts))
        for who, counts, what in kinds
        if counts and sum(counts)
    ]
    if not columns:
        return None
    most = sorted(
        range(len(answers["classes"])),
        key=lambda row: -sum(counts[row] / total for _, counts, total in columns),
    )
    names = answers.get("names") or [f"class {number}" for number in answers["classes"]]
    frequent = sorted(most[:MAX_SHOWN])
    rows = [
        (names[row], [f"{counts[row] / total:.1%}" for _, counts, total in columns])
        for row in frequent
    ]
    return AnswerShares([head for head, _, _ in columns], rows, len(most) - len(rows))


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    """The table of results, in the order people ask, without what is not known (yet)."""
    summary = run.summary or {}
    images = scored_on(run).images
    rows = [
        ("Method", _text(summary.get("method", (run.config.get("method") or {}).get("name")))),
        ("Budget", _text(summary.get("budget", run.ledger.budget or None), "{:,} queries")),
        ("Spent", f"{run.ledger.spent:,} queries in {run.ledger.requests:,} requests"),
        ("Ended by", ended_early(summary)),
        (
            "Teacher's accuracy",
            with_interval(run.final("teacher_accuracy"), images) or without_labels(summary),
        ),
        (
            "Student's accuracy",
            with_interval(run.final("accuracy"), images) or without_labels(summary),
        ),
        ("Agreement", with_interval(run.final("agreement"), images)),
        *((label.capitalize(), value) for label, value in balanced_agreement(summary)),
        (
            "Teacher's class among the student's five",
            with_interval(run.final("agreement_top5"), images),
        ),
        *((label.capitalize(), value) for label, value in defended(summary)),
        ("Constant answer", ", ".join(value for _, value in constant_answer(summary)) or None),
        *((label.capitalize(), value) for label, value in paid_answers(summary)),
        ("KL divergence from the teacher", _text(run.final("kl"), "{:.4f} nats")),
        ("Form of the answers", _text(summary.get("label_mode"))),
        ("The attacker knew", known_domain(run.config)),
        ("Pictures that were asked", pictures(run.config)),
        (
            "Estimator",
            CHOSEN.format_map(summary["estimator"]) if summary.get("estimator") else None,
        ),
        ("Student", _student(run.config, summary)),
        ("Student's training steps", _text(summary.get("student_steps"), "{:,}")),
        ("Precision of these steps", _text(summary.get("precision"))),
        ("Time", _text(summary.get("wall_seconds"), "{:,.1f} s")),
        ("Speed", _text(summary.get("queries_per_second"), "{:,.0f} queries/s")),
        ("Device", _text(summary.get("device"))),
        ("Seed", _text(summary.get("seed", run.config.get("seed")))),
        *((name, f"{value:.4g}") for name, value in latest_of_callback(run.metrics).items()),
        ("Configuration", _text(summary.get("config_hash"))),
        ("dfme", _text(summary.get("version"))),
        ("torch", _text(summary.get("torch"))),
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


def _student(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """Architecture, and the public weights that the student started from, with their digest."""
    text = _text(summary.get("student_arch"))
    name = public_weights(config, summary)
    if text is None or name is None:
        return text
    digest = (summary.get("student_weights") or {}).get("digest")
    return f"{text}, {PUBLIC}: {name}" + (f" (sha256 {str(digest)[:12]})" if digest else "")


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
