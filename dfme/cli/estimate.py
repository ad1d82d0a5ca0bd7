"""``run.py estimate``: what a clone will cost, from a pilot run on a share of the budget."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import ExtractOptions, checked, settled
from dfme.cli.flags import Flag, asks_to_resume, default_recipe, last_text, split_flags
from dfme.config.settings import Job
from dfme.config.values import CONFIG, Basic, Option
from dfme.errors import Problem
from dfme.files import write_text
from dfme.owner_side import check_teacher
from dfme.report.console import duration
from dfme.report.markdown import table
from dfme.report.metrics import read_metrics
from dfme.report.run_files import Beside
from dfme.run.checks import HELD_BACK_EVERY, keeps_answers
from dfme.run.forecast import MIN_SCORES, CloneEstimate, Level, estimate
from dfme.run.job import resume_command

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
    return _arguments(words).in_force


def run(words: Sequence[str]) -> int:
    """Say what the pilot costs, run it, and print what its curve says."""
    arguments = _arguments(words)
    config = arguments.config
    flags = split_flags(words)
    job, budget = _job(
        arguments, of_the_run=asks_to_resume(flags) and last_text(flags, "budget") is None
    )
    check_teacher(job.teacher, job.teacher_options)
    if config.dry_run or not job.config.resume:
        from dfme.run.plan import plan

        verb = "would be" if config.dry_run else "are"
        print(
            f"pilot: {int(job.config.budget):,} of a budget of {budget:,} images {verb} "
            "asked for and charged"
        )
        print(plan(job), flush=True)
    if config.dry_run:
        return 0
    from dfme.run.build import run_job

    result = run_job(job, resume=bool(job.config.resume))
    out = result.run_dir
    again = f"{resume_command(result.run_dir, job, 'estimate')} --pilot {config.pilot:g}"
    if not result.finished:
        print(
            f"stopped and kept after {result.summary['spent']:,} queries; go on with:\n  "
            f"{again} --budget {budget}"
        )
        return 130
    estimated = estimate(job, result.summary, read_metrics(out / "metrics.jsonl"), budget)
    write_text(
        out / "estimate.json", json.dumps(estimated.to_json(), indent=2, allow_nan=False) + "\n"
    )
    print("\n".join(["", *_lines(estimated, Beside.of_summary(result.summary))]))
    if estimated.recommended_budget is not None:
        command = f"{resume_command(out, job)} --budget {estimated.recommended_budget}"
        print(f"the run that goes on from what is paid for:\n  {command}")
    elif estimated.agreement_there is None:
        command = f"{again} --budget {3 * budget}"
        print(f"a pilot three times as large goes on from what is paid for:\n  {command}")
    return 0


def _arguments(words: Sequence[str]) -> Arguments:
    flags = split_flags(words)
    named = any(flag.key in ("config", "recipe", "method.name") for flag in flags)
    if not (named or asks_to_resume(flags)):
        flags.append(Flag("recipe", "frugal"))
    return Arguments(flags, INPUTS)


def _job(arguments: Arguments, of_the_run: bool) -> tuple[Job, int]:
    """The pilot's checked job, and its share of the budget; ``of_the_run``: the run's own job."""
    config = settled(arguments)
    share = arguments.config.pilot
    pilot = budget = int(config.budget)
    if of_the_run:
        budget = round(pilot / share)
    else:
        pilot = math.ceil(budget * share)
    return checked(arguments, dataclasses.replace(config, budget=pilot), _problems), budget


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
        yield Problem(
            "evaluation.dataset",
            f"{text}: without one, one paid batch of {batch} in 20 is scored on",
        )


def _lines(estimated: CloneEstimate, constant: Beside) -> Iterator[str]:
    """The estimate, for people; ``constant``: the figures of a constant answer."""
    on = estimated.evaluation
    scored = "not known"
    if estimated.scores:
        agreement = constant.text(estimated.scores[-1][1], estimated.agreement_balanced, "{:.1%}")
        what = f"images of {on['name']}"
        if on["held_back"]:
            what = "paid queries that were held back, not of images of yours"
        scored = f"{agreement} of {on['images']:,} {what}"
    yield f"the pilot's agreement after {estimated.pilot:,} queries: {scored}"
    if estimated.agreement_there is None:
        why = f"has {len(estimated.scores)} scores"
        if len(estimated.scores) >= MIN_SCORES:
            why = "does not rise above one answer to everything"
        yield f"no estimate: its learning curve {why}"
        return
    yield _prices(estimated.levels)
    low, expected, high = (f"{share:.1%}" for share in estimated.agreement_there)
    yield f"beyond: after {estimated.farthest:,} queries {expected} are expected ({low} to {high})"
    yield (
        "in brackets: 90 % intervals. The logit of the agreement is drawn on over the "
        "logarithm of the"
    )
    yield "queries; the interval is what recorded curves departed from that (docs/evaluation.md)"
    if (training := estimated.training_share) is not None:
        yield f"of the time to go, training takes {training:.0%}, the queries {1 - training:.0%}"


def _prices(levels: Sequence[Level]) -> str:
    """A table of what each agreement costs."""
    heads = ["agreement", "queries", "time"]
    priced = any(any(level.cost) for level in levels)
    if priced:
        heads.append("cost")
    rows = []
    for level in levels:
        row = [f"{level.agreement:.0%}", _queries(level), _cell(level, level.seconds, duration)]
        if priced:
            row.append(_cell(level, level.cost, "{:,.2f}".format))
        rows.append(row)
    return table(heads, rows)


def _queries(level: Level) -> str:
    if level.reached is not None:
        return f"{level.reached:,}, in the pilot"
    return _cell(level, level.queries, "{:,}".format)


def _cell(level: Level, numbers: Sequence[Any], form: Callable[[Any], str]) -> str:
    if level.reached is not None:
        return ""
    low, expected, high = ("beyond" if number is None else form(number) for number in numbers)
    return f"{expected} ({low} to {high})" if low != "beyond" else "beyond"
