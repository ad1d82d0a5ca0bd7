"""The ledger against arithmetic done by the test, and against its own file read by other means."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from damage import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from dfme.errors import BudgetExhausted, RunError, UserError
from dfme.oracle.ledger import CHARGED, PURPOSES, Ledger, Purpose, audit


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines without their checks: each the CRC-32 of all that was written so far, checks and ends of line apart."""
    entries, written = [], b""
    for line in path.read_bytes().splitlines():
        entries.append(json.loads(line))
        written += line[: -len(',"check":"01234567"}')]
        assert entries[-1].pop("check") == f"{zlib.crc32(written):08x}"
    return entries


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(PURPOSES)), max_size=30), st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_counts_every_image_once_and_never_exceeds_the_budget(asked: list[tuple[int, Purpose]], budget: int) -> None:
    ledger = Ledger(budget)
    counts = dict.fromkeys(PURPOSES, 0)
    for images, purpose in asked:
        fits = purpose not in CHARGED or sum(counts[name] for name in CHARGED) + images <= budget
        if fits:
            ledger.charge(images, purpose)
            counts[purpose] += images
        else:
            with pytest.raises(BudgetExhausted, match=rf"{images} images .* of {budget} are left"):
                ledger.charge(images, purpose)
    assert ledger.spent_by_purpose == {name: counts[name] for name in CHARGED}
    assert (ledger.evaluation_queries, ledger.totals().transfer_queries) == (counts["evaluation"], counts["transfer"])
    assert ledger.spent + ledger.remaining == budget
    assert ledger.share == ledger.spent / budget


def test_every_charge_is_a_line_on_file_before_the_send(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    assert ledger.charge(60, "student") == 1
    assert ledger.charge(7, "evaluation") == 2
    with pytest.raises(BudgetExhausted):
        ledger.charge(41, "generator")
    assert lines(path) == [
        {"seq": 0, "event": "budget", "budget": 100, "run": ledger.run},
        {"seq": 1, "event": "charge", "purpose": "student", "images": 60, "spent": 60},
        {"seq": 2, "event": "charge", "purpose": "evaluation", "images": 7, "spent": 60},
    ]
    assert audit(path) == ledger.totals()


def test_images_of_transfer_are_outside_the_budget_in_the_cost_and_in_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(10, path)
    ledger.charge(10, "student")
    ledger.charge(500, "transfer")
    assert (ledger.remaining, ledger.totals().transfer_queries, audit(path).served) == (0, 500, 510)
    assert lines(path)[2] == {"seq": 2, "event": "charge", "purpose": "transfer", "images": 500, "spent": 10}
    assert [*ledger.state_dict()["images"]] == ["generator", "student", "seed", "check", "evaluation"]  # as of old


def test_a_refusal_is_given_back_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.answered(ledger.charge(60, "student"))
    ledger.refuse(ledger.charge(40, "student"), 'said "429"')
    assert (ledger.spent, ledger.remaining, ledger.refused, ledger.requests) == (60, 40, 40, 2)
    assert ledger.charge(40, "student") == 3
    assert lines(path)[3] == {"seq": 2, "event": "refused", "images": 40, "reason": 'said "429"'}
    assert audit(path) == ledger.totals()
    with pytest.raises(KeyError):
        ledger.refuse(1, "already answered")


def test_without_a_journal_everything_since_the_checkpoint_is_lost_and_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.charge(30, "student")
    state = ledger.state_dict()
    ledger.charge(20, "generator")
    ledger.charge(5, "evaluation")
    again = Ledger(100, path, state)
    again.settle()
    again.settle()
    assert (again.spent, again.lost, again.evaluation_queries) == (30, 25, 0)
    assert again.charge(70, "student") == 4
    assert audit(path) == again.totals()
    charged = sum(line["images"] for line in lines(path) if line["event"] == "charge")
    assert charged == again.spent + again.evaluation_queries + again.lost


def test_a_replay_counts_without_writing_and_settles_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    for images in (10, 20, 30):
        ledger.charge(images, "student")
    before = path.read_bytes()
    again = Ledger(100, path)
    again.replay(1, 10, "student")
    again.replay(2, 20, "student")
    assert path.read_bytes() == before
    assert again.spent == 30
    again.settle()
    assert (again.spent, again.lost, lines(path)[-1]["seq"]) == (30, 30, 3)
    assert audit(path) == again.totals()


def test_a_failed_charge_that_the_run_went_on_after_stays_charged_in_the_replay(tmp_path: Path) -> None:
    ledger = Ledger(100, tmp_path / "ledger.jsonl")
    ledger.fail(ledger.charge(10, "student"), "timeout")
    ledger.answered(ledger.charge(10, "student"))
    assert (ledger.spent, ledger.failed, ledger.useful, ledger.reasons) == (20, 10, 10, {"failed": {"timeout": 1}})
    again = Ledger(100, tmp_path / "ledger.jsonl")
    again.replay(2, 10, "student")
    assert (again.spent, again.failed, again.useful) == (10, 0, 10)
    again.replay_failures(2)
    assert (again.spent, again.failed, again.useful) == (20, 10, 10)
    again.settle()
    assert again.totals() == ledger.totals() == audit(tmp_path / "ledger.jsonl")
    assert (again.run, again.reasons) == (ledger.run, ledger.reasons)


def test_answers_out_of_order_are_replayed_in_theirs(tmp_path: Path) -> None:
    ledger = Ledger(100, tmp_path / "ledger.jsonl")
    for images in (1, 2, 4):
        ledger.charge(images, "student")
    ledger.answered(3)
    ledger.answered(1)  # the second is in flight when the process dies
    again = Ledger(100, tmp_path / "ledger.jsonl")
    again.replay(3, 4, "student")
    again.replay(1, 1, "student")
    assert (again.spent, again.position) == (5, 3)
    again.settle()
    assert (again.spent, again.lost) == (5, 2)
    assert audit(tmp_path / "ledger.jsonl") == again.totals()


def test_a_charge_fails_or_is_given_back_only_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.fail(ledger.charge(10, "student"), "500")
    for event in ("failed", "refused", "lost"):
        with path.open("a") as file:
            file.write(json.dumps({"seq": 1, "event": event, "images": 10, "reason": "twice"}) + "\n")
        with pytest.raises(RunError, match=rf"line 4.*10 images {event} for charge 1"):
            audit(path)
        path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:3]))


