"""What every drill has: somebody who listens, the copy's curve, and the outcome on file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dfme.audits.audit.accounts import SOON
from dfme.audits.drill.channel import AlarmChannel, HeardAlarm, Mark, Tail, rang_before
from dfme.audits.drill.listener import POLL_SECONDS, ChargedImages, Listener, Ring
from dfme.audits.drill.result import (
    CHANNEL,
    ChannelRecord,
    DrillResult,
    Listening,
    read,
    sentence,
    write,
)
from dfme.config.settings import Job
from dfme.errors import DfmeError, Refused, TeacherError, UserError
from dfme.oracle.ledger import utc_now
from dfme.oracle.ledger_log import audit
from dfme.report.console import teacher_name
from dfme.report.metrics import read_metrics
from dfme.report.run_files import Series
from dfme.run.job import document, resume_command
from dfme.run.recipes import plain_name

REFUSALS = ("401", "403", "429", "quota", "watch")
"""Reasons for which a service refuses one who has asked too much, or looked like an attack; quota
and watch are those of a teacher of one's own behind dfme's defences."""
LEDGER = "ledger.jsonl"
BETTER = 0.05
"""By which a copy is clearly better; heuristic."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class CopyCurve:
    """Agreements of a copy by queries, and that of one constant answer."""

    points: Series
    constant: float | None = None

    @staticmethod
    def of_run(folder: Path, constant: float | None = None) -> "CopyCurve":
        """What a run's metrics.jsonl says so far; ``constant``: where it does not say that yet."""
        points: Series = []
        for record in read_metrics(folder / "metrics.jsonl"):
            agreement = share_or_none(record.get("agreement"))
            if agreement is not None:
                points.append((int(record["queries"] or 0), agreement))
                constant = share_or_none(record.get("constant_agreement")) or constant
        return CopyCurve(points, constant)

    def at(self, images: int) -> float | None:
        """The agreement in the last evaluation up to so many images; before the first, that of the
        constant answer.
        """
        scored = [agreement for queries, agreement in self.points if queries <= images]
        return scored[-1] if scored else self.constant

    def soon(self, images: int) -> tuple[int, float] | None:
        """The queries and the agreement of the first copy that learned from little more than so
        many images, and is clearly better than the one then: an attack that learns in rounds may
        hold answers that its copy has not seen. None where there is none.
        """
        now = self.at(images) or 0.0
        for queries, agreement in self.points:
            if images < queries <= SOON * images and agreement > now + BETTER:
                return queries, agreement
        return None

    @property
    def end(self) -> float | None:
        """The last agreement."""
        return self.points[-1][1] if self.points else self.constant


