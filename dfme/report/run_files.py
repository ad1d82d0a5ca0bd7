"""What a run's directory says, and what its numbers mean: configuration, records, ledger, samples,
summary; the answer in one sentence, its precision, and how soon the copy was good. No torch.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.messages import printable
from dfme.config.values import flatten
from dfme.config.yaml_files import load_yaml
from dfme.errors import RunError, UserError, flag
from dfme.files import open_file, read_npz
from dfme.oracle.ledger_log import Totals, audit
from dfme.queries.programs import PROCEDURAL
from dfme.report.metrics import read_metrics
from dfme.statistics import wilson_interval

MAX_SUMMARY_BYTES = 1 << 25
AGREEMENTS = ("agreement_served", "agreement_relabelled")

NO_LABELS = "not known: the evaluation images have no labels"


PUBLIC = "with weights that anybody can download"


def known_domain(config: Mapping[str, Any]) -> str | None:
    """What the attacker of a run with this configuration knew that the teacher is for; None:
    nothing.
    """
    domain = (config.get("queries") or {}).get("domain", "unknown")
    return None if domain == "unknown" else printable(str(domain))


def public_weights(
    config: Mapping[str, Any], summary: Mapping[str, Any] | None = None
) -> str | None:
    """What people call the weights that anybody can download from which students start, if any.

    ``summary``: of the run, which knows them by their file, where the configuration has a word.
    """
    facts = (summary or {}).get("student_weights")
    if isinstance(facts, Mapping) and facts.get("name"):
        return printable(str(facts["name"]))
    path = (config.get("student") or {}).get("weights")
    return printable(PurePath(str(path)).name) if path else None


def pictures(config: Mapping[str, Any]) -> str | None:
    """The pool that a run with this configuration asks, by its last name; None of drawn images."""
    pool = (config.get("method") or {}).get("pool", PROCEDURAL)
    return None if pool == PROCEDURAL else printable(PurePath(str(pool)).name)


def without_labels(summary: Mapping[str, Any]) -> str | None:
    """``NO_LABELS`` of a run whose evaluation images have none."""
    held_back = (summary.get("evaluation") or {}).get("held_back")
    return NO_LABELS if summary.get("accuracy") is None and held_back is False else None


def defended(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows for a teacher with a watch or defences: agreement with the teacher itself."""
    rows = []
    watch = summary.get("watch") or {"detectors": {}}
    for name, detector in watch["detectors"].items():
        alarm = (
            f"first alarm at image {detector['first_alarm']:,}"
            if detector["first_alarm"]
            else "no alarm"
        )
        text = f"{alarm} of {watch['images']:,} images, the evaluation's not counted"
        rows.append((f"watch: {name}", text))
    if not summary.get("defences"):
        return rows
    counted = ", ".join(
        f"{name} {value}" for name, value in flatten(summary.get("defence_report") or {}, ())
    )
    shares = {name: summary.get(name) for name in AGREEMENTS}
    texts = {"defences": " + ".join(summary["defences"]), "defences report": printable(counted)}
    texts |= {
        name.replace("_", " "): f"{share:.2%}"
        for name, share in shares.items()
        if share is not None
    }
    return [*(row for row in texts.items() if row[1]), *rows]


