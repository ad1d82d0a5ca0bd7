"""``run.py drill``: an attack on one's own service; did its alarm ring, and when?"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dfme import owner_side
from dfme.audits.drill.options import MAX_BUDGET, DrillConfig
from dfme.audits.drill.result import ChannelRecord, DrillResult, Listening, exit_code, read
from dfme.cli.arguments import Arguments, CommandInputs
from dfme.cli.extract import checked, settled
from dfme.cli.flags import Flag, asks_to_resume, last_text, resumed, split_flags, tell
from dfme.config.messages import printable
from dfme.config.settings import Job
from dfme.config.values import Option
from dfme.errors import Problem, flag, say
from dfme.methods import METHODS
from dfme.oracle.ledger_log import audit
from dfme.run.checks import evaluation_problems, fresh_directory_problems
from dfme.run.job import document, resume_command

SUMMARY = "attack your own service by few queries, and say when its alarm rang, if it did"
RECIPE = "frugal"
BUDGET = "3k"
CHANNELS = ("alarm_file", "webhook_log")
OF_TRAINING = (
    "recipe",
    "seed",
    "until_agreement",
    "minutes",
    "precision",
    "channels_last",
    "deterministic",
    "checkpoint_seconds",
    "shared_answers",
    "record_queries",
    "schedule",
    "student",
    "evaluation",
    "answers",
    "wandb",
    "method",
    "queries",
    "estimator",
)
"""Options and sections that only training reads."""


def _recipe(flags: Sequence[Flag]) -> Path | None:
    """The record of the drill that is gone on with."""
    return resumed(flags, "config.yaml", "a drill") if asks_to_resume(flags) else None


INPUTS = CommandInputs(DrillConfig, teacher=True, method=True, recipe=_recipe)


def options(words: Sequence[str]) -> list[Option]:
    """The options, with what holds of a drill where nothing else is said."""
    flags = split_flags(words)
    listed = Arguments([*_usual(flags), *flags], INPUTS).in_force
    return [
        replace(option, default=BUDGET) if option.key == "budget" else option for option in listed
    ]


def run(words: Sequence[str]) -> int:
    """Ask, listen, and say what came of it; 4 where nobody rang, or too late."""
    flags = split_flags(words)
    before = _before(flags)
    arguments = Arguments([*_usual(flags), *_on_record(flags, before), *flags], INPUTS)
    config: DrillConfig = arguments.config
    arguments.report(_problems(arguments, config, before))
    replays = config.from_ is not None
    job = _replayed(arguments) if replays else checked(arguments, settled(arguments), _scored)
    owner_side.check_teacher(job.teacher, job.teacher_options)
    listening = _listening(config)
    if config.dry_run:
        print(_plan(job, listening))
        return 0
    accounts = owner_side.account_tags(job.teacher_options)
    if replays:
        from dfme.audits.drill.replay import replay

        result, out = replay(job, listening, accounts, tell)
    else:
        if waited_for := sys.stderr.isatty():  # what takes seconds to load comes after that
            from dfme.report.console import header

            print(header(document(job)), file=sys.stderr, flush=True)
        from dfme.audits.drill.live import live

        result, out = live(job, listening, accounts, tell, announced=waited_for)
    return _outcome(result, out, job, listening)


def _outcome(result: DrillResult, out: Path, job: Job, listening: Listening) -> int:
    if not result.finished:
        print(f"stopped and kept after {result.images_in_all:,} queries; go on with:")
        print(f"  {resume_command(out, job, 'drill')}")
        return 130
    print(printable(f"drill: {result.text}"))
    print(printable(f"{out / 'drill.json'}"))
    return exit_code(result, listening.within)


# What is asked for


def _usual(flags: Sequence[Flag]) -> Iterator[Flag]:
    """The cheapest attack we know of and few queries, where nothing else is said."""
    named = {flag.key for flag in flags}
    if asks_to_resume(flags) or "from_" in named or "config" in named:
        return
    if not named & {"recipe", "method.name"}:
        yield Flag("recipe", RECIPE)
    if "budget" not in named:
        yield Flag("budget", BUDGET)


def _before(flags: Sequence[Flag]) -> ChannelRecord | None:
    """How the drill listened that is gone on with."""
    return (
        read(Path(last_text(flags, "out") or ""), ChannelRecord) if asks_to_resume(flags) else None
    )


def _on_record(flags: Sequence[Flag], before: ChannelRecord | None) -> Iterator[Flag]:
    """Options of who listens that a session before this one had, as flags."""
    if before is None:
        return
    named = {flag.key for flag in flags}
    if not named & {*CHANNELS}:
        yield Flag(before.channel, before.path)
    values = {
        "match": before.match,
        "account": before.account,
        "wait": before.wait,
        "within": before.within,
        "stop_at_alarm": str(before.stop_at_alarm).lower(),
        "from": before.recorded,
    }
    for name, value in values.items():
        if value is not None and Flag(name, "").key not in named:
            yield Flag(name, str(value))


def _listening(config: DrillConfig) -> Listening:
    """Who listens, with paths that hold in any directory."""
    return Listening(
        channel="webhook_log" if config.alarm_file is None else "alarm_file",
        path=os.path.abspath(config.alarm_file or config.webhook_log or ""),
        match=config.match,
        account=config.account,
        wait=config.wait,
        within=config.within,
        stop_at_alarm=config.stop_at_alarm,
        recorded=config.from_ and os.path.abspath(config.from_),
    )


def _scored(job: Job) -> Iterator[Problem]:
    """The copy's agreement is part of the outcome."""
    yield from evaluation_problems(job.config.evaluation, needed=True)


