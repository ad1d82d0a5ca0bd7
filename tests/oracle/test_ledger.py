"""The ledger against arithmetic done by the test, and against its own file read by other means."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from damage import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import exhaustive

from dfme.errors import BudgetExhausted, RunError, UserError
from dfme.oracle.ledger import CHARGED, PURPOSES, Ledger, Purpose, audit

FACTS: dict[str, Any] = {
    "levels": 256,
    "bounds": (0.0, 1.0),
    "label_mode": "probabilities:4",
    "shape": [3, 32, 32],
    "files": {"teacher.onnx": "ab" * 32, "labels.txt": "cd" * 32},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines without their checks: each the CRC-32 of all that was written so far, checks."""
    entries, written = [], b""
    for line in path.read_bytes().splitlines():
        entries.append(json.loads(line))
        written += line[: -len(',"check":"01234567"}')]
        assert entries[-1].pop("check") == f"{zlib.crc32(written):08x}"
    return entries


def charged(path: Path | None, *counts: int, facts: dict[str, Any] | None = None) -> Ledger:
    """A ledger of 100 images, of which so many were charged for a student."""
    ledger = Ledger(100, path, facts=facts)
    for images in counts:
        ledger.charge(images, "student")
    return ledger


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(PURPOSES)), max_size=30),
    st.integers(1, 300),
)
@settings(max_examples=50, deadline=None)
def test_counts_every_image_once_within_the_budget(
    asked: list[tuple[int, Purpose]], budget: int
) -> None:
    ledger = Ledger(budget)
    counts = dict.fromkeys(PURPOSES, 0)
    for images, purpose in asked:
        if purpose not in CHARGED or sum(counts[name] for name in CHARGED) + images <= budget:
            ledger.charge(images, purpose)
            counts[purpose] += images
        else:
            with pytest.raises(BudgetExhausted, match=rf"{images} images .* of {budget} are left"):
                ledger.charge(images, purpose)
    totals = ledger.totals()
    assert ledger.spent_by_purpose == {name: counts[name] for name in CHARGED}
    assert (totals.evaluation_queries, totals.transfer_queries) == (
        counts["evaluation"],
        counts["transfer"],
    )
    assert ledger.spent + ledger.remaining == budget
    assert ledger.share == ledger.spent / budget


def test_every_charge_is_a_line_on_file_before_the_send(path: Path) -> None:
    """Images of transfer are outside the budget, in the cost, and in no checkpoint."""
    ledger = Ledger(100, path)
    for seq, (images, purpose) in enumerate(
        [(60, "student"), (7, "evaluation"), (500, "transfer")], 1
    ):
        assert ledger.charge(images, purpose) == seq  # type: ignore[arg-type]
    with pytest.raises(BudgetExhausted):
        ledger.charge(41, "generator")
    assert lines(path) == [
        {"seq": 0, "event": "budget", "budget": 100, "run": ledger.run},
        {"seq": 1, "event": "charge", "purpose": "student", "images": 60, "spent": 60},
        {"seq": 2, "event": "charge", "purpose": "evaluation", "images": 7, "spent": 60},
        {"seq": 3, "event": "charge", "purpose": "transfer", "images": 500, "spent": 60},
    ]
    assert audit(path) == ledger.totals()
    assert audit(path).served == 567
    assert [*ledger.state_dict()["images"]] == "generator student seed check evaluation".split()


def test_a_refusal_is_given_back_and_recorded(path: Path) -> None:
    ledger = Ledger(100, path)
    ledger.answered(ledger.charge(60, "student"))
    ledger.refuse(ledger.charge(40, "student"), 'said "429"')
    assert (ledger.spent, ledger.remaining, ledger.refused, ledger.requests) == (60, 40, 40, 2)
    assert ledger.charge(40, "student") == 3
    assert lines(path)[3] == {"seq": 2, "event": "refused", "images": 40, "reason": 'said "429"'}
    assert audit(path) == ledger.totals()
    with pytest.raises(KeyError):
        ledger.refuse(1, "already answered")


def test_a_budget_below_one_or_what_is_spent_is_refused(path: Path) -> None:
    with pytest.raises(UserError, match=r"--budget: .* got 0"):
        Ledger(0)
    charged(path, 60)
    with pytest.raises(UserError, match="at least the 60 images spent so far, got 59"):
        Ledger(59, path)
    Ledger(60, path)


