"""The owner's alarm channel: which lines of a growing file count, whatever becomes of the file."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from dfme.audits.drill.channel import (
    MAX_ACCOUNTS,
    MAX_LINE,
    MAX_READ,
    AlarmChannel,
    HeardAlarm,
    Mark,
    Tail,
)


def lines_of(tail: Tail) -> list[bytes]:
    """All that is there to read."""
    lines: list[bytes] = []
    while some := tail.read():
        lines += some
    return lines


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_whole_lines_that_came_since_are_read_each_once(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    path.write_text("before\n")
    tail = Tail(path)
    assert lines_of(tail) == []
    append(path, "one\ntw")
    assert lines_of(tail) == [b"one"]
    append(path, "o\n\n \nthree\n")
    assert lines_of(tail) == [b"two", b"three"]


def test_a_line_that_began_before_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    path.write_text("a first ha")
    tail = Tail(path)
    append(path, "lf\nnew\n")
    assert lines_of(tail) == [b"new"]


def test_a_file_that_is_not_there_yet_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "later" / "alarms"
    tail = Tail(path)
    assert (tail.exists, tail.trouble, lines_of(tail)) == (False, "", [])
    path.parent.mkdir()
    append(path, "one\n")
    assert lines_of(tail) == [b"one"]
    assert tail.exists


def test_a_rotated_file_is_read_to_its_end_and_the_new_one_from_its_beginning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "alarms"
    append(path, "before\n")
    tail = Tail(path)
    append(path, "one\n")
    path.rename(tmp_path / "alarms.1")
    append(tmp_path / "alarms.1", "two\n")
    assert lines_of(tail) == [b"one", b"two"]
    append(path, "three\n")
    assert lines_of(tail) == [b"three"]


def test_a_file_that_was_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    append(path, "a long line before\n")
    tail = Tail(path)
    path.write_text("short\n")
    assert lines_of(tail) == [b"short"]


def test_a_link_is_followed_to_its_file_also_where_it_is_turned_to_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before\n")
    (tmp_path / "b").write_text("new\n")
    link = tmp_path / "alarms"
    link.symlink_to("a")
    tail = Tail(link)
    append(tmp_path / "a", "one\n")
    assert lines_of(tail) == [b"one"]
    link.unlink()
    link.symlink_to("nowhere")
    assert lines_of(tail) == []
    link.unlink()
    link.symlink_to("b")
    assert lines_of(tail) == [b"new"]


def test_what_is_no_file_or_may_not_be_read_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        tail = Tail(tmp_path / name)
        assert "no file" in tail.trouble
        assert lines_of(tail) == []
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert Tail(loop).trouble
    (tmp_path / "locked").write_text("x\n")
    (tmp_path / "locked").chmod(0)
    if os.geteuid():
        assert "ermission" in Tail(tmp_path / "locked").trouble


def test_a_file_that_cannot_be_read_for_a_while_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    path = tmp_path / "alarms"
    path.touch()
    tail = Tail(path)
    append(path, "one\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        assert lines_of(tail) == []
        assert tail.trouble == "Input/output error"
    assert lines_of(tail) == [b"one"]
    assert tail.trouble == ""


def test_a_later_session_goes_on_where_the_mark_stands(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    append(path, "before\n")
    first = Tail(path)
    mark = first.mark
    append(path, "one\ntwo\nto")
    assert lines_of(first) == [b"one", b"two"]
    assert lines_of(Tail(path, mark)) == [b"one", b"two"]
    append(path, "rn\n")
    assert lines_of(Tail(path, first.mark)) == [b"torn"]
    path.unlink()
    append(path, "other\n")
    assert lines_of(Tail(path, mark)) == [b"other"]
    assert lines_of(Tail(path, Mark())) == [b"other"]


def test_a_line_without_end_is_cut_and_its_rest_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    tail = Tail(path)
    append(path, "a" * (MAX_LINE + 10))
    assert lines_of(tail) == [b"a" * MAX_LINE]
    append(path, "b" * 3 * MAX_LINE)
    append(path, "\nnext\n")
    assert lines_of(tail) == [b"next"]


@pytest.mark.exhaustive
def test_a_flood_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "alarms"
    tail = Tail(path)
    line = b"alarm " + b"x" * 93 + b"\n"
    count = 1_000_000
    with path.open("wb") as file:
        for _ in range(100):
            file.write(line * (count // 100))
    tracemalloc.start()
    seen = 0
    while some := tail.read():
        seen += len(some)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == count
    assert most < 8 * MAX_READ


ENTRY = {"at": "2026", "account": "eve", "detector": "labels", "image": 71}


def line(**changed: object) -> bytes:
    return json.dumps({**ENTRY, **changed}).encode()


def test_an_alarm_has_its_line_its_detector_and_its_image() -> None:
    channel = AlarmChannel("alarm_file")
    text = line().decode()
    assert channel.hear(line()) == HeardAlarm(text, "labels", 71)
    for image in (None, "71", 7.5, True, -1, 0, 10**30):
        heard = channel.hear(line(image=image))
        assert heard is not None
        assert heard.image is None
    assert channel.unreadable == 0


@pytest.mark.parametrize(
    "content",
    [
        b"ALARM",
        b"{}",
        b"[1]",
        b'"detector"',
        b"null",
        b'{"detector": "labels"}',
        b'{"detector": 1, "account": "eve"}',
        b'{"detector": "labels", "account": ["eve"]}',
        b"[" * 100_000,
        b'{"image": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe\x00",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_what_is_no_alarm_is_counted_as_unreadable(content: bytes) -> None:
    channel = AlarmChannel("alarm_file")
    assert channel.hear(content) is None
    assert channel.unreadable == 1
    heard = AlarmChannel("webhook_log").hear(content)
    assert heard is not None
    assert heard.text.isprintable()
    assert len(heard.text) <= 300


def test_alarms_of_this_account_and_of_all_traffic_count_others_by_their_names() -> None:
    channel = AlarmChannel("alarm_file", accounts=frozenset(["eve", "anybody"]))
    assert channel.hear(line())
    assert channel.hear(line(account="all"))
    assert channel.hear(line(account="mallory\x1b[2J")) is None
    assert channel.others == {"mallory?[2J": 1}
    for number in range(1_000):
        assert channel.hear(line(account=f"user {number}")) is None
    assert len(channel.others) <= MAX_ACCOUNTS + 1
    assert channel.others.total() == 1_001


def test_only_a_line_that_holds_the_text_counts() -> None:
    channel = AlarmChannel("webhook_log", match="stealing")
    assert channel.hear(b"disk full") is None
    assert channel.hear(b"model-stealing suspected\x1b]0;owned\x07") == HeardAlarm(
        "model-stealing suspected?]0;owned?"
    )
    named = AlarmChannel("alarm_file", match='"labels"')
    assert named.hear(line(detector="prada")) is None
    assert named.hear(line()) is not None
