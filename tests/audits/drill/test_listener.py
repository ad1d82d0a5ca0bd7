"""Who listens: after how many images an alarm was seen, and which alarms are of honest images."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dfme.audits.drill.channel import AlarmChannel, HeardAlarm, Tail
from dfme.audits.drill.listener import Listener, Ring


@dataclass
class Counter:
    """A meter that a test turns."""

    spent: int = 0
    evaluation_queries: int = 0


def ring(path: Path, image: int = 0) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"account": "eve", "detector": "d", "image": image}) + "\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "alarms").touch()
    return tmp_path / "alarms"


def listener_at(path: Path) -> Listener:
    return Listener(Tail(path), AlarmChannel("alarm_file"))


def test_the_first_alarm_counts_with_what_was_charged_when_it_was_seen(path: Path) -> None:
    listener, meter, rings = listener_at(path), Counter(), list[Ring]()
    listener.on_ring = rings.append
    listener.start(meter)
    meter.spent = 50
    listener.look()
    meter.spent = 100
    ring(path, 71)
    listener.look()
    meter.spent = 150
    ring(path, 130)
    listener.stop()
    assert [(each.images, each.alarm.image) for each in rings] == [(100, 71)]
    assert listener.first == rings[0]


def test_it_hears_by_itself_within_a_moment(path: Path) -> None:
    listener = listener_at(path)
    listener.start(Counter(7))
    ring(path)
    until = time.monotonic() + 5
    while listener.first is None and time.monotonic() < until:
        time.sleep(0.001)
    assert listener.first is not None
    listener.stop()


def test_what_comes_before_the_first_image_is_of_honest_images(path: Path) -> None:
    listener, meter, begun = listener_at(path), Counter(0, 20), list[int]()
    listener.on_begin = lambda: begun.append(listener.early)
    listener.start(meter)
    ring(path, 5)
    listener.look()
    assert (listener.early, listener.first, begun) == (1, None, [])
    with listener._lock:  # as if nobody had looked since
        ring(path, 19)
        meter.spent = 50
    listener.look()
    assert (listener.early, listener.first) == (2, None)
    assert begun == [2]
    ring(path, 19)  # of a service that was started anew
    listener.stop()
    assert (listener.early, listener.first is not None, begun) == (2, True, [2])


def test_images_of_sessions_before_are_not_forgotten(path: Path) -> None:
    listener, meter = listener_at(path), Counter(100)
    listener.start(meter, charged=180)
    ring(path)
    listener.look()
    assert listener.first is not None
    assert listener.first.images == 180
    listener.stop()


def test_what_goes_wrong_in_its_thread_is_raised_at_the_end(path: Path) -> None:
    class Broken:
        @property
        def spent(self) -> int:
            if self.turns:
                raise OSError("gone")
            self.turns = 1
            return 0

        turns = 0
        evaluation_queries = 0

    listener = listener_at(path)
    listener.start(Broken())
    time.sleep(0.1)
    with pytest.raises(OSError, match="gone"):
        listener.stop()


def test_a_flood_does_not_hold_it_up(path: Path) -> None:
    listener = listener_at(path)
    line = json.dumps({"account": "eve", "detector": "d", "image": 1}).encode() + b"\n"
    path.write_bytes(line * 200_000)  # 10 MB: more than one look takes
    listener._meter = Counter(3)
    listener._spent = 3
    started = time.process_time()
    listener.look()
    assert listener.tail.mark.size < path.stat().st_size
    assert time.process_time() - started < 3
    listener.tail.close()


def test_a_channel_that_rang_was_there(tmp_path: Path) -> None:
    """In a session before this one, also if its file was moved away since."""
    gone = listener_at(tmp_path / "gone")
    assert "was never there" in gone.remarks(None).missing
    gone.first = Ring(50, HeardAlarm("alarm"))
    assert not gone.remarks(None).missing