def test_a_replay_that_the_file_does_not_know_is_refused(tmp_path: Path) -> None:
    Ledger(100, tmp_path / "ledger.jsonl").charge(10, "student")
    ledger = Ledger(100, tmp_path / "ledger.jsonl")
    for seq, images, purpose in ((2, 10, "student"), (1, 11, "student"), (1, 10, "generator")):
        with pytest.raises(RunError, match=f"expected charge {seq} to be {images} images for {purpose}"):
            ledger.replay(seq, images, purpose)  # type: ignore[arg-type]


def test_a_changed_budget_waits_until_history_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.charge(50, "student")
    ledger.charge(50, "student")
    second = Ledger(200, path)
    assert second.budget == 100
    second.replay(1, 50, "student")
    assert (second.budget, second.share) == (100, 0.5)
    second.replay(2, 50, "student")
    second.settle()
    assert (second.budget, second.remaining) == (200, 100)
    second.charge(50, "student")
    third = Ledger(200, path)
    third.replay(1, 50, "student")
    assert third.budget == 100
    third.replay(2, 50, "student")
    assert third.budget == 200
    third.replay(3, 50, "student")
    third.settle()
    assert third.totals() == audit(path)
    assert sum(line["event"] == "budget" for line in lines(path)) == 2


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_below_one_is_refused(budget: int) -> None:
    with pytest.raises(UserError, match=f"--budget: expected at least 1 image, got {budget}"):
        Ledger(budget)


def test_a_budget_below_what_is_spent_is_refused(tmp_path: Path) -> None:
    Ledger(100, tmp_path / "l").charge(60, "student")
    with pytest.raises(UserError, match="at least the 60 images spent so far, got 59"):
        Ledger(59, tmp_path / "l")
    Ledger(60, tmp_path / "l")


def test_a_torn_last_line_was_never_sent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.charge(10, "student")
    kept = path.read_bytes()
    ledger.charge(20, "student")
    whole = path.read_bytes()
    for end in range(len(kept), len(whole)):
        path.write_bytes(whole[:end])
        assert audit(path).spent == 10
        Ledger(100, path).close()
        assert path.read_bytes() == kept


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_or_missing_line_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("run") / "ledger.jsonl"
    ledger = Ledger(1000, path)
    for images in (10, 20, 30):
        ledger.charge(images, "student")
    good = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(1, 2))
    damage = data.draw(st.sampled_from(["drop", "double", "empty", "images", "purpose", "binary"]))
    line = good[number]
    bad = {
        "drop": b"",
        "double": line + line,
        "empty": b"\n",
        "images": line.replace(b'"images":' + str(number * 10).encode(), b'"images":1'),
        "purpose": line.replace(b"student", b"lunch"),
        "binary": b"\xff\x00" + line[2:],
    }[damage]
    path.write_bytes(b"".join([*good[:number], bad, *good[number + 1 :]]))
    with pytest.raises(RunError, match=r"ledger.jsonl, line \d+"):
        Ledger(1000, path)


def test_a_ledger_behind_its_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.charge(10, "student")
    shorter = path.read_bytes()
    ledger.charge(10, "student")
    state = ledger.state_dict()
    path.write_bytes(shorter)
    with pytest.raises(RunError, match=r"at least the 2 charges .* got 1"):
        Ledger(100, path, state)
    path.unlink()
    with pytest.raises(RunError, match="got 0"):
        Ledger(100, path, state)


def test_a_full_disk_charges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(100, path)
    ledger.charge(10, "student")
    before = path.read_bytes()
    with file_size_limit(len(before) + 5), pytest.raises(RunError, match=r"ledger.jsonl"):
        ledger.charge(10, "student")
    assert ledger.spent == 10
    assert path.read_bytes() == before
    ledger.charge(10, "student")
    assert audit(path) == ledger.totals()


def test_state_travels_without_a_file() -> None:
    ledger = Ledger(100)
    ledger.charge(10, "seed")
    ledger.refuse(ledger.charge(20, "check"), "429")
    again = Ledger(100, state=ledger.state_dict())
    again.settle()
    assert again.totals() == ledger.totals()


@pytest.mark.parametrize(("images", "purpose"), [(0, "student"), (-1, "student"), (1, "lunch")])
def test_nonsense_is_refused(images: int, purpose: Purpose) -> None:
    ledger = Ledger(100)
    with pytest.raises(ValueError, match="expected"):
        ledger.charge(images, purpose)
    assert ledger.spent == 0
