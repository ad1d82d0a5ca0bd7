"""Options of a drill: those of a run, and of who listens. No torch."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.settings import ExtractConfig
from dfme.config.values import CONFIG, Basic, Images

MAX_BUDGET = 1 << 40
"""Images, where nobody said how many: all that are recorded are sent."""


@dataclass(frozen=True, config=CONFIG)
class DrillConfig(ExtractConfig):
    """A run against one's own service, and the channel to which its alarms go."""

    budget: Basic[Images] = 3_000
    """images that may be charged; with --from by default all that are recorded"""
    alarm_file: Basic[str | None] = None
    """channel: the file of serve --alarm-file, or of Guard's alarm_file, in which an alarm is a
    line of JSON
    """
    webhook_log: Basic[str | None] = None
    """channel: a text file to which the receiver of your alarms appends a line for each"""
    match: Basic[str | None] = None
    """text that a line of the channel holds if it counts; by default each counts"""
    account: Basic[str | None] = None
    """tag of the account whose alarms count, as serve prints it; by default that of the key in
    --teacher.api-key-env, and without a key every account
    """
    wait: Basic[Annotated[float, Field(ge=0, le=86_400)]] = 10.0
    """seconds in which an alarm may come after the last image"""
    within: Basic[Images | None] = None
    """images after which an alarm is too late (exit code 4)"""
    stop_at_alarm: Basic[bool] = False
    """ask nothing more once it rang"""
    from_: Basic[str | None] = None
    """directory of an audit, of which the headline's attack is taken, or of a run with
    --record-queries true, such as one below an audit's cells/: the recorded queries are sent again,
    and nothing is trained
    """
    dry_run: Basic[bool] = False
    """say what would be asked and what it costs, ask nothing and write nothing"""
