"""What a ledger's lines vouch for: every flipped bit is found; what the teacher was is on record, and held to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiers import exhaustive

from dfme.errors import RunError, UserError
from dfme.oracle.ledger import Ledger, audit

FACTS = {
    "levels": 256,
    "bounds": (0.0, 1.0),
    "label_mode": "probabilities:4",
    "shape": [3, 32, 32],
    "files": {"teacher.onnx": "ab" * 32, "labels.txt": "cd" * 32},
}
OLD = (
    '{"seq":0,"event":"budget","budget":100,"run":"1f"}\n'
    '{"seq":1,"event":"charge","purpose":"student","images":10,"spent":10}\n'
    '{"seq":1,"event":"failed","images":10,"reason":"500"}\n'
)
"""A ledger as 0.5.0 wrote it."""


def written(path: Path, facts: dict[str, Any] | None = None) -> bytes:
    ledger = Ledger(100, path, facts=facts)
    ledger.fail(ledger.charge(10, "student"), "500")
    ledger.answered(ledger.charge(20, "evaluation"))
    ledger.close()
    return path.read_bytes()


@pytest.mark.parametrize("bit", [0, *exhaustive(*range(1, 8))])
def test_every_flipped_bit_is_found_and_its_line_named(bit: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    whole = written(path, {"levels": 256})
    for place in range(len(whole) - 1):  # without its last end of line, the last line is one that a kill tore
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        line = whole[:place].count(b"\n") + 1
        with pytest.raises(RunError, match=rf"ledger.jsonl, line ({line}|{line + 1}): expected"):
            audit(path)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_lines_of_another_run_do_not_fit(first: int, tmp_path: Path) -> None:
    ours, theirs = (written(tmp_path / name).splitlines(keepends=True) for name in "ab")
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join([*ours[: first + 1], *theirs[first + 1 :]]))
    with pytest.raises(RunError, match=f"line {first + 2}: .* its check does not fit"):
        audit(path)


def test_a_ledger_of_0_5_0_is_accepted_and_goes_on_without_checks(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(OLD)
    ledger = Ledger(200, path, facts=FACTS)
    assert ledger.teacher is None
    ledger.answered(ledger.charge(30, "student"))
    assert path.read_text() == OLD + (
        '{"seq":0,"event":"budget","budget":200,"run":"1f"}\n'
        '{"seq":2,"event":"charge","purpose":"student","images":30,"spent":40}\n'
    )
    assert audit(path) == ledger.totals()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_all_lines_have_a_check_or_none(number: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = written(path).splitlines(keepends=True)
    lines[number] = lines[number].rpartition(b',"check"')[0] + b"}\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(RunError, match=f"line {2 if number == 0 else number + 1}: .*check"):
        audit(path)


def test_what_the_teacher_is_stands_on_the_first_line_and_may_be_said_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = written(path, FACTS)
    first, *rest = map(json.loads, before.splitlines())
    assert first["teacher"] == json.loads(json.dumps(FACTS))
    assert not any("teacher" in line for line in rest)
    for facts in (FACTS, json.loads(json.dumps(FACTS)), {**FACTS, "more": None}, None):
        again = Ledger(100, path, facts=facts)
        assert again.teacher == first["teacher"]
    assert path.read_bytes() == before
    Ledger(200, path, facts=FACTS).settle()
    assert b"teacher" not in path.read_bytes()[len(before) :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"levels": None}, "a teacher of levels 256 (now none);"),
        ({"bounds": [0, 255]}, "a teacher of bounds [0.0, 1.0] (now [0, 255]);"),
        ({"label_mode": "logits"}, "a teacher of label_mode probabilities:4 (now logits);"),
        ({"model": "2"}, "a teacher of model none (now 2);"),
        (
            {"files": {"teacher.onnx": "ef" * 32, "labels.txt": "cd" * 32}},
            "a teacher of file teacher.onnx abababababab (now efefefefefef);",
        ),
        ({"files": {"labels.txt": "cd" * 32}}, "a teacher of file teacher.onnx abababababab (now none);"),
        ({"files": None, "levels": 2}, "a teacher of levels 256 (now 2), files {"),
        ({"label_mode": "\x1b[2J"}, r"(now \"\\u001b[2J\");"),
        ({"label_mode": "x" * 5000}, "(now xxx"),
    ],
)
def test_another_teacher_is_refused_with_both_values(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    before = written(path, FACTS)
    with pytest.raises(UserError, match=r"^--resume: this run was started with a teacher of ") as caught:
        Ledger(100, path, facts={**FACTS, **change})
    assert words.replace("\\\\", "\\").replace('\\"', '"') in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert path.read_bytes() == before


@pytest.mark.parametrize("facts", ["[]", '"levels"', "1"])
def test_facts_that_are_no_facts_are_damage(facts: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_text(f'{{"seq":0,"event":"budget","budget":100,"run":"1f","teacher":{facts}}}\n')
    with pytest.raises(RunError, match=r"line 1: .*teacher: expected"):
        audit(tmp_path / "l")