def share_or_none(value: object) -> float | None:
    """A share that a file holds; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= 1 else None


class Drill:
    """What a drill in the directory ``out`` has come to, and who listens for it.

    ``accounts``: the tags of this client. ``curve``: of the copy, as things stand. ``same``: the
    share of recorded images to which the service named the class of the recorded model. Made before
    anything is asked: the lines that the channel has by then do not count. UserError where another
    session of it listened elsewhere.
    """

    def __init__(
        self,
        job: Job,
        listening: Listening,
        accounts: frozenset[str],
        tell: Tell,
        curve: Callable[[], CopyCurve],
    ) -> None:
        self.out = Path(job.config.out or "")
        self._job = job
        self.listening = listening
        self.tell = tell
        self.teacher = teacher_name(document(job)["teacher"])
        self.attack = plain_name(job.config.recipe) or job.method
        self.curve = curve
        before = read(self.out, ChannelRecord) if job.config.resume else None
        self.earlier = read(self.out, DrillResult) if job.config.resume else None
        mark = None if before is None else Mark(before.device, before.inode, before.size)
        tail = Tail(Path(listening.path), mark)
        if tail.trouble:
            raise UserError(f"{_flag(listening)}: cannot be read: {tail.trouble}")
        tags = frozenset([listening.account]) if listening.account else accounts
        channel = AlarmChannel(listening.channel, listening.match, tags)
        self._rang_before = listening.channel == "alarm_file" and (
            rang_before(tail.path, AlarmChannel(listening.channel, listening.match, tags))
            if before is None
            else before.rang_before
        )
        first = _first(self.earlier)
        self.listener = Listener(tail, channel, first, before.early if before else 0)
        self.listener.on_begin = self.keep_channel
        self.listener.on_ring = self._heard
        self._from = tail.mark
        self._stop: Callable[[], None] = lambda: None
        self.same: float | None = None

    def begin(self, meter: ChargedImages, tell: Tell, stop: Callable[[], None]) -> None:
        """Listen from now on; the directory is there, and nothing was asked in this session.

        ``stop`` ends the asking where it goes on to the first alarm alone.
        """
        self.tell = tell
        self._stop = stop
        self.keep_channel(self._from)
        if not self.listener.tail.exists:
            tell(f"{self.listening.path} is not there yet: waiting for it")
        self.listener.start(meter, self.charged)
        if self.is_over:
            stop()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is asked, since it rang."""
        return self.listening.stop_at_alarm and self.listener.first is not None

    def keep_channel(self, mark: Mark | None = None) -> None:
        """Write down how this listens, and from where on."""
        place = asdict(mark or self.listener.tail.mark)
        record = ChannelRecord(
            **asdict(self.listening),
            **place,
            early=self.listener.early,
            rang_before=self._rang_before,
        )
        write(self.out, record)

    @property
    def charged(self) -> int:
        """Images that were charged, by the ledger's file."""
        ledger = self.out / LEDGER
        return audit(ledger).spent if ledger.is_file() else 0

    def result(self, finished: bool, asked: int, refused_at: int | None = None) -> DrillResult:
        """The outcome after so many images, also in drill.json."""
        first = self.listener.first
        curve = self.curve()
        result = DrillResult(
            rang=first is not None,
            images=first.images if first else None,
            agreement=curve.at(first.images) if first else None,
            agreement_end=curve.at(asked) if self.listening.recorded else curve.end,
            constant=curve.constant,
            images_in_all=asked,
            refused_at=refused_at,
            attack=self.attack,
            teacher=self.teacher,
            channel=self.listening.channel,
            alarm=first.alarm.text if first else None,
            recorded=self.listening.recorded,
            finished=finished,
            made=utc_now(),
            text="",
        )
        remarks = self.listener.remarks(self.listening.within)
        remarks = replace(
            remarks,
            same=self.same if finished else None,
            rang_before=self._rang_before,
            soon=curve.soon(first.images) if first else None,
        )
        result = replace(result, text=sentence(result, remarks))
        write(self.out, result)
        return result

    def refused_at(self, error: TeacherError) -> int | None:
        """The images that were asked when the service refused this client for good; None for
        another failure, and for a service that has answered no image of the attack.
        """
        charged = self.charged
        return charged if charged and _is_refusal(error) else None

    def ended(self, finished: bool, refused_at: int | None, tell: Tell) -> DrillResult:
        """The outcome once nothing more is asked; of a drill that is over, after the wait for an
        alarm that comes late.
        """
        self.tell = tell
        until = time.monotonic() + self.listening.wait
        if finished and self.listener.first is None and self.listening.wait:
            tell(f"all is asked; listening for {self.listening.wait:g} s more")
        try:
            while finished and self.listener.first is None and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            again = resume_command(self.out, self._job, "drill")
            tell(f"stopped while listening, all is kept; go on with:\n  {again}")
            raise
        self.listener.stop()
        return self.result(finished, self.charged, refused_at)

    @contextmanager
    def listened(self) -> Iterator[None]:
        """Keep what there is if asking ends by an error, a signal among them; listen no more."""
        try:
            yield
        except BaseException:
            with suppress(OSError, DfmeError):  # the failure itself is told
                self.listener.stop()
                if (self.out / CHANNEL).is_file() and (self.out / LEDGER).is_file():
                    self.result(False, self.charged)
            raise
        finally:
            self.listener.tail.close()

    def _heard(self, ring: Ring) -> None:
        self.result(False, ring.images)
        self.tell(f"RANG after {ring.images:,} images: {ring.alarm.text}")
        if self.is_over:
            self._stop()


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a failure comes from a service that refuses this client for good."""
    while error is not None:
        if isinstance(error, Refused):
            return error.reason in REFUSALS
        error = error.__cause__
    return False


def _first(earlier: DrillResult | None) -> Ring | None:
    """The first alarm that a session before this one saw."""
    if earlier is None or earlier.images is None or earlier.alarm is None:
        return None
    again = AlarmChannel(earlier.channel).hear(earlier.alarm.encode())
    return Ring(earlier.images, again or HeardAlarm(earlier.alarm))


def _flag(listening: Listening) -> str:
    return "--alarm-file" if listening.channel == "alarm_file" else "--webhook-log"
