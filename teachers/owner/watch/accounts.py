"""A recorded attack as detectors would have seen it from many accounts: offline, nobody is asked.

Image i goes to account i mod A. So every account begins at once, has a fair sample of what was
asked, and as few images as A accounts allow: blocks of consecutive images would leave an account
what a detector looks for, pairs of images beside each other above all. A detector of all traffic
(``of_all_traffic``) sees the whole stream, whoever sent it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dfme.compute.modules import Seldom
from dfme.config.imports import blaming
from dfme.data.recorded_queries import RecordedQueries
from dfme.errors import RunError, TeacherError
from dfme.measured import ACCOUNTS, SplitAttack
from dfme.spec import ImageSpec
from dfme.teachers.owner.watch.detector import MAX_TOGETHER, Detector, Observation
from dfme.teachers.owner.watch.watch import Watch

Tell = Callable[[str], None]


def split(
    watch: Watch, spec: ImageSpec, recorded: Mapping[str, Path], tell: Tell
) -> list[SplitAttack]:
    """What each detector of a calibrated watch says of recorded queries, for each of ``ACCOUNTS``.

    ``recorded``: by a run's name the folder of its queries, to a teacher of these images.
    RunError, in one line, for a record that does not fit.
    """
    seldom = Seldom(tell)
    began = time.monotonic()
    rows = list[SplitAttack]()
    for name, folder in recorded.items():
        stream = _RecordedStream(folder, spec, watch)
        for accounts in ACCOUNTS:
            rows += _rows(name, accounts, stream, watch, seldom)
    attacks = f"{len(recorded)} attack{'' if len(recorded) == 1 else 's'}"
    seconds = time.monotonic() - began
    tell(f"scored {attacks} from 1 to {ACCOUNTS[-1]:,} accounts in {seconds:.1f} s")
    return rows


class _RecordedStream:
    """The queries of a record. RunError for those of another teacher, or without distances that
    the detectors need.
    """

    def __init__(self, folder: Path, spec: ImageSpec, watch: Watch) -> None:
        self._record = RecordedQueries(folder)
        form = self._record.form
        if form.spec != spec or (watch.features is not None and not form.distance):
            raise RunError(f"{folder}: expected queries to this teacher, recorded under this watch")
        self._spec = spec
        self._at_once = spec.at_once(MAX_TOGETHER)

    def __len__(self) -> int:
        return len(self._record)

    def share(self, account: int, accounts: int) -> Iterator[Observation]:
        """What an account of so many sent, in its order, a part at a time."""
        record = self._record
        for start in range(account, len(record), self._at_once * accounts):
            part = start, min(start + self._at_once * accounts, len(record)), accounts
            yield Observation.of_sent(
                self._spec, record.images(*part), record.scores(*part), record.distances(*part)
            )


def _rows(
    name: str, accounts: int, stream: _RecordedStream, watch: Watch, seldom: Seldom
) -> Iterator[SplitAttack]:
    """A row for each detector; accounts without an image are none."""
    first = dict[str, int | None]()
    alarmed = dict[str, int]()
    for account in range(min(accounts, len(stream))):
        detectors = watch.make_detectors()
        ours = {name: one for name, one in detectors.items() if not one.of_all_traffic}
        for detector, place in _first_alarms(ours, stream, account, accounts):
            alarmed[detector] = alarmed.get(detector, 0) + 1
            first[detector] = min(first.get(detector) or len(stream), place)
        seldom(f"scored {name}: {account + 1:,} of {accounts:,} accounts")
    everyone = {name: one for name, one in watch.make_detectors().items() if one.of_all_traffic}
    first |= dict(_first_alarms(everyone, stream, 0, 1))
    for detector in watch.names:
        yield SplitAttack(
            cell=name,
            detector=detector,
            accounts=accounts,
            images=len(stream),
            most=-(-len(stream) // accounts),
            alarmed=None if detector in everyone else alarmed.get(detector, 0),
            first_alarm=first.get(detector),
        )


def _first_alarms(
    detectors: Mapping[str, Detector], stream: _RecordedStream, account: int, accounts: int
) -> Iterator[tuple[str, int]]:
    """Detectors that raise an alarm over an account, each with the images that all accounts had
    sent by then.
    """
    waiting = dict(detectors)
    images = 0
    for seen in stream.share(account, accounts) if detectors else ():
        for name, detector in [*waiting.items()]:
            with blaming(f"detector {name}", TeacherError):
                alarm_B = detector.see(seen).alarm_B
            if alarm_B.any():
                del waiting[name]  # what it says later does not count
                yield name, (images + int(alarm_B.int().argmax())) * accounts + account + 1
        images += len(seen)
