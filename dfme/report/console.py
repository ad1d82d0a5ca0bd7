"""What a person sees of a run: a bar in a terminal, plain lines elsewhere, a short table at the
end.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TextIO
from urllib.parse import urlsplit

from dfme.config.messages import printable
from dfme.report.classified import reached
from dfme.report.metrics import METRICS
from dfme.report.run_files import (
    PUBLIC,
    Beside,
    defended,
    ended_early,
    known_domain,
    pictures,
    public_weights,
    without_labels,
)
from dfme.report.terminal import Notes, StatusLine, aligned, columns, fitted, wrapped

LINE_SECONDS = 2.0  # between two plain lines at least, ...
LINE_TIME = (
    0.02  # ... and this share of the time so far: a long run has hundreds of lines, not thousands
)
PLAIN_WIDTH = 100  # letters of a plain line: no terminal says how many fit
HEADER_WIDTH = 80
FORMS = {
    "cost": "cost {:,.2f}",
    "student_loss": "student loss {:.4g}",
    "generator_loss": "generator loss {:.4g}",
}
FILES = (
    "checkpoint",
    "program",
    "folder",
    "adapter",
    "model",
)  # options that may name a teacher's file
OUTPUTS = ("student.safetensors", "curve.png", "samples.png", "report.html")
EMBEDDED = PurePath("teachers/checkpoints")
HELD = "\u00a0"  # a blank at which no line is broken
LOGGER = logging.getLogger("dfme")


class Standing(NamedTuple):
    """How far a run is: images charged, share of its work that is done, and seconds left, if known.

    ``where``: the round and step of the students, while nothing is paid for.
    """

    queries: int
    share: float | None
    left: float | None
    where: str


class Console:
    """Progress of one run on ``stream``, and its end table on ``results``.

    ``budget`` is in images. ``quiet`` writes nothing; notes then go to the logger ``dfme`` alone.
    """

    def __init__(
        self,
        budget: int,
        stream: TextIO | None = None,
        results: TextIO | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = budget
        self._quiet = quiet
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._results = sys.stdout if results is None else results
        self._latest: dict[str, float] = {}
        self._warned = set[str]()
        self._line = StatusLine(self._stream)
        self._notes = Notes(self._note, clock)
        self._standing: Callable[[], Standing] | None = None
        self._queries = 0
        self._lock = threading.RLock()  # the ticker's lines and those of the run
        self._over = threading.Event()
        self._begin(0)

    def start(self, queries: int) -> None:
        """Begin to show progress, with ``queries`` images spent by an earlier part of the run."""
        self._begin(queries)
        self._show(queries, {})

    def follow(self, standing: Callable[[], Standing]) -> None:
        """Show ``standing`` from now on, also while nothing else is told; it is called in other
        threads.
        """
        self._standing = standing
        if not (self._quiet or self._line.live):
            threading.Thread(target=self._tick, daemon=True).start()

    def step(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Show training metrics after ``queries`` images; plain lines come at a sensible rate
        only.
        """
        self._show(queries, metrics, self._silent)

    def evaluation(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Show how good the student is after ``queries`` images."""
        self._show(queries, metrics, due=True)

    def note(self, line: str) -> None:
        """Show one line at once, above the bar where there is one; one that comes again is
        counted.
        """
        self._notes(line)

    def _note(self, line: str) -> None:
        # A program without a console is warned by the log.
        if warns := self._quiet and line.startswith("warning: "):
            self._warned.add(line)
        LOGGER.log(logging.WARNING if warns else logging.INFO, line)
        if not self._quiet:
            self._line.note(line)

    def table(self, summary: Mapping[str, Any], run_dir: Path) -> None:
        """Show the end table on the results stream."""
        self.close()
        for line in summary.get("warnings", ()) if self._quiet else ():
            if f"warning: {line}" not in self._warned:
                self._note(f"warning: {line}")
        if not self._quiet:
            self._results.write(end_table(summary, run_dir, columns(self._results)) + "\n")
            self._results.flush()

    def close(self) -> None:
        """Remove the bar's hold on the terminal; more than once does no harm."""
        self._over.set()
        self._notes.count()
        self._line.close()

    def _begin(self, queries: int) -> None:
        self._start = queries
        self._start_time = self._last_time = self._clock()

    @property
    def _silent(self) -> bool:
        """True if a plain line is due, since nothing was said for long."""
        now = self._clock()
        return now - self._last_time >= max(LINE_SECONDS, LINE_TIME * (now - self._start_time))

    def _tick(self) -> None:
        while not self._over.wait(LINE_SECONDS / 4):
            with self._lock:
                if self._silent and not self._over.is_set():
                    self._show(self._queries, {}, due=True)

    def _show(self, queries: int, metrics: Mapping[str, float], due: bool = False) -> None:
        self._latest.update(metrics)
        self._queries = queries
        if self._line.live and not self._quiet:
            self._line.show(self._drawing)
        elif due and not self._quiet:
            with self._lock:
                _, parts, extras = self._drawing()
                self._last_time = self._clock()
                self._line.note(fitted([*parts, *extras], PLAIN_WIDTH))

    def _drawing(self) -> tuple[float, list[str], list[str]]:
        """Share, parts and extras of a bar, as things stand."""
        standing = self._standing() if self._standing else Standing(self._queries, None, None, "")
        queries = max(standing.queries, self._queries)
        seconds = self._clock() - self._start_time
        spent = queries / self._budget
        share = spent if standing.share is None else standing.share
        rate = (queries - self._start) / seconds if seconds > 0 else 0.0
        paid = f"{queries:,} / {self._budget:,} queries ({spent:.0%})"
        if self._line.live:
            paid = f"{share:3.0%}  " + (standing.where or f"{queries:,}/{self._budget:,} queries")
        elif standing.where:
            paid += f"  {standing.where}"
        remaining = [] if standing.left is None else [f"{duration(standing.left)} left"]
        gone = [f"{duration(seconds)} so far"] if self._standing else []
        speed = [f"{rate:,.0f} queries/s"] if rate > 0 else []
        added = [
            f"{name} {value:.4g}" for name, value in [*self._latest.items()] if name not in METRICS
        ]
        losses = self._state(("student_loss", "generator_loss"))
        scored = [*agreement_line(self._latest), *self._state(("cost",))]
        return share, [paid, *scored, *remaining, *gone], [*speed, *losses, *added]

    def _state(self, names: Iterable[str]) -> list[str]:
        return [FORMS[name].format(self._latest[name]) for name in names if name in self._latest]


def agreement_line(scores: Mapping[str, float]) -> list[str]:
    """The latest agreement with what stands beside it, as a part of a line of progress; none if
    unknown.
    """
    if "agreement" not in scores:
        return []
    beside = Beside(scores.get("constant_agreement"))
    return [f"agreement {beside.text(scores['agreement'], scores.get('agreement_balanced'))}"]


def header(document: Mapping[str, Any]) -> str:
    """First lines of a run, from its effective configuration: who is asked, how, and at what
    price.
    """
    budget = int(document["budget"])
    price = document["teacher"].get("price_per_1000")
    facts = {
        "teacher": teacher_name(document["teacher"]),
        "method": document["method"]["name"],
        "recipe": document.get("recipe"),
        "the attacker knew:": known_domain(document),
        f"{PUBLIC}:": public_weights(document),
        "pictures of": pictures(document),
        "budget": f"{budget:,} queries"
        + (f" ({budget * price / 1000:,.2f} at the price given)" if price else ""),
        "device": document["device"],
        "wandb": {"off": None}.get(mode := document["wandb"]["mode"], mode),
    }
    text = ", ".join(f"{name} {value}".replace(" ", HELD) for name, value in facts.items() if value)
    return wrapped(text, min(HEADER_WIDTH, columns(sys.stderr) or HEADER_WIDTH), "  ").replace(
        HELD, " "
    )


def teacher_name(teacher: Mapping[str, Any]) -> str:
    """Name of a teacher for people, from its configuration: a file, a service, or module:name."""
    name = str(teacher["kind"])
    files = [PurePath(teacher[key]) for key in FILES if teacher.get(key)] if ":" not in name else []
    if files:
        name = files[0].name + (
            f" (embedded {files[0].stem})" if files[0].parent == EMBEDDED else ""
        )
    if teacher.get("url") and ":" not in teacher["kind"]:
        model = f", model {teacher['model']}" if teacher.get("model") else ""
        name = urlsplit(teacher["url"]).netloc + model
    return printable(name)


def duration(seconds: float) -> str:
    """A time as people write it: 42 s, 3:07, 1:02:03."""
    seconds_whole = round(seconds)
    if seconds_whole < 60:
        return f"{seconds_whole} s"
    hours, rest = divmod(seconds_whole, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def end_table(summary: Mapping[str, Any], run_dir: Path, across: int | None = None) -> str:
    """The table of a finished run, from its ``summary.json``, in lines of ``across`` letters; files
    last.
    """
    rows = [
        ("budget", f"{summary['budget']:,} queries"),
        ("spent", _spent(summary)),
        *_service(summary),
        ("teacher accuracy", _share(summary.get("teacher_accuracy"), without_labels(summary))),
        ("student accuracy", _share(summary.get("accuracy"), without_labels(summary))),
        ("agreement", _agreement(summary)),
        *balanced_agreement(summary),
        *defended(summary),
        *constant_answer(summary),
        *paid_answers(summary),
        (
            "time",
            f"{summary['wall_seconds']:,.1f} s ({summary['queries_per_second'] or 0:,.0f} "
            "queries/s)",
        ),
        *(
            (name, f"{value:.4g}")
            for name, value in (summary.get("callback_metrics") or {}).items()
        ),
    ]
    rows += [("ended by", ended)] if (ended := ended_early(summary)) else []
    rows += [
        (path.stem, printable(str(path))) for name in OUTPUTS if (path := run_dir / name).exists()
    ]
    rows += [("warning", line) for line in summary.get("warnings", ())]
    return aligned(rows, across)


def _spent(summary: Mapping[str, Any]) -> str:
    purposes = ", ".join(
        f"{name} {count:,}" for name, count in summary["spent_by_purpose"].items() if count
    )
    evaluation = summary["evaluation_queries"]
    extra = f"; {evaluation:,} more for evaluation, not charged" if evaluation else ""
    extra += f"; {summary['failed']:,} without an answer" if summary.get("failed") else ""
    left_out = summary.get("no_answer")
    extra += f"; {left_out:,} given no class, and left out" if left_out else ""
    return f"{summary['spent']:,} ({purposes}{extra})"


def _service(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Requests and cost of a service, if there is one and it has a price."""
    rows = []
    service = summary.get("service")
    if service is not None:
        requests = [f"{summary['requests']:,} requests"]
        for event in ("refused", "failed"):
            for reason, count in service[event].items():
                requests.append(f"{count:,} requests {event} ({reason})")
        rows.append(("service", ", ".join(requests)))
    if summary.get("cost") is not None:
        rows.append(
            ("cost", f"{summary['cost']:,.2f} at the price given, evaluation and losses included")
        )
    return rows


def constant_answer(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Shares of one answer to everything, and of a guess, beside those above."""
    baselines = summary.get("baselines") or {}
    values = {name: baselines.get(f"constant_{name}") for name in ("accuracy", "agreement")}
    shares = [f"{name} {share:.2%}" for name, share in values.items() if share is not None]
    return (
        [("constant answer", f"{', '.join(shares)}; a guess: {baselines['chance']:.2%}")]
        if shares
        else []
    )


def balanced_agreement(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The agreement balanced over the teacher's classes, where a constant answer agrees on over
    half.
    """
    beside = Beside.of_summary(summary)
    balanced = summary.get("agreement_balanced")
    if not beside.is_large or balanced is None:
        return []
    constant = "" if beside.balanced is None else f" (constant answer {beside.balanced:.2%})"
    return [
        ("balanced agreement", f"{balanced:.2%}, the mean over the teacher's classes{constant}")
    ]


def paid_answers(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How many classes the answers to the images paid for are of, where they are one-sided."""
    paid = summary.get("paid_answers") or {}
    return [("paid answers", f"one-sided: {reached(paid)}")] if paid.get("one_sided") else []


def _share(value: float | None, unknown: str | None) -> str:
    return unknown or "not known: no evaluation set" if value is None else f"{value:.2%}"


def _agreement(summary: Mapping[str, Any]) -> str:
    value = summary.get("agreement")
    evaluation = summary.get("evaluation") or {}
    if value is None:
        return "not known: no evaluation set, and too few batches to hold one back"
    text = Beside(Beside.of_summary(summary).constant).text(value)
    text += (
        ""
        if (five := summary.get("agreement_top5")) is None
        else f", {five:.2%} among its top five"
    )
    return text + (" on held-back generated queries" if evaluation.get("held_back") else "")