def ended_early(summary: Mapping[str, Any]) -> str | None:
    """Sentence on how --until-agreement ended the run, if it did."""
    seen = summary.get("held_back")
    if summary.get("ended_by") != "until_agreement" or seen is None:
        return None
    constant = "" if seen.get("one_class") is None else f"; constant answer {seen['one_class']:.1%}"
    images = (
        f"{seen['images']:,} held-back queries (95% interval from {seen['at_least']:.1%}{constant})"
    )
    goal = flag("until_agreement", seen["goal"])
    return f"{goal}: agreement on {seen['agreement']:.1%} of {images}"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; nothing where it holds none."""
    with suppress(OSError, ValueError, RecursionError), open_file(path) as file:
        document = json.loads(file.read(MAX_SUMMARY_BYTES))
        return document if isinstance(document, dict) else {}
    return {}


def read_summary(path: Path) -> dict[str, Any] | None:
    """Entries of a summary.json; None without one. Raises ``RunError`` for other content."""
    if not path.is_file():
        return None
    summary = read_object(path)
    if "budget" not in summary or "spent" not in summary:
        what = "expected the JSON of a finished run, with budget and spent"
        raise RunError(f"{path}: {what}; resume the run to write it")
    return summary


Series = list[tuple[int, float]]

MAX_SAMPLE_BYTES = 1 << 28  # of the arrays of one sheet of samples, by far


@dataclass(frozen=True)
class Samples:
    """Queries as they were at one moment: 8-bit images (N, C, H, W), and answers (N, K) or (N,) if
    known.
    """

    queries: int
    images: NDArray[np.uint8]
    answers: NDArray[Any] | None


@dataclass(frozen=True)
class RunFiles:
    """One run, read from its directory. ``summary`` is None while the run is not finished."""

    name: str
    config_text: str
    config: dict[str, Any]
    summary: dict[str, Any] | None
    metrics: list[dict[str, float | None]]
    ledger: Totals
    samples: list[Samples]

    def series(self, metric: str) -> Series:
        """(queries, value) of every record that has a finite value of the metric, in order."""
        pairs = ((int(record["queries"] or 0), record.get(metric)) for record in self.metrics)
        return [(queries, value) for queries, value in pairs if value is not None]

    def final(self, metric: str) -> float | None:
        """The metric of the delivered student; of an unfinished run, of its latest record."""
        if self.summary is not None:
            return self.summary.get(metric)
        return series[-1][1] if (series := self.series(metric)) else None


def read_run(run_dir: Path) -> RunFiles:
    """Read a run's files. Raises ``UserError`` where there is no run and ``RunError`` for damaged
    files.
    """
    config = run_dir / "config.yaml"
    ledger = run_dir / "ledger.jsonl"
    if not config.is_file():
        raise UserError(
            f"report: expected a run directory, but {str(run_dir)!r} has no config.yaml"
        )
    return RunFiles(
        name=run_dir.resolve().name,
        config=load_yaml(config),
        config_text=config.read_text(encoding="utf-8"),
        summary=read_summary(run_dir / "summary.json"),
        metrics=read_metrics(run_dir / "metrics.jsonl"),
        ledger=audit(ledger) if ledger.is_file() else Totals(),
        samples=[
            _read_samples(path) for path in sorted((run_dir / "samples").glob("queries-*.npz"))
        ],
    )


def _read_samples(path: Path) -> Samples:
    try:
        arrays = read_npz(path, MAX_SAMPLE_BYTES)
        return Samples(
            int(path.stem.removeprefix("queries-")), arrays["images"], arrays.get("answers")
        )
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{path}: expected a sheet of samples: {error}; delete it to go on"
        ) from error


def to_picture(image_CHW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image as (H, W, 3), pixels unchanged. Unless it has three channels the first is shown,
    grey.
    """
    rgb_CHW = image_CHW if image_CHW.shape[0] == 3 else image_CHW[:1].repeat(3, axis=0)
    return rgb_CHW.transpose(1, 2, 0)


LEVELS = (0.5, 0.8, 0.9, 0.95)  # agreements whose price in queries is reported
MISLEADING = (
    0.5  # a constant answer that agrees on more makes a plain agreement say little; heuristic
)
BALANCED = "balanced over the teacher's classes"


@dataclass(frozen=True)
class ScoredOn:
    """Images that the copy was scored on; ``held_back``: they are generated queries."""

    name: str
    images: int
    held_back: bool

    @property
    def phrase(self) -> str:
        count = f"{self.images:,} " if self.images else ""
        return (
            f"{count}held-back generated queries"
            if self.held_back
            else f"the {count}evaluation images"
        )


def scored_on(run: RunFiles) -> ScoredOn:
    """Images that the run's copy is scored on; of an unfinished run, by its configuration and
    ledger.
    """
    if run.summary is not None and "evaluation" in run.summary:
        evaluation = run.summary["evaluation"]
        return ScoredOn(
            str(evaluation["name"]), int(evaluation["images"]), bool(evaluation["held_back"])
        )
    name = str((run.config.get("evaluation") or {}).get("dataset", "none"))
    return ScoredOn(name, run.ledger.evaluation_queries, held_back=name == "none")


