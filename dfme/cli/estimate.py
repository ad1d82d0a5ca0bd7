"""``run.py estimate``: what a clone will cost, from a pilot run on a share of the budget."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme import __version__
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import ExtractOptions, checked, settled
from dfme.cli.flags import Flag, asks_to_resume, default_recipe, last_text, split_flags
from dfme.cli.teacher_side import check_teacher
from dfme.config.fields import CONFIG, Basic
from dfme.config.settings import Job
from dfme.config.values import Option
from dfme.errors import Problem
from dfme.files import write_text
from dfme.report.console import duration
from dfme.report.facts import Beside, is_above
from dfme.report.markdown import table
from dfme.report.metrics import MetricRecord, read_metrics
from dfme.report.run_files import Series
from dfme.run.checks import HELD_BACK_EVERY, keeps_answers
from dfme.run.job import resume_command
from dfme.spec import LabelMode

SUMMARY = (
    "say what a clone will cost in queries, time and money, from a pilot on a share of the budget"
)


@dataclass(frozen=True, config=CONFIG)
class EstimateOptions(ExtractOptions):
    """The settings of a run, and how much of its budget the pilot may spend."""

    pilot: Basic[Annotated[float, Field(gt=0, lt=1)]] = 0.1
    """share of the budget that the pilot spends; the run that is recommended goes on from it"""


INPUTS = CommandInputs(EstimateOptions, teacher=True, method=True, recipe=default_recipe)


def options(words: Sequence[str]) -> Iterable[Option]:
    """Those of a run, with the recipe that is taken here, and the pilot's share."""
    return _asked(words).in_force


def run(words: Sequence[str]) -> int:
    """Say what the pilot costs, run it, and print what its curve says."""
    asked = _asked(words)
    given = asked.config
    flags = split_flags(words)
    job, budget = _job(
        asked, of_the_run=asks_to_resume(flags) and last_text(flags, "budget") is None
    )
    check_teacher(job.teacher, job.teacher_options)
    if given.dry_run or not job.config.resume:
        from dfme.run.plan import plan

        verb = "would be" if given.dry_run else "are"
        of = f"{int(job.config.budget):,} of a budget of {budget:,} images"
        print(f"pilot: {of} {verb} asked for and charged")
        print(plan(job), flush=True)
    if given.dry_run:
        return 0
    from dfme.run.build import run_job

    result = run_job(job, resume=bool(job.config.resume))
    out = result.run_dir
    again = f"{resume_command(result.run_dir, job, 'estimate')} --pilot {given.pilot:g}"
    if not result.finished:
        spent = f"{result.summary['spent']:,} queries"
        print(f"stopped and kept after {spent}; go on with:\n  {again} --budget {budget}")
        return 130
    found = estimate(job, result.summary, read_metrics(out / "metrics.jsonl"), budget)
    write_text(out / "estimate.json", json.dumps(found, indent=2, allow_nan=False) + "\n")
    print("\n".join(["", *_lines(found)]))
    if (then := found["recommended_budget"]) is not None:
        print(
            f"the run that goes on from what is paid for:\n  {resume_command(out, job)} --budget "
            f"{then}"
        )
    elif found["agreement_there"] is None:
        print(
            f"a pilot three times as large goes on from what is paid for:\n  {again} --budget "
            f"{3 * budget}"
        )
    return 0


def _asked(words: Sequence[str]) -> Arguments:
    flags = split_flags(words)
    named = asks_to_resume(flags) or any(
        flag.key in ("config", "recipe", "method.name") for flag in flags
    )
    return Arguments([*flags, *([] if named else [Flag("recipe", "frugal")])], INPUTS)


def _job(asked: Arguments, of_the_run: bool) -> tuple[Job, int]:
    """The pilot's checked job, and its share of the budget; ``of_the_run``: the run's own job."""
    config = settled(asked)
    share = asked.config.pilot
    given = int(config.budget)
    pilot, budget = (
        (given, round(given / share)) if of_the_run else (math.ceil(given * share), given)
    )
    return checked(asked, dataclasses.replace(config, budget=pilot), _problems), budget


