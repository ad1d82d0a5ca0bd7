"""The watch over who asks a teacher: each account's detectors, those of all traffic, and what
follows an alarm.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from dfme.compute.modules import copied, defaults_kept, validate_like
from dfme.config.defences import NEED_FEATURES, OnAlarm
from dfme.config.imports import blaming, find_target
from dfme.errors import DfmeError, Refused, TeacherError, UserError, flag
from dfme.spec import Teacher
from dfme.teachers.owner.features import (
    Mahalanobis,
    as_asked,
    ask_inside,
    custom_state,
    require_form,
)
from dfme.teachers.owner.utility import corrupted
from dfme.teachers.owner.watch import DETECTORS
from dfme.teachers.owner.watch.alarms import ALL, AccountWatch, Alarm, WindowLargest
from dfme.teachers.owner.watch.detector import (
    MAX_TOGETHER,
    UNIT,
    Benign,
    Detector,
    Observation,
    Reading,
    held_out,
)

MAX_ACCOUNTS = 256  # of more, the one longest silent is forgotten, of those without an alarm first
WINDOW = 50  # images between two lines of statistics
TRAFFIC = "all traffic"  # in a state, where an account has its tag


class Watch:
    """Detectors ``names`` over every account of ``teacher``, calibrated on held-out ``data``; those
    of all traffic over all accounts as one.

    These are every second image, in an order drawn by seed 0, of its test part, as they are and
    corrupted; the means behind the distances are its train part's. ``account`` is whose images are
    seen next. ``record``, if there is one, is called with account, number of the first image, and
    images, ``alarmed`` with alarms, and ``sent`` with images as they were sent, their probabilities
    and distances. ``logged``: features are looked at even if no detector needs them. UserError for
    data or a network that do not fit.
    """

    def __init__(
        self,
        teacher: Teacher,
        names: Sequence[str],
        data: str | None,
        on_alarm: OnAlarm,
        logged: bool = False,
    ) -> None:
        self.names = tuple(names)
        self.on_alarm = on_alarm
        self.account = ""
        self._teacher = teacher
        self.record: Callable[[str, int, Observation], None] | None = None
        self.alarmed: Callable[[Alarm], None] = lambda alarm: None
        self.sent: Callable[[Tensor, Tensor, Tensor | None], None] | None = None
        self._form: Callable[[Observation], Observation] = lambda seen: seen
        self._events = list[Alarm | WindowLargest]()
        self._accounts = dict[str, AccountWatch]()
        self._traffic: AccountWatch | None = None
        self.of_all = frozenset[str]()  # names of those detectors that are of all traffic
        self.features = None
        needing = ", ".join(name for name in names if name in NEED_FEATURES)
        if data is not None and (needing or (logged and teacher.info.network)):
            what = f"{flag('teacher.watch')}: {needing or flag('record')} with benign"
            self.features = Mahalanobis(teacher, data, what)
        if data is not None and names:
            _require_class_thresholds(names)
            self._calibrate(data)

    def _calibrate(self, data: str) -> None:
        """Ask the teacher about held-out images; what cannot read them is known before anybody
        asks.
        """
        test, calibration_N, _ = held_out(data, self._teacher.spec)
        x_BCHW = test.batch(calibration_N)
        worse_BCHW = corrupted(x_BCHW, UNIT, torch.Generator().manual_seed(0)).clamp(0, 1)
        plain = self._observed(x_BCHW)
        self._benign = Benign(plain, self._observed(worse_BCHW), self._teacher.num_classes)
        made = {name: _make_detector(name, self._benign) for name in self.names}
        self.of_all = frozenset(name for name, each in made.items() if each.of_all_traffic)
        for name, detector in made.items():
            subject = f"detector {name}"
            form = copied(custom_state(detector, subject, UserError))
            _reading(name, detector, plain[:2], UserError)
            require_form(form, detector.state, subject, UserError)

    @property
    def knows(self) -> bool:
        """True if this account has asked before."""
        return self.account in self._accounts

    @property
    def images(self) -> int:
        """Images of this account that were looked at."""
        return self._accounts[self.account].images if self.knows else 0

    def admit(self) -> None:
        """Refused, under ``refuse``, for an account over which an alarm was raised."""
        if self.on_alarm == "refuse" and (alarms := self._current().alarms):
            raise Refused(
                f"an alarm was raised for this account ({alarms} that the watch saw)",
                "watch",
                retry=False,
            )

    def see(self, images_BCHW: Tensor, p_BK: Tensor, distance_B: Tensor | None) -> Tensor:
        """Look at a request of this account in parts; whether the top class alone is to be answered
        (B,).

        Refused, under ``refuse``, where images are left after the part with an alarm; they are not
        looked at.
        """
        seen = self._form(Observation.of_sent(self._teacher.spec, images_BCHW, p_BK, distance_B))
        cut_B = torch.zeros(len(seen), dtype=torch.bool)
        for start in range(0, len(seen), MAX_TOGETHER):
            self.admit()
            cut_B[start:] = self.on_alarm == "label" and bool(self._current().alarms)
            part = slice(start, start + MAX_TOGETHER)
            self.observe(seen[part])
            if self.sent is not None:
                self.sent(images_BCHW[part], p_BK[part], seen[part].distance_B)
        return cut_B

    def recalibrate_for_log(
        self, form: Callable[[Observation], Observation], names: Sequence[str]
    ) -> None:
        """Let these detectors see ``form`` of images, calibrated on the same; asks nothing."""
        benign = self._benign
        self._form = form
        self.names = tuple(names)
        self._accounts = {}
        self._traffic = None
        self._benign = Benign(form(benign.plain), form(benign.corrupted), benign.classes)

    def observe(self, seen: Observation) -> None:
        """The next images of this account, in the form in which detectors see them."""
        if self.record is not None:
            self.record(self.account, self._current().images + 1, seen)
        self.observe_account(seen)
        self.observe_traffic(seen)

    def observe_account(self, seen: Observation) -> None:
        """The same for this account's detectors alone."""
        self._observe(self._current(), self.account, seen)

    def observe_traffic(self, seen: Observation) -> None:
        """The same for the detectors of all traffic alone."""
        if self.of_all:
            self._observe(self._all_traffic(), ALL, seen)

    def _observe(self, account: AccountWatch, tag: str, seen: Observation) -> None:
        readings = {
            name: _reading(name, detector, seen, TeacherError)
            for name, detector in account.detectors.items()
        }
        start = 0
        while start < len(seen):
            part = slice(start, start + WINDOW - account.images % WINDOW)
            for name, reading in readings.items():
                self._take(account, tag, name, reading[part])
            account.images += len(seen[part])
            if account.images % WINDOW == 0 and readings:
                self._events.append(
                    WindowLargest(
                        tag,
                        account.images,
                        {name: each.end_window() for name, each in account.figures.items()},
                    )
                )
            start = part.stop

    def _take(self, account: AccountWatch, tag: str, name: str, reading: Reading) -> None:
        """Note what a detector says of the next images, within one window."""
        values = reading.statistic_B.nan_to_num().tolist()
        figures = account.figures[name]
        figures.take(values, account.in_session)
        for place in reading.alarm_B.nonzero().flatten().tolist():
            image = account.images + 1 + place
            alarm = Alarm(
                account=tag,
                detector=name,
                statistic=values[place],
                threshold=account.detectors[name].threshold,
                image=image,
                is_first=figures.take_alarm(image),
            )
            self._events.append(alarm)
            self.alarmed(alarm)

    def take_events(self) -> list[Alarm | WindowLargest]:
        """Since the last call: every alarm and, every 50 images, each detector's largest
        statistic.
        """
        events = self._events
        self._events = []
        return events

    def drain(self) -> list[dict[str, Any]]:
        """The events since the last call as lines of watch.jsonl, which is of one account: the
        windows of all traffic are its own.
        """
        lines = list[dict[str, Any]]()
        windows = dict[int, dict[str, float]]()
        for event in self.take_events():
            if isinstance(event, Alarm):
                lines.append(event.line())
            elif event.account == ALL and event.images in windows:
                windows[event.images].update(event.largest)
            else:
                windows[event.images] = {**event.largest}
                lines.append({**event.line(), "largest": windows[event.images]})
        return lines

    def report(self) -> dict[str, Any]:
        """Findings about this account, and about all traffic, for summary.json."""
        account = self._current()
        report = account.report() | (self._all_traffic().report() if self.of_all else {})
        return {
            "images": account.images,
            "on_alarm": self.on_alarm,
            "detectors": {name: report[name] for name in self.names},
        }

    def state_dict(self) -> dict[str, Any]:
        state = {tag: account.state_dict() for tag, account in self._accounts.items()}
        if self._traffic is not None:
            state[TRAFFIC] = self._traffic.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; an empty state forgets every account, and all
        traffic.
        """
        traffic = self._new(True) if TRAFFIC in state and self.of_all else None
        accounts = {tag: self._new(False) for tag in state if tag != TRAFFIC}
        for tag, account in ({**accounts, TRAFFIC: traffic} if traffic else accounts).items():
            validate_like(account.state_dict(), state[tag], "teacher.watch")
            account.load_state_dict(state[tag])
        self._accounts = accounts
        self._traffic = traffic

    def _all_traffic(self) -> AccountWatch:
        """All accounts as one, which is never forgotten."""
        if self._traffic is None:
            self._traffic = self._new(True)
        return self._traffic

    def _current(self) -> AccountWatch:
        """The account that asks now, which becomes the latest."""
        current = self._accounts.pop(self.account, None) or self._new(False)
        if len(self._accounts) >= MAX_ACCOUNTS:
            quiet = (tag for tag, account in self._accounts.items() if not account.alarms)
            del self._accounts[next(quiet, next(iter(self._accounts)))]
        self._accounts[self.account] = current
        return current

    def make_detectors(self) -> dict[str, Detector]:
        """New ones of every name, which have seen nothing."""
        return {name: _make_detector(name, self._benign) for name in self.names}

    def _new(self, of_all: bool) -> AccountWatch:
        """An account that has asked nothing: its detectors, or those of all traffic."""
        names = [name for name in self.names if (name in self.of_all) == of_all]
        return AccountWatch({name: _make_detector(name, self._benign) for name in names})

    def _observed(self, x_BCHW: Tensor) -> Observation:
        """Images within 0 and 1 as the teacher would see them."""
        most = self._teacher.info.max_batch or self._teacher.spec.at_once(256)
        parts = as_asked(x_BCHW, self._teacher).split(most)
        answers = [ask_inside(self._teacher, part_BCHW, self.features) for part_BCHW in parts]
        distances = [part.distance_B for part in answers if part.distance_B is not None]
        return Observation(
            x_BCHW,
            torch.cat([part.p_BK for part in answers]),
            torch.cat(distances) if distances else None,
        )


def _make_detector(name: str, benign: Benign) -> Detector:
    """A detector for one account. UserError for what is none."""
    subject = f"detector {name}"
    make = find_target(DETECTORS.get(name, name), "detector")
    with blaming(subject, UserError), defaults_kept(subject, UserError):
        detector = make(benign)
    if not isinstance(detector, Detector):
        expected = "expected a class derived from Detector, as docs/extending.md has one"
        raise UserError(f"{subject}: {expected}; got {detector!r:.80}")
    with blaming(subject, UserError):
        threshold: Any = detector.threshold
    _require_threshold(subject, threshold, UserError)
    return detector


def _reading(name: str, detector: Detector, seen: Observation, error: type[DfmeError]) -> Reading:
    """What a detector says of the next images. Raises ``error``, with its name, if that is
    unusable.
    """
    subject = f"detector {name}"
    with blaming(subject, error), defaults_kept(subject, error):
        reading = detector.see(seen)
        statistic_B = reading.statistic_B
        alarm_B = reading.alarm_B
        threshold: Any = detector.threshold
    _require_threshold(subject, threshold, error)
    form = (len(seen),)
    if statistic_B.shape != form or alarm_B.shape != form or alarm_B.dtype != torch.bool:
        raise error(f"{subject}: expected {len(seen)} numbers and bools, one for each image")
    return reading


def _require_threshold(subject: str, threshold: Any, error: type[DfmeError]) -> None:
    """Raise ``error`` for a threshold that is no finite number.

    Against infinity or NaN no statistic ever is an alarm; a bool is a slip.
    """
    finite = isinstance(threshold, Real) and not isinstance(threshold, bool)
    if finite:
        try:
            finite = math.isfinite(threshold)
        except OverflowError:  # an int beyond all floats
            finite = False
    if not finite:
        with blaming(subject, error):
            text = f"{threshold!r:.60}"
        raise error(f"{subject}: its threshold: expected a finite number, got {text}")


def _require_class_thresholds(names: Sequence[str]) -> None:
    """UserError for a class whose objects can have no other threshold than an unusable one.

    It is raised before the teacher is asked what the detectors are calibrated on.
    """
    for name in names:
        make = find_target(DETECTORS.get(name, name), "detector")
        plain = getattr(make, "__init__", None) is Detector.__init__  # no other may be set there
        threshold = getattr(make, "threshold", 0.0)
        if plain and not hasattr(threshold, "__get__"):
            _require_threshold(f"detector {name}", threshold, UserError)