def _replayed(arguments: Arguments) -> Job:
    """The job of recorded queries: a teacher, a directory, and as many images as are recorded."""
    teacher, options = arguments.teacher()
    run = settled(arguments)
    out = None if run.resume else run.out
    arguments.finish([*_of_training(arguments), *fresh_directory_problems(out)])
    if not arguments.settings.gives("budget"):
        run = replace(run, budget=MAX_BUDGET)
    return Job(run, teacher, options, "static", METHODS["static"].config())


def _plan(job: Job, listening: Listening) -> str:
    """What would be asked, and where somebody would listen."""
    if listening.recorded is not None:
        from dfme.audits.drill.replay import plan as plan_of_replay

        text = plan_of_replay(job, listening)
    else:
        from dfme.run.plan import plan

        text = plan(job)
    channel = printable(f"{listening.channel}: {listening.path}")
    return f"{text}\nlistening   {channel}, for {listening.wait:g} s after the last image"


# What cannot work


def _problems(
    arguments: Arguments, config: DrillConfig, before: ChannelRecord | None
) -> Iterator[Problem]:
    yield from _of_channel(config, before)
    kind = owner_side.KINDS.get(arguments.kind)
    if kind is not None and kind.is_local:
        served = f"run.py serve {flag('watch', 'NAMES')} {flag('alarm_file', 'FILE')}"
        yield Problem(
            "teacher.kind",
            "expected a service (v2, json...) or a client of your own (module:Class): a model in "
            f"this process raises no alarm in a channel; serve it first, by {served}",
            arguments.kind,
        )
    for name in ("watch", "defences", "benign"):
        if kind is None and arguments.settings.values.get(f"teacher.{name}"):
            text = "leave it out: a drill is of what stands before the service itself"
            yield Problem(f"teacher.{name}", text)
    if config.within is not None and config.from_ is None and config.within > int(config.budget):
        most = f"expected at most the {int(config.budget):,} images of the budget"
        yield Problem("within", most, f"{config.within}")
    ledger = Path(config.out or "") / "ledger.jsonl"
    begun = config.resume and ledger.is_file() and audit(ledger).requests
    if begun and before is None:
        yield Problem("out", "expected the directory of a drill, got that of another run")


def _of_channel(config: DrillConfig, before: ChannelRecord | None) -> Iterator[Problem]:
    given = {name: path for name in CHANNELS if (path := getattr(config, name)) is not None}
    one = say("expected one of {alarm_file} and {webhook_log}: where your alarms go")
    if not given:
        yield Problem("alarm_file", one, "neither")
    if len(given) > 1:
        yield Problem("alarm_file", one, "both")
    for name, path in given.items():
        if os.path.exists(path) and not os.path.isfile(path):
            yield Problem(name, "expected a file, got a folder, a pipe or a device", path)
        elif os.path.exists(path) and not os.access(path, os.R_OK):
            yield Problem(name, "expected a file that this user can read", path)
        elif before is not None and (name, os.path.abspath(path)) != (before.channel, before.path):
            yield Problem(name, f"expected {before.path}, with which this was begun", path)
    if config.account is not None and config.alarm_file is None:
        yield Problem("account", say("takes effect only with {alarm_file}"))


def _of_training(arguments: Arguments) -> Iterator[Problem]:
    """Options that nothing reads where recorded queries are sent."""
    for key in arguments.options:
        if arguments.settings.says(key) and key.partition(".")[0] in OF_TRAINING:
            yield Problem(key, say("leave it out: with {from_} nothing is trained"))