@pytest.mark.parametrize(("images", "purpose"), [(0, "student"), (-1, "student"), (1, "lunch")])
def test_nonsense_is_refused(images: int, purpose: Purpose) -> None:
    ledger = Ledger(100)
    with pytest.raises(ValueError, match="expected"):
        ledger.charge(images, purpose)
    assert ledger.spent == 0


def test_without_a_journal_everything_since_the_checkpoint_is_lost_and_said(path: Path) -> None:
    ledger = charged(path, 30)
    state = ledger.state_dict()
    ledger.charge(20, "generator")
    ledger.charge(5, "evaluation")
    again = Ledger(100, path, state)
    again.settle()
    again.settle()
    assert (again.spent, again.lost, again.evaluation_queries) == (30, 25, 0)
    assert again.charge(70, "student") == 4
    assert audit(path) == again.totals()
    count = sum(line["images"] for line in lines(path) if line["event"] == "charge")
    assert count == again.spent + again.evaluation_queries + again.lost


def test_a_failed_charge_that_the_run_went_on_after_stays_charged_in_the_replay(path: Path) -> None:
    ledger = Ledger(100, path)
    ledger.fail(ledger.charge(10, "student"), "timeout")
    ledger.answered(ledger.charge(10, "student"))
    assert (ledger.spent, ledger.failed, ledger.useful) == (20, 10, 10)
    assert ledger.reasons == {"failed": {"timeout": 1}}
    again = Ledger(100, path)
    again.replay(2, 10, "student")
    assert (again.spent, again.failed, again.useful) == (10, 0, 10)
    again.replay_failures(2)
    assert (again.spent, again.failed, again.useful) == (20, 10, 10)
    again.settle()
    assert again.totals() == ledger.totals() == audit(path)
    assert (again.run, again.reasons) == (ledger.run, ledger.reasons)


def test_answers_out_of_order_are_replayed_in_theirs(path: Path) -> None:
    ledger = charged(path, 1, 2, 4)
    ledger.answered(3)
    ledger.answered(1)  # the second is in flight when the process dies
    before = path.read_bytes()
    again = Ledger(100, path)
    again.replay(3, 4, "student")
    again.replay(1, 1, "student")
    assert (path.read_bytes(), again.spent, again.position) == (before, 5, 3)
    again.settle()
    assert (again.spent, again.lost, lines(path)[-1]["seq"]) == (5, 2, 2)
    assert audit(path) == again.totals()


def test_a_changed_budget_waits_until_history_is_repeated(path: Path) -> None:
    charged(path, 50, 50)
    second = Ledger(200, path)
    assert second.budget == 100
    second.replay(1, 50, "student")
    assert (second.budget, second.share) == (100, 0.5)
    second.replay(2, 50, "student")
    second.settle()
    assert (second.budget, second.remaining) == (200, 100)
    second.charge(50, "student")
    third = Ledger(200, path)
    for seq, budget in ((1, 100), (2, 200), (3, 200)):
        third.replay(seq, 50, "student")
        assert third.budget == budget
    third.settle()
    assert third.totals() == audit(path)
    assert sum(line["event"] == "budget" for line in lines(path)) == 2


def test_state_travels_without_a_file() -> None:
    ledger = Ledger(100)
    ledger.charge(10, "seed")
    ledger.refuse(ledger.charge(20, "check"), "429")
    again = Ledger(100, state=ledger.state_dict())
    again.settle()
    assert again.totals() == ledger.totals()


def test_a_charge_fails_or_is_given_back_only_once(path: Path) -> None:
    ledger = Ledger(100, path)
    ledger.fail(ledger.charge(10, "student"), "500")
    good = path.read_text()
    for event in ("failed", "refused", "lost"):
        path.write_text(
            good + json.dumps({"seq": 1, "event": event, "images": 10, "reason": "twice"}) + "\n"
        )
        with pytest.raises(RunError, match=rf"line 4.*10 images {event} for charge 1"):
            audit(path)


