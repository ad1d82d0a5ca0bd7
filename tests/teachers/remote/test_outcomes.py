"""What a status means: whether anything was served, whether to come back, and when."""

import time
from email.utils import formatdate

import pytest
from clients import failed
from hypothesis import given
from hypothesis import strategies as st
from service import Do, http, then

from dfme.errors import Unanswered
from dfme.teachers.remote.secrets import Secrets
from dfme.teachers.remote.transport import quoted, retry_after


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "retry"),
    [("429 Slow", True), ("503 Busy", True), ("408 Late", True), ("425 Early", True), ("400 Bad", False),
     ("401 Who", False), ("404 What", False), ("413 Big", False), ("422 No", False), ("304 Same", False)],
)  # fmt: skip
def test_a_refusal_says_whether_to_come_back(status, retry):
    body = b"" if status.startswith("304") else b"at most 8\x00\r\n images  \x1b[31m"
    refusal, _ = failed(http(body, status), "(at most 8 images [31m)" if body else status[:3])
    assert (refusal.reason, refusal.retry, refusal.body) == (status[:3], retry, body)
    assert str(refusal).isprintable()


@pytest.mark.integration
@pytest.mark.parametrize("status", ["500", "501", "502", "504", "599"])
def test_a_server_error_may_have_been_served(status):
    outcome, _ = failed(http(b"oops", f"{status} Oops"), status, Unanswered)
    assert (outcome.reason, type(outcome)) == (status, Unanswered)


@pytest.mark.integration
def test_a_long_refusal_is_cut():
    refusal, _ = failed(http(b"word " * 100_000, "400 Bad"))
    assert len(refusal.body) == 65_536
    assert len(str(refusal)) < 300
    refusal, _ = failed(then(http(b"part of it", "422 No", Content_Length="9999"), Do.CLOSE))
    assert refusal.body == b"part of it"


NOW = "Tue, 15 Nov 1994 08:12:31 GMT"


@pytest.mark.parametrize(
    ("wish", "date", "seconds"),
    [
        ("0", "", 0), ("17", "", 17), (" 2.5 ", "", 2.5), ("86401", "", 86_400), ("9" * 5000, "", 86_400),
        ("Tue, 15 Nov 1994 08:12:41 GMT", NOW, 10), ("Tuesday, 15-Nov-94 08:13:31 GMT", NOW, 60),
        ("Tue, 15 Nov 1994 10:12:32 +0200", NOW, 1), ("Tue, 15 Nov 2094 08:12:31 GMT", NOW, 86_400),
        ("Tue, 15 Nov 1994 08:12:30 GMT", NOW, None), ("-5", NOW, None), ("1e3", "", None), ("inf", "", None),
        ("nan", "", None), ("", "", None), ("soon", NOW, None), ("Tue, 99 Nov 1994 08:12:31 GMT", NOW, None),
        ("\u0661\u0662", "", None), ("Tue, 15 Nov 999999999 08:12:31 GMT", NOW, None),
    ],
)  # fmt: skip
def test_how_long_a_service_asks_to_wait(wish, date, seconds):
    assert retry_after({"retry-after": wish, "date": date}) == seconds


def test_a_date_without_the_services_clock_is_held_against_ours(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert retry_after({"retry-after": formatdate(1_000_100, usegmt=True)}) == 100


@given(st.text(max_size=40))
def test_no_wish_to_wait_is_out_of_bounds(wish):
    seconds = retry_after({"retry-after": wish, "date": wish})
    assert seconds is None or 0 <= seconds <= 86_400


@pytest.mark.parametrize("written", ["my  key", "my\t key", "m\0y  \x1bkey", "my\u200b  key"])
def test_a_secret_with_white_space_in_it_is_hidden_however_that_is_shown(written):
    assert (
        quoted(f"bad {written}, sorry", Secrets({"A": "my  key", "B": "my key"}))
        == " (bad ***, sorry)"
    )
    assert quoted("bad my  key", Secrets({"A": "my  key"})) == " (bad ***)"


def test_nothing_said_is_nothing_quoted():
    assert quoted(" \0\n", Secrets({})) == ""
    assert quoted("word " * 100, Secrets({})) == f" ({('word ' * 40)}...)"