def is_above(share: float, constant: float | None, images: int) -> bool:
    """True if the 95% interval of a share lies above that of a constant answer; also if none is
    known.
    """
    if constant is None or images < 1:
        return True
    return wilson_interval(share, images)[0] > constant


@dataclass(frozen=True)
class Beside:
    """What stands beside every agreement on the same images: the figures of a constant answer,
    which gives the teacher's most frequent class to all of them (docs/evaluation.md).

    ``constant``: its agreement. ``balanced``: the same balanced over the teacher's classes. None:
    not known.
    """

    constant: float | None = None
    balanced: float | None = None
    images: int = 0

    @staticmethod
    def of_summary(summary: Mapping[str, Any]) -> "Beside":
        """By a run's summary.json, of any release."""
        baselines = summary.get("baselines") or {}
        images = (summary.get("evaluation") or {}).get("images") or 0
        return Beside(
            baselines.get("constant_agreement"), baselines.get("constant_balanced"), images
        )

    @property
    def is_large(self) -> bool:
        """True if a constant answer agrees on more than half, so that a plain agreement
        misleads.
        """
        return self.constant is not None and self.constant > MISLEADING

    def reaches(self, share: float, level: float) -> bool:
        """True if an agreement is at least the level, and shown to be above that of a constant
        answer.
        """
        return share >= level and is_above(share, self.constant, self.images)

    def queries_to(self, series: Series, level: float) -> int | None:
        """Queries at the first evaluation that ``reaches`` the level; None if there is none."""
        return next((queries for queries, share in series if self.reaches(share, level)), None)

    def text(self, share: float, balanced: float | None = None, form: str = "{:.2%}") -> str:
        """An agreement with what stands beside it, for a line."""
        text = form.format(share)
        if self.constant is None:
            return text
        constant = form.format(self.constant)
        if self.is_large and balanced is not None:
            text += f", balanced {form.format(balanced)}"
        if self.is_large and self.balanced is not None:
            constant += f", balanced {form.format(self.balanced)}"
        return f"{text} (constant answer {constant})"


def answer(run: RunFiles) -> str:
    """The run's result in one sentence."""
    agreement = run.final("agreement")
    on = scored_on(run)
    if agreement is None:
        return f"After {run.ledger.spent:,} queries nothing has been evaluated yet."
    summary = run.summary or {"spent": run.series("agreement")[-1][0]}
    paid = f"{summary['spent']:,} queries"
    if (price := run.final("cost")) is not None:
        paid += f" at a price of {price:,.2f}"
    undefended = "undefended " if summary.get("defences") and not on.held_back else ""
    whom = f"the {undefended}teacher on {agreement:.1%} of {on.phrase}"
    beside = beside_of(run)
    result = f"a copy that agrees with {whom}"
    if beside.constant is not None:
        is_copy = is_above(agreement, beside.constant, beside.images)
        result = result if is_copy else f"no copy: what they taught agrees with {whom}"
        result += f", where one answer to everything would on {beside.constant:.1%}"
    balanced = run.final("agreement_balanced")
    if beside.is_large and balanced is not None:
        result += f"; {BALANCED} it agrees on {balanced:.1%}"
        result += (
            ""
            if beside.balanced is None
            else f", one answer to everything on {beside.balanced:.1%}"
        )
    return f"{paid} gave {result}." if run.summary else f"So far, {paid} gave {result}."


def beside_of(run: RunFiles) -> Beside:
    """What stands beside the run's agreement; of an unfinished run, by its latest record."""
    if run.summary is not None:
        return Beside.of_summary(run.summary)
    return Beside(run.final("constant_agreement"), None, scored_on(run).images)


def disagreements(run: RunFiles) -> list[str]:
    """Differences between summary.json and the sums of the ledger's lines; there should be none."""
    summary = run.summary or {}
    return [
        f"{name}: summary.json says {summary[name]:,}, the lines of ledger.jsonl add up to "
        f"{count:,}"
        for name in ("spent", "evaluation_queries", "refused", "failed", "no_answer", "lost")
        if summary.get(name, count := getattr(run.ledger, name)) != count
    ]
