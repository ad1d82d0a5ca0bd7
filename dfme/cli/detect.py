"""``run.py detect``: detectors over the accounts in a log of ``serve --record``; asks nothing."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic.dataclasses import dataclass

from dfme import owner_side
from dfme.cli.arguments import RECIPE_ONLY, CommandInputs, arguments_of
from dfme.cli.flags import default_recipe, tell
from dfme.config.defences import DETECTORS
from dfme.config.messages import printable
from dfme.config.values import CONFIG, Basic, OwnTeacher
from dfme.files import write_text
from dfme.measured import Detection, HonestStream, LogDetection, LoggedAccount
from dfme.report.markdown import table
from dfme.run.checks import dataset_problems, fresh_directory_problems
from dfme.run.directory import RunDirectory
from dfme.version import __version__


@dataclass(frozen=True, config=CONFIG)
class DetectConfig:
    """One log, beside honest accounts; --teacher.watch names detectors, by default all it can
    feed.
    """

    log: Basic[str]
    """folder that run.py serve --record wrote; it may stand first and alone: run.py detect LOG ...
    """
    benign: Basic[str]
    """held-out labelled images of the owner, half of which calibrate the detectors: a data set, or
    FOLDER
    """
    other: str | None = None
    """other images that honest users may send, a fifth stream: a data set's name, or FOLDER"""
    own_teacher: Basic[OwnTeacher] = "api"
    """of a custom teacher: local, if it runs on this machine and costs nothing to ask"""
    out: Basic[str | None] = None
    """directory of the tables; by default a free name under runs/"""


SUMMARY = (
    "say which accounts in a log of serve --record look like an extraction (run.py detect LOG ...)"
)
INPUTS = CommandInputs(DetectConfig, teacher=True, recipe=default_recipe, ignored=RECIPE_ONLY)
FILES = ("detection.md", "detection.json")
ACCOUNT = ("account", "images", "sent before", "detector", "largest", "threshold", "first alarm")


def run(words: Sequence[str]) -> int:
    """Look through the log, print the tables, and keep them."""
    arguments = arguments_of(words, INPUTS, "log")
    config = arguments.config
    (teacher, kind_options) = arguments.teacher()
    arguments.report(dataset_problems("benign", config.benign, "datasets", False))
    if config.other is not None:
        arguments.report(dataset_problems("other", config.other, "datasets", False))
    arguments.report(owner_side.custom_problems(arguments.kind, config.own_teacher))
    arguments.finish(fresh_directory_problems(config.out))
    command = shlex.join(["python", "run.py", "detect", *words])
    job = owner_side.job_of(replace(teacher, benign=config.benign), kind_options, "auto")
    seen = owner_side.owner_of(job).detection(
        teacher.watch or [*DETECTORS],
        tell=tell,
        other=config.other,
        log=Path(config.log),
    )
    text = tables(seen)
    content = {"command": command, "dfme": __version__, **asdict(seen)}
    path = Path(config.out or RunDirectory.free_name(Path("runs/detect")))
    with RunDirectory.create(path) as out:
        write_text(out.path / FILES[0], f"# What a log says\n\n{command}\n\n{text}\n")
        write_text(out.path / FILES[1], json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(f"{text}\n\n{printable(', '.join(str(out.path / name) for name in FILES))}")
    return 0


def tables(seen: Detection) -> str:
    """Accounts and, beside each, its stream thinned; honest accounts; what was not looked at."""
    assert isinstance(seen, LogDetection), "a log was looked through"
    accounts = seen.accounts
    thinned = [f"1/{every}" for every in accounts[0].thinned if every > 1]
    lines = [line for account in accounts for line in _lines(account)]
    lines += _traffic(seen, len(thinned))
    rows = {detector.name: [detector.name] for detector in seen.detectors}
    for stream in seen.benign:
        rows[stream.detector].append(_honest(stream))
    unseen = [f"{name}, since {why}" for name, why in seen.left_out.items()]
    if missing := seen.accounts_in_all - len(accounts):
        unseen.append(f"the {missing:,} accounts with the fewest images")
    streams = dict.fromkeys(stream.stream for stream in seen.benign)
    parts = [
        "First alarms, in images that the account asked (an evaluation too), and of those left "
        "when thinned:",
        table([*ACCOUNT, *thinned], lines),
        f"Honest accounts of {seen.session} images with an alarm (alarms in 10,000 images < 95 % "
        "upper bound):",
        table(["detector", *streams], [*rows.values()]),
    ]
    return "\n\n".join([*parts, *(f"Not looked at: {name}." for name in unseen)])


def _lines(account: LoggedAccount) -> Iterator[list[str]]:
    """A line of the account for each detector."""
    for name, reading in account.thinned[1].items():
        alarms = [readings[name].first_alarm for readings in account.thinned.values()]
        yield [
            printable(account.account),
            f"{account.images}",
            f"{account.repeats}",
            name,
            f"{reading.largest:.3g}",
            f"{reading.threshold:.3g}",
            *(f"{alarm or 'never'}" for alarm in alarms),
        ]


def _traffic(seen: LogDetection, thinned: int) -> Iterator[list[str]]:
    """A line of all traffic for each detector of it, which is not thinned."""
    for name, reading in seen.traffic.items():
        yield [
            "all",
            f"{seen.images_in_all}",
            "",
            name,
            f"{reading.largest:.3g}",
            f"{reading.threshold:.3g}",
            f"{reading.first_alarm or 'never'}",
            *[""] * thinned,
        ]


def _honest(stream: HonestStream) -> str:
    rate = f"{stream.per_10000:.0f} < " if stream.alarms else "< "
    return (
        f"{stream.sessions_with_alarm} of {stream.sessions} "
        f"({rate}{math.ceil(stream.per_10000_upper)})"
    )
