"""``run.py estimate``: what a clone will cost, from a pilot run on a share of the budget."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme import __version__
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import ExtractOptions, checked, settled
from dfme.cli.files import asks_to_resume, default_recipe
from dfme.cli.flags import last_text, split_flags
from dfme.cli.teacher_side import check_teacher
from dfme.config.fields import CONFIG, Basic
from dfme.config.messages import Problem
from dfme.config.settings import Job
from dfme.config.values import Option
from dfme.files import write_text
from dfme.report.console import duration
from dfme.report.facts import queries_to_reach
from dfme.report.learning_curve import GOALS, LAW, MIN_SCORES, REACH, pace, scores_after_training, start_of
from dfme.report.markdown import table
from dfme.report.metrics import MetricRecord, read_metrics
from dfme.run.checks import HELD_BACK_EVERY, keeps_answers
from dfme.run.job import resume_command

SUMMARY = "say what a clone will cost in queries, time and money, from a pilot on a share of the budget"


@dataclass(frozen=True, config=CONFIG)
class EstimateOptions(ExtractOptions):
    """The settings of a run, and how much of its budget the pilot may spend."""

    pilot: Basic[Annotated[float, Field(gt=0, lt=1)]] = 0.1
    """share of the budget that the pilot spends; it is charged, and the run that is recommended goes on from it"""


INPUTS = CommandInputs(EstimateOptions, teacher=True, method=True, recipe=default_recipe)


def options(words: Sequence[str]) -> Iterable[Option]:
    """Those of a run, with the recipe that is taken here, and the pilot's share."""
    return _asked(words).in_force


def run(words: Sequence[str]) -> int:
    """Say what the pilot costs, run it, and print what its curve says."""
    asked = _asked(words)
    given, flags = asked.settings(EstimateOptions), split_flags(words)
    job, budget = _job(asked, of_the_run=asks_to_resume(flags) and last_text(flags, "budget") is None)
    check_teacher(job.teacher, job.teacher_options)
    if given.dry_run or not job.config.resume:
        from dfme.run.plan import plan

        verb = "would be" if given.dry_run else "are"
        print(f"pilot: {int(job.config.budget):,} of a budget of {budget:,} images {verb} asked for and charged")
        print(plan(job), flush=True)
    if given.dry_run:
        return 0
    from dfme.run.build import run_job

    result = run_job(job, resume=bool(job.config.resume))
    out, again = result.run_dir, f"{resume_command(result.run_dir, job, 'estimate')} --pilot {given.pilot:g}"
    if not result.finished:
        print(f"stopped and kept after {result.summary['spent']:,} queries; go on with:\n  {again} --budget {budget}")
        return 130
    found = estimate(job, result.summary, read_metrics(out / "metrics.jsonl"), budget)
    write_text(out / "estimate.json", json.dumps(found, indent=2, allow_nan=False) + "\n")
    print("\n".join(["", *_lines(found)]))
    if (then := found["recommended_budget"]) is not None:
        print(f"the run that goes on from what is paid for:\n  {resume_command(out, job)} --budget {then}")
    elif found["agreement_there"] is None:
        print(f"a pilot three times as large goes on from what is paid for:\n  {again} --budget {3 * budget}")
    return 0


def _asked(words: Sequence[str]) -> Arguments:
    flags = split_flags(words)
    named = asks_to_resume(flags) or any(flag.key in ("config", "recipe", "method.name") for flag in flags)
    return Arguments([*words, *([] if named else ["--recipe=frugal"])], INPUTS)


def _job(asked: Arguments, of_the_run: bool) -> tuple[Job, int]:
    """The pilot's job, checked, and the budget it is a share of; ``of_the_run``: the pilot's is the run's own."""
    config, share = settled(asked), asked.settings(EstimateOptions).pilot
    given = int(config.budget)
    pilot, budget = (given, round(given / share)) if of_the_run else (math.ceil(given * share), given)
    return checked(asked, replace(config, budget=pilot), _problems), budget


def _problems(job: Job) -> Iterator[Problem]:
    """What keeps a pilot from being gone on with, or from showing a curve."""
    config, student, batch = job.config, job.config.student, job.method_config.batch_size
    afterwards = keeps_answers(job) and not (student.steps or student.replay_steps)
    if student.is_planned:
        yield Problem("student.steps", "expected --student.rounds as well: else they are planned over the pilot alone")
    elif afterwards or 0 < len(student.rounds) < MIN_SCORES:
        text = f"expected students that are trained and scored {MIN_SCORES} times or more while the budget is spent"
        yield Problem("method.name" if afterwards else "student.rounds", text)
    if config.until_agreement is not None:
        yield Problem("until_agreement", "leave it out: a pilot spends all of its budget")
    least = math.ceil(
        HELD_BACK_EVERY * batch / (student.rounds[-MIN_SCORES] if len(student.rounds) >= MIN_SCORES else 0.5)
    )
    if config.evaluation.dataset == "none" and int(config.budget) < least:
        text = f"expected one, or a pilot (--budget, --pilot) of {least:,} images or more, got {int(config.budget):,}"
        yield Problem("evaluation.dataset", f"{text}: without one, one paid batch of {batch} in 20 is scored on")


