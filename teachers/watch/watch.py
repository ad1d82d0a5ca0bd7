"""The watch over who asks a teacher: each account's detectors, what they found, and what follows an
alarm.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dfme.answers.reading import read_answers
from dfme.compute import DeferredChecks, copied, defaults_kept, validate_like
from dfme.config.detectors import NEED_FEATURES, OnAlarm
from dfme.config.imports import blaming, find_target
from dfme.errors import DfmeError, Refused, TeacherError, UserError, flag
from dfme.spec import LabelMode, Teacher
from dfme.teachers.defences.defence import Mahalanobis, taken
from dfme.teachers.own_state import own_state, require_form
from dfme.teachers.utility import corrupted
from dfme.teachers.watch import DETECTORS
from dfme.teachers.watch.detector import MAX_TOGETHER, Benign, Detector, Observation, Reading
from dfme.teachers.watch.streams import SESSION, UNIT, held_out

MAX_ACCOUNTS = 256  # of more, the one longest silent is forgotten, of those without an alarm first
WINDOW = 50  # images between two lines of statistics
CPU = torch.device("cpu")
PROBABILITIES = LabelMode("probabilities")
LOGITS = LabelMode("logits")
NONE_YET = torch.finfo(torch.float64).min


def asked(
    teacher: Teacher, images: Tensor, features: Mahalanobis | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Answers, their probabilities in float64 and, with ``features``, squared distances."""
    given = teacher.label_mode
    with nullcontext(list[Tensor]()) if features is None else features.listening() as kept:
        raw = read_answers(
            teacher(images), len(images), teacher.num_classes, given, DeferredChecks(), CPU
        )
    p_BK = raw.double().softmax(1) if given == LOGITS else raw
    if given == PROBABILITIES:
        p_BK = normalize(raw.double().clamp(min=0), p=1.0)
    return raw, p_BK, None if features is None else features.distances(kept)


def _reading(name: str, detector: Detector, seen: Observation, error: type[DfmeError]) -> Reading:
    """What a detector says of the next images. Raises ``error``, with its name, if that is
    unusable.
    """
    subject = f"detector {name}"
    with blaming(subject, error), defaults_kept(subject, error):
        statistic_B, alarm_B = detector.see(seen)
        threshold: Any = detector.threshold
    _require_threshold(subject, threshold, error)
    form = (len(seen),)
    if statistic_B.shape != form or alarm_B.shape != form or alarm_B.dtype != torch.bool:
        raise error(f"{subject}: expected {len(seen)} numbers and bools, one for each image")
    return Reading(statistic_B, alarm_B)


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
            shown = f"{threshold!r:.60}"
        raise error(f"{subject}: its threshold: expected a finite number, got {shown}")