def _problems(job: Job) -> Iterator[Problem]:
    """Reasons why a pilot cannot be resumed, or cannot show a curve."""
    config = job.config
    student = config.student
    batch = job.method_config.batch_size
    afterwards = keeps_answers(job) and not (student.steps or student.replay_steps)
    if student.is_planned:
        yield Problem(
            "student.steps", "expected --student.rounds as well: else the pilot alone has them"
        )
    elif afterwards or 0 < len(student.rounds) < MIN_SCORES:
        text = (
            f"expected students trained and scored {MIN_SCORES} times or more while the "
            "budget is spent"
        )
        yield Problem("method.name" if afterwards else "student.rounds", text)
    if config.until_agreement is not None:
        yield Problem("until_agreement", "leave it out: a pilot spends all of its budget")
    if config.minutes is not None:
        yield Problem("minutes", "leave it out: the run takes the steps of the pilot's recipe")
    first = student.rounds[-MIN_SCORES] if len(student.rounds) >= MIN_SCORES else 0.5
    least = math.ceil(HELD_BACK_EVERY * batch / first)
    budget = int(config.budget)
    if config.evaluation.dataset == "none" and budget < least:
        text = (
            f"expected one, or a pilot (--budget, --pilot) of {least:,} images or more, "
            f"got {budget:,}"
        )
        why = f"without one, one paid batch of {batch} in 20 is scored on"
        yield Problem("evaluation.dataset", f"{text}: {why}")