def test_a_replay_that_the_file_does_not_know_is_refused(path: Path) -> None:
    charged(path, 10)
    ledger = Ledger(100, path)
    for seq, images, purpose in ((2, 10, "student"), (1, 11, "student"), (1, 10, "generator")):
        with pytest.raises(
            RunError, match=f"expected charge {seq} to be {images} images for {purpose}"
        ):
            ledger.replay(seq, images, purpose)  # type: ignore[arg-type]


def test_a_torn_last_line_was_never_sent(path: Path) -> None:
    ledger = charged(path, 10)
    kept = path.read_bytes()
    ledger.charge(20, "student")
    content = path.read_bytes()
    for end in range(len(kept), len(content)):
        path.write_bytes(content[:end])
        assert audit(path).spent == 10
        Ledger(100, path).close()
        assert path.read_bytes() == kept


def test_a_ledger_behind_its_checkpoint_is_refused(path: Path) -> None:
    ledger = charged(path, 10)
    shorter = path.read_bytes()
    ledger.charge(10, "student")
    state = ledger.state_dict()
    path.write_bytes(shorter)
    with pytest.raises(RunError, match=r"at least the 2 charges .* got 1"):
        Ledger(100, path, state)
    path.unlink()
    with pytest.raises(RunError, match="got 0"):
        Ledger(100, path, state)


def written(path: Path, facts: dict[str, Any] | None = None) -> bytes:
    ledger = Ledger(100, path, facts=facts)
    ledger.fail(ledger.charge(10, "student"), "500")
    ledger.answered(ledger.charge(20, "evaluation"))
    ledger.close()
    return path.read_bytes()


@pytest.mark.parametrize("bit", [0, *exhaustive(*range(1, 8))])
def test_every_flipped_bit_is_found_and_its_line_named(bit: int, path: Path) -> None:
    content = written(path, {"levels": 256})
    for place in range(
        len(content) - 1
    ):  # without its last end of line, the last line is one that a kill tore
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
        )
        line = content[:place].count(b"\n") + 1
        with pytest.raises(RunError, match=rf"ledger.jsonl, line ({line}|{line + 1}): expected"):
            audit(path)


@pytest.mark.parametrize("number", [1, 2])
def test_a_line_gone_doubled_emptied_or_of_another_run_is_found(number: int, path: Path) -> None:
    theirs, ours = (
        written(path).splitlines(keepends=True) for _ in range(2) if not path.unlink(True)
    )
    bare = ours[number].rpartition(b',"check"')[0] + b"}\n"
    for bad in (b"", ours[number] * 2, b"\n", theirs[number], bare, b"\xff\x00" + ours[number]):
        path.write_bytes(b"".join([*ours[:number], bad, *ours[number + 1 :], ours[0]]))
        with pytest.raises(RunError, match=r"ledger.jsonl, line \d"):
            audit(path)


def test_what_the_teacher_is_stands_on_the_first_line_and_may_be_said_again(path: Path) -> None:
    before = written(path, FACTS)
    first, *rest = map(json.loads, before.splitlines())
    assert first["teacher"] == json.loads(json.dumps(FACTS))
    assert not any("teacher" in line for line in rest)
    for facts in (FACTS, json.loads(json.dumps(FACTS)), {**FACTS, "more": None}, None):
        assert Ledger(100, path, facts=facts).teacher == first["teacher"]
    assert path.read_bytes() == before
    Ledger(200, path, facts=FACTS).settle()
    assert b"teacher" not in path.read_bytes()[len(before) :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": None}, "levels 256 (now none);"),
        ({"model": "2"}, "model none (now 2);"),
        (
            {"files": FACTS["files"] | {"teacher.onnx": "ef" * 32}},
            "teacher.onnx abababababab (now efefefefefef);",
        ),
        ({"files": None, "levels": 2}, "levels 256 (now 2), files {"),
        ({"label_mode": "\x1b[2J"}, '"\\u001b[2J"'),
        ({"label_mode": "x" * 5000}, "(now xxx"),
    ],
)
def test_another_teacher_is_refused_with_both_values(
    change: dict[str, Any], words: str, path: Path
) -> None:
    before = written(path, FACTS)
    error = refused(
        "--resume: this run was started with a teacher of ",
        Ledger,
        100,
        path,
        facts={**FACTS, **change},
    )
    assert words in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert path.read_bytes() == before