class _Account:
    """An account's state; ``figures``: first alarm or 0, alarms, largest, largest_600, window's."""

    def __init__(self, detectors: dict[str, Detector]) -> None:
        self.images = 0
        self.detectors = detectors
        self.figures = {name: [0.0, 0.0, NONE_YET, NONE_YET, NONE_YET] for name in detectors}

    @property
    def alarmed_at(self) -> str:
        return ", ".join(
            f"{name} at image {each[0]:,.0f}" for name, each in self.figures.items() if each[0]
        )

    def state_dict(self) -> dict[str, Any]:
        figures_D5 = torch.tensor([*self.figures.values()], dtype=torch.float64)
        states = {name: each.state_dict() for name, each in self.detectors.items()}
        return {"images": self.images, "figures": figures_D5, "detectors": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images = state["images"]
        self.figures = dict(zip(self.figures, state["figures"].tolist(), strict=True))
        for name, found in state["detectors"].items():
            self.detectors[name].load_state_dict(found)


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


class Watch:
    """Detectors ``names`` over every account of ``teacher``, calibrated on held-out ``data``.

    These are every second image, in an order drawn by seed 0, of its test part, as they are and
    corrupted; the means behind the distances are its train part's. ``account`` is whose images are
    seen next. ``record``, if there is one, is called with account, number of the first image, and
    images, ``alarmed`` with alarms. UserError for data or a network that do not fit.
    """

    def __init__(
        self,
        teacher: Teacher,
        names: Sequence[str],
        data: str | None,
        on_alarm: OnAlarm,
        recorded: bool = False,
    ) -> None:
        self.names = tuple(names)
        self.on_alarm = on_alarm
        self.account = ""
        self._teacher = teacher
        self.record: Callable[[str, int, Observation], None] | None = None
        self.alarmed: Callable[[dict[str, Any]], None] = lambda alarm: None
        self._form: Callable[[Observation], Observation] = lambda seen: seen
        self._lines = list[dict[str, Any]]()
        self._accounts = dict[str, _Account]()
        self.features = None
        needing = ", ".join(name for name in names if name in NEED_FEATURES)
        if data is not None and (needing or (recorded and teacher.info.network)):
            what = f"{flag('teacher.watch')}: {needing or flag('record')} with benign"
            self.features = Mahalanobis(teacher, data, what)
        if data is not None and names:
            _require_class_thresholds(names)
            test, calibration_N, _ = held_out(data, teacher.spec)
            x_BCHW = test.batch(calibration_N)
            rng = torch.Generator().manual_seed(0)
            plain, worse = (
                self._seen(each) for each in (x_BCHW, corrupted(x_BCHW, UNIT, rng).clamp(0, 1))
            )
            self._benign = Benign(plain, worse, teacher.num_classes)
            for name, each in self._made().items():  # what cannot read is known before anybody asks
                form = copied(own_state(each, f"detector {name}", UserError))
                _reading(name, each, self._benign.plain[:2], UserError)
                require_form(form, each.state, f"detector {name}", UserError)

    @property
    def knows(self) -> bool:
        """True if this account has asked before."""
        return self.account in self._accounts

    def admit(self) -> None:
        """Refused, under ``refuse``, for an account over which an alarm was raised."""
        if self.on_alarm == "refuse" and (alarmed_at := self._own().alarmed_at):
            said = f"an alarm was raised for this account ({alarmed_at} that the watch saw)"
            raise Refused(said, "watch", retry=False)

    def see(self, images_BCHW: Tensor, p_BK: Tensor, distance_B: Tensor | None) -> Tensor:
        """Look at a request of this account in parts; whether the top class alone is to be answered
        (B,).

        Refused, under ``refuse``, where images are left after the part with an alarm; they are not
        looked at.
        """
        low, high = self._teacher.spec.bounds
        x_BCHW = ((images_BCHW.cpu().float() - low) / (high - low)).clamp(0, 1)
        seen = self._form(Observation(x_BCHW, p_BK, distance_B))
        cut_B = torch.zeros(len(seen), dtype=torch.bool)
        for start in range(0, len(seen), MAX_TOGETHER):
            self.admit()
            cut_B[start:] = self.on_alarm == "label" and bool(self._own().alarmed_at)
            self.observe(seen[start : start + MAX_TOGETHER])
        return cut_B

    def recalibrate_for_log(
        self, form: Callable[[Observation], Observation], names: Sequence[str]
    ) -> None:
        """Let these detectors see ``form`` of images, calibrated on the same; asks nothing."""
        benign = self._benign
        self._form = form
        self.names = tuple(names)
        self._accounts = {}
        self._benign = Benign(form(benign.plain), form(benign.corrupted), benign.classes)

    def observe(self, seen: Observation) -> None:
        """The next images of this account, in the form in which detectors see them."""
        own = self._own()
        if self.record is not None:
            self.record(self.account, own.images + 1, seen)
        readings = dict[str, Reading]()
        for name, each in own.detectors.items():
            readings[name] = _reading(name, each, seen, TeacherError)
        start = 0
        while start < len(seen):
            part = slice(start, start + WINDOW - own.images % WINDOW)
            for name, (statistic_B, alarm_B) in readings.items():
                values = statistic_B[part].nan_to_num().tolist()
                figures = own.figures[name]
                figures[2], figures[4] = max(figures[2], *values), max(figures[4], *values)
                figures[3] = figures[3] if own.images >= SESSION else figures[2]
                for image in (own.images + 1 + alarm_B[part].nonzero().flatten()).tolist():
                    figures[:2] = figures[0] or image, figures[1] + 1
                    line = {
                        "images": image,
                        "alarm": name,
                        "statistic": values[image - own.images - 1],
                    }
                    self._lines.append(line | {"first": figures[0] == image})
                    alarm = {
                        "account": self.account,
                        "detector": name,
                        "statistic": line["statistic"],
                    }
                    self.alarmed(
                        alarm | {"threshold": own.detectors[name].threshold, "image": image}
                    )
            own.images += len(seen[part])
            if own.images % WINDOW == 0 and readings:
                largest = {name: figures.pop() for name, figures in own.figures.items()}
                self._lines.append({"images": own.images, "largest": largest})
                own.figures = {name: [*figures, NONE_YET] for name, figures in own.figures.items()}
            start = part.stop

    def drain(self) -> list[dict[str, Any]]:
        """Since the last call: every alarm and, every 50 images, each detector's largest
        statistic.
        """
        lines = self._lines
        self._lines = []
        return lines

    def report(self) -> dict[str, Any]:
        """Findings about this account, for summary.json."""
        own = self._own()
        found = dict[str, Any]()
        for name, (first, alarms, largest, largest_600, _) in own.figures.items():
            each = own.detectors[name]
            found[name] = {
                "first_alarm": int(first) or None,
                "alarms": int(alarms),
                "largest": largest if own.images else None,
                "largest_600": largest_600 if own.images >= SESSION else None,
                "threshold": each.threshold,
                "memory_mb": each.memory_mb,
                "statistic": each.statistic,
            }
        return {"images": own.images, "on_alarm": self.on_alarm, "detectors": found}

    def state_dict(self) -> dict[str, Any]:
        return {tag: each.state_dict() for tag, each in self._accounts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; an empty state forgets every account."""
        accounts = {tag: _Account(self._made()) for tag in state}
        for tag, each in accounts.items():
            validate_like(each.state_dict(), state[tag], "teacher.watch")
            each.load_state_dict(state[tag])
        self._accounts = accounts

    def _own(self) -> _Account:
        """The account that asks now, which becomes the latest."""
        own = self._accounts.pop(self.account, None) or _Account(self._made())
        if len(self._accounts) >= MAX_ACCOUNTS:
            quiet = (tag for tag, each in self._accounts.items() if not each.alarmed_at)
            del self._accounts[next(quiet, next(iter(self._accounts)))]
        self._accounts[self.account] = own
        return own

    def _made(self) -> dict[str, Detector]:
        made = dict[str, Detector]()
        for name in self.names:
            make = find_target(DETECTORS.get(name, name), "detector")
            subject = f"detector {name}"
            with blaming(subject, UserError), defaults_kept(subject, UserError):
                made[name] = make(self._benign)
            if not isinstance(made[name], Detector):
                expected = "expected a class derived from Detector, as docs/extending.md has one"
                raise UserError(f"detector {name}: {expected}; got {made[name]!r:.80}")
            with blaming(subject, UserError):
                threshold: Any = made[name].threshold
            _require_threshold(subject, threshold, UserError)
        return made

    def _seen(self, x_BCHW: Tensor) -> Observation:
        """Images within 0 and 1 as the teacher would see them."""
        most = self._teacher.info.max_batch or self._teacher.spec.at_once(256)
        parts = taken(x_BCHW, self._teacher).split(most)
        _, p, distances = zip(
            *(asked(self._teacher, each, self.features) for each in parts), strict=True
        )
        return Observation(x_BCHW, torch.cat(p), torch.cat(distances) if self.features else None)