def estimate(
    job: Job, summary: Mapping[str, Any], records: Sequence[MetricRecord], budget: int
) -> dict[str, Any]:
    """The contents of estimate.json: of three numbers the lower end, the expected one and the upper
    end.
    """
    points = scores_after_training(records)
    spent = int(summary["spent"])
    mode = LabelMode.parse(summary["label_mode"])
    shape = summary["teacher"]["shape"]
    student = job.sized(mode, shape).config.student.fitting(mode, shape)
    constant = Beside.of_summary(summary)
    images = summary["evaluation"]["images"]
    rises = bool(points) and is_above(points[-1][1], constant.constant, images)
    start = start_of(points, images) if rises else None
    (of_query, of_step) = pace(records)
    rate = job.teacher_options.get("images_per_second")
    price = job.teacher.price_per_1000
    beside = summary["evaluation_queries"] + summary["lost"]

    def to_go(queries: float) -> tuple[float, float]:
        """Seconds of queries and of rounds from the pilot's end on."""
        every = zip(student.rounds, student.round_steps(math.ceil(queries)), strict=True)
        steps = sum(steps for share, steps in every if share * queries > spent)
        return (queries - spent) * max(of_query, 1 / rate if rate else 0.0), of_step * steps

    levels = []
    within = budget
    for goal in GOALS:
        reached = constant.queries_to(points, goal)
        known = [None] * 3 if start is None or reached is not None else start.queries_to(LAW, goal)
        queries = [each and math.ceil(each) for each in known]
        times = [each and round(summary["wall_seconds"] + sum(to_go(each)), 1) for each in queries]
        costs = [each and price and round((each + beside) * price / 1000, 6) for each in queries]
        level = {
            "agreement": goal,
            "reached": reached,
            "queries": queries,
            "seconds": times,
            "cost": costs,
        }
        levels.append(level)
        if queries[1] and queries[1] <= budget:
            within = min(queries[2] or budget, budget)
    asking, training = to_go(budget)
    return {
        "version": __version__,
        "pilot": spent,
        "budget": budget,
        "evaluation": summary["evaluation"],
        "baselines": summary.get("baselines") or {},
        "agreement_balanced": summary.get("agreement_balanced"),
        "scores": points,
        "levels": levels,
        "farthest": REACH * spent,
        "agreement_there": None if start is None else start.agreement(LAW, REACH * spent),
        "training_share": training / (asking + training) if training else None,
        "recommended_budget": None
        if start is None or reached is not None or budget <= spent
        else within,
    }


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Content of estimate.json, for people."""
    on = found["evaluation"]
    there = found["agreement_there"]
    scores = found["scores"]
    what = "paid queries that were held back, not of images of yours"
    if not on["held_back"]:
        what = f"images of {on['name']}"
    scored = "not known"
    if scores:
        beside = Beside.of_summary(found).text(scores[-1][1], found["agreement_balanced"], "{:.1%}")
        scored = f"{beside} of {on['images']:,} {what}"
    yield f"the pilot's agreement after {found['pilot']:,} queries: {scored}"
    if there is None:
        flat = "does not rise above one answer to everything"
        why = flat if len(scores) >= MIN_SCORES else f"has {len(scores)} scores"
        yield f"no estimate: its learning curve {why}"
        return
    forms = [("queries", "{:,}".format), ("seconds", duration), ("cost", "{:,.2f}".format)]
    known = forms if any(any(level["cost"]) for level in found["levels"]) else forms[:2]
    rows = [
        [f"{each['agreement']:.0%}", *(_cell(each, *form) for form in known)]
        for each in found["levels"]
    ]
    yield table(["agreement", "queries", "time", "cost"][: 1 + len(known)], rows)
    low, expected, high = (f"{share:.1%}" for share in there)
    yield f"beyond: after {found['farthest']:,} queries {expected} are expected ({low} to {high})"
    yield (
        "in brackets: 90 % intervals. The logit of the agreement is drawn on over the "
        "logarithm of the"
    )
    yield "queries; the interval is what recorded curves departed from that (docs/evaluation.md)"
    if (training := found["training_share"]) is not None:
        yield f"of the time to go, training takes {training:.0%}, the queries {1 - training:.0%}"


def _cell(level: Mapping[str, Any], name: str, form: Callable[[Any], str]) -> str:
    if level["reached"] is not None:
        return f"{level['reached']:,}, in the pilot" if name == "queries" else ""
    low, expected, high = ("beyond" if each is None else form(each) for each in level[name])
    return f"{expected} ({low} to {high})" if low != "beyond" else "beyond"


GOALS = (0.8, 0.9, 0.95)  # agreements whose price is estimated
REACH = 10  # times the pilot's queries up to which the recorded curves go, and so the estimate
MIN_SCORES = 3  # that an estimate needs
GROWTH = (
    0.25  # of the interval's width as queries grow e-fold, in units of the pilot's end; heuristic
)


@dataclasses.dataclass(frozen=True)
class Law:
    """Law of curves: ``base`` and ``bend`` of the rise, and the departures that bound the
    interval.
    """

    base: float
    bend: float
    low: float
    high: float


LAW = Law(1.024, 0.178, -0.541, 0.926)
"""Made by: python tests/support/recorded_curves.py docs/results/curves.csv"""


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@dataclasses.dataclass(frozen=True)
class Start:
    """Start of a forecast after ``queries``: the agreement's logit, and its interval's width."""

    queries: int
    level: float
    width: float

    def lines(self, law: Law) -> list[tuple[float, float]]:
        """Level and slope of the lower end, of the expected value and of the upper end."""
        rise = max(
            law.base - law.bend * self.level, 0.05
        )  # a curve that is high already still rises
        return [(self.level + z * self.width, rise + z * GROWTH) for z in (law.low, 0.0, law.high)]

    def agreement(self, law: Law, queries: float) -> list[float]:
        """Lower end, expected value and upper end after so many queries."""
        distance = math.log(queries / self.queries)
        return [1 / (1 + math.exp(-level - rise * distance)) for level, rise in self.lines(law)]

    def queries_to(self, law: Law, agreement: float) -> list[float | None]:
        """Lower end, expected value, upper end of reaching it; None beyond ``REACH`` times the
        pilot's.
        """
        found: list[float | None] = []
        for level, rise in reversed(self.lines(law)):
            missing = max(0.0, logit(agreement) - level)
            reached = missing <= max(rise, 0.0) * math.log(REACH)
            if not reached:
                found.append(None)
            elif missing:
                found.append(self.queries * math.exp(missing / rise))
            else:
                found.append(float(self.queries))
        return found


def start_of(points: Series, images: int) -> Start | None:
    """Start of a forecast from scores on so many images, weighted by queries; None without a
    rise.
    """
    if len(points) < MIN_SCORES:
        return None
    least = 0.5 / images
    queries = np.array([each for each, _ in points])
    shares = [min(max(share, least), 1 - least) for _, share in points]
    weights = np.sqrt(queries / queries[-1])
    last = shares[-1]
    slope, level = np.polyfit(np.log(queries / queries[-1]), [*map(logit, shares)], 1, w=weights)
    # and the counting error of the last logit, by the delta method
    width = 1 + (images * last * (1 - last)) ** -0.5
    return Start(int(queries[-1]), float(level), width) if slope > 0 else None


def scores_after_training(records: Iterable[Mapping[str, float | None]]) -> Series:
    """(queries, agreement) of a run's records wherever the student had learnt since the last
    score.
    """
    found: dict[float, tuple[int, float]] = {}
    for record in records:
        queries, agreement, steps = (
            record.get(name) for name in ("queries", "agreement", "student_steps")
        )
        if queries and agreement is not None and steps:
            found.setdefault(steps, (int(queries), agreement))
    return [*found.values()]


def pace(records: Iterable[Mapping[str, float | None]]) -> tuple[float, float]:
    """Seconds per query, and per student step if some queries had none; else steps are in the
    first.
    """
    at = (
        [record.get(name) or 0.0 for name in ("queries", "student_steps", "seconds")]
        for record in records
    )
    scored = [[0.0] * 3, *(each for each in at if each[2])]
    gone = [[now - then for then, now in zip(*pair, strict=True)] for pair in pairwise(scored)]
    idle = [each for each in gone if each[0] and not each[1]]
    of_query = math.fsum(each[2] for each in idle or gone) / math.fsum(
        each[0] for each in idle or gone
    )
    queries, steps, seconds = scored[-1]
    return of_query, max(0.0, seconds - of_query * queries) / steps if idle and steps else 0.0