def estimate(job: Job, summary: Mapping[str, Any], records: Sequence[MetricRecord], budget: int) -> dict[str, Any]:
    """The contents of estimate.json: of three numbers the lower end, the expected one and the upper end."""
    points, spent, student = scores_after_training(records), int(summary["spent"]), job.config.student
    constant = summary.get("baselines", {}).get("constant_agreement") or 0.0
    start = start_of(points, summary["evaluation"]["images"]) if points and points[-1][1] > constant else None
    (of_query, of_step), rate = pace(records), job.teacher_options.get("images_per_second")
    price, beside = job.teacher.price_per_1000, summary["evaluation_queries"] + summary["lost"]

    def to_go(queries: float) -> tuple[float, float]:
        """Seconds of queries and of rounds from the pilot's end on."""
        coming = sum(share * queries > spent for share in student.rounds)
        rounds = of_step * student.steps * coming / max(len(student.rounds), 1)
        return (queries - spent) * max(of_query, 1 / rate if rate else 0.0), rounds

    levels, within = [], budget
    for goal in GOALS:
        reached = queries_to_reach(points, goal)
        known = [None] * 3 if start is None or reached is not None else start.queries_to(LAW, goal)
        queries = [each and math.ceil(each) for each in known]
        times = [each and round(summary["wall_seconds"] + sum(to_go(each)), 1) for each in queries]
        costs = [each and price and round((each + beside) * price / 1000, 6) for each in queries]
        levels.append({"agreement": goal, "reached": reached, "queries": queries, "seconds": times, "cost": costs})
        if queries[1] and queries[1] <= budget:
            within = min(queries[2] or budget, budget)
    asking, training = to_go(budget)
    return {
        "version": __version__,
        "pilot": spent,
        "budget": budget,
        "evaluation": summary["evaluation"],
        "scores": points,
        "levels": levels,
        "farthest": REACH * spent,
        "agreement_there": None if start is None else start.agreement(LAW, REACH * spent),
        "training_share": training / (asking + training) if training else None,
        "recommended_budget": None if start is None or reached is not None or budget <= spent else within,
    }


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What estimate.json says, for people."""
    on, there, scores = found["evaluation"], found["agreement_there"], found["scores"]
    what = "paid queries that were held back, not of images of yours" if on["held_back"] else f"images of {on['name']}"
    scored = f"{scores[-1][1]:.1%} of {on['images']:,} {what}" if scores else "not known"
    yield f"the pilot's agreement after {found['pilot']:,} queries: {scored}"
    if there is None:
        why = (
            "does not rise above one answer to everything" if len(scores) >= MIN_SCORES else f"has {len(scores)} scores"
        )
        yield f"no estimate: its learning curve {why}"
        return
    forms = [("queries", "{:,}".format), ("seconds", duration), ("cost", "{:,.2f}".format)]
    known = forms if any(any(level["cost"]) for level in found["levels"]) else forms[:2]
    rows = [[f"{each['agreement']:.0%}", *(_cell(each, *form) for form in known)] for each in found["levels"]]
    yield table(["agreement", "queries", "time", "cost"][: 1 + len(known)], rows)
    low, expected, high = (f"{share:.1%}" for share in there)
    yield f"beyond: after {found['farthest']:,} queries {expected} are expected ({low} to {high})"
    yield "in brackets: 90 % intervals. The logit of the agreement is drawn on over the logarithm of the queries; the"
    yield "interval is what recorded curves departed from that (docs/evaluation.md)"
    if (training := found["training_share"]) is not None:
        yield f"of the time to go, training takes {training:.0%}, the queries {1 - training:.0%}"


def _cell(level: Mapping[str, Any], name: str, form: Callable[[Any], str]) -> str:
    if level["reached"] is not None:
        return f"{level['reached']:,}, in the pilot" if name == "queries" else ""
    low, expected, high = ("beyond" if each is None else form(each) for each in level[name])
    return f"{expected} ({low} to {high})" if low != "beyond" else "beyond"
