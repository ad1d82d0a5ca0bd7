"""Random and damaged records of a run: every error is one of ours, in a line, and nothing is asked of the teacher."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from counting_teacher import Counting
from fuzzing import JSON, NUMBERS, few, fuzz, mutated, only_ours, repacked, saved, sealed
from hypothesis import given
from hypothesis import strategies as st
from report_runs import DEFENDED, LEADING, SUMMARY, make_run
from small_runs import Metered, clone, ctrl_c
from tables import all_hold
from tiers import exhaustive_rows

from dfme.errors import RunError, UserError
from dfme.oracle.journal import CRC, HEADER, MAGIC, Journal
from dfme.oracle.ledger_log import audit
from dfme.report import write_report
from dfme.run.checkpoint import load_checkpoint


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


# Checkpoints

STATE = {"method": {"net": {"w": torch.arange(6.0).reshape(2, 3)}, "lr": 0.1}, "oracle": [1, None, "x"], "b": b"1"}


@given(data=st.data())
@fuzz
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_any_bytes_that_its_trailer_vouches_for(tmp_path: Path, data: st.DataObject) -> None:
    """The pickle is changed too, behind right checksums: the unpickler itself sees the damage."""
    kind, path = data.draw(st.sampled_from(["bytes", "archive", "pickle", "legacy"])), tmp_path / "checkpoint.pt"
    if kind == "bytes":
        body = data.draw(st.binary(max_size=300))
    elif kind == "pickle":
        body = repacked(saved(STATE, True), lambda old: mutated(data.draw, old))
    else:
        body = mutated(data.draw, saved(STATE, kind == "archive"))
    path.write_bytes(sealed(body))
    assert isinstance(only_ours(lambda: load_checkpoint(path)), RunError | None)


UNREAD = {
    *(("oracle", "ledger", name) for name in ("requests", "refused", "lost")),  # the ledger's lines say them
    ("oracle", "answered"),  # a run begun before 0.7.0 goes on without
    ("trainer", "rounds"),  # one that trains in no rounds, begun before 0.9.0, too
    ("goal",),  # none was set
    ("examination", "answers"),  # none are held back yet
}


def entries(state: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of a state's entries, down to those of its third level."""
    for key in state if isinstance(state, dict) and len(where) < 3 else ():
        yield (*where, key)
        yield from entries(state[key], (*where, key))


def without(state: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed = deepcopy(state)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def other_states(state: dict[str, Any]) -> dict[str, object]:
    others: list[object] = [[state], "state", 3, {}, {"oracle": 1}, {**state, "oracle": []}, {**state, "method": None}]
    others += [{**state, "seconds": "long"}, {**state, "oracle": {**state["oracle"], "journal": {"segment": 1}}}]
    return {f"other {number}": other for number, other in enumerate(others)}


def incomplete_states(state: dict[str, Any]) -> dict[str, object]:
    """Whatever entry is missing, down to the third level, but for what is not read or begins anew."""
    missing = [path for path in entries(state) if path not in UNREAD and path[:2] != ("streams", "streams")]
    assert len(missing) > 25
    return {f"without {path}": without(state, path) for path in missing}


@pytest.mark.parametrize(
    ("states", "kind"),
    [(other_states, Metered), *exhaustive_rows([(incomplete_states, Counting)])],
)
def test_a_checkpoint_of_another_structure_is_one_line_and_nothing_is_asked(
    states: Callable[[dict[str, Any]], dict[str, object]], kind: Any, cut_short: tuple[Path, int]
) -> None:
    out, _ = cut_short
    if kind is Counting:
        shutil.rmtree(out)
        clone(out, Counting({7: ctrl_c}))

    def holds(case: str, state: object) -> None:
        teacher = kind()
        copy = shutil.copytree(out, out.with_name(case.replace("/", "_")))
        (copy / "checkpoint.pt").write_bytes(sealed(saved(state, True)))
        error = only_ours(lambda: clone(copy, teacher, resume=True))
        assert isinstance(error, RunError), error
        assert "\n" not in str(error)
        assert teacher.calls == 0

    all_hold(holds, states(load_checkpoint(out / "checkpoint.pt")).items())


# Journals


@given(
    fields=st.tuples(
        st.sampled_from([MAGIC, b"dfj1"]), st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16),
        st.integers(0, 3), st.integers(0, 4), *[st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))] * 5,
    ),
    payload=st.binary(max_size=64),
    sums=st.booleans(),
)  # fmt: skip
@fuzz
def test_a_journal_whose_headers_claim_anything(
    tmp_path: Path, fields: tuple[Any, ...], payload: bytes, sums: bool
) -> None:
    """Behind right checksums; rows times columns may come to 10^19."""
    head = HEADER.pack(*fields[:-1], zlib.crc32(payload) if sums else fields[-1])
    for segment in tmp_path.glob("*.bin"):
        segment.unlink()
    (tmp_path / "000000.bin").write_bytes(head + CRC.pack(zlib.crc32(head)) + payload)

    def read() -> None:
        journal = Journal(tmp_path)
        while journal.replaying:
            assert journal.peek().answers.numel() * 4 <= len(payload)
            journal.advance()
        journal.close()

    assert isinstance(only_ours(read), RunError | None)


@given(st.lists(st.binary(max_size=80), max_size=3))
@fuzz
def test_a_journal_of_any_bytes(tmp_path: Path, segments: list[bytes]) -> None:
    for number in range(3):
        (tmp_path / f"{number:06d}.bin").unlink(missing_ok=True)
    for number, content in enumerate(segments):
        (tmp_path / f"{number:06d}.bin").write_bytes(content)
    assert isinstance(only_ours(lambda: Journal(tmp_path).close()), RunError | None)


# Ledgers and metrics

LINE = st.fixed_dictionaries(
    {},
    optional={
        "seq": NUMBERS, "event": st.sampled_from(["charge", "budget", "refused", "failed", "lost", "\ud800"]) | JSON,
        "purpose": st.sampled_from(["student", "evaluation"]) | JSON, "images": NUMBERS, "spent": NUMBERS,
        "budget": NUMBERS, "reason": JSON, "run": JSON, "queries": NUMBERS, "agreement": NUMBERS, "kl": JSON,
        "student_loss": NUMBERS,
    },
)  # fmt: skip
LOG = st.one_of(
    st.binary(max_size=200),
    st.lists(LINE | JSON, max_size=4).map(lambda lines: "".join(json.dumps(line) + "\n" for line in lines).encode()),
)
STRANGE_LINES = {
    "deep": b'{"seq":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "endless": b" " * (2 << 20),
    "long number": b'{"seq":' + b"9" * 100_000 + b"}\n",
    "half a letter": b'{"seq":0,"event":"budget","budget":5,"run":"\\ud800"}\n',
    "not a number": b'{"seq":NaN,"event":"charge","queries":NaN}\n',
    "bytes of no text": b"\xff\xfe{}\n",
}


@given(LOG)
@fuzz
def test_a_ledger_of_any_lines(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(content)
    assert isinstance(only_ours(lambda: audit(tmp_path / "ledger.jsonl")), RunError | None)


@pytest.mark.parametrize("line", STRANGE_LINES)
def test_a_strange_line_is_named(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    for name in ("ledger.jsonl", "metrics.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(STRANGE_LINES[line] + whole)
        error = only_ours(lambda: write_report(run))
        assert isinstance(error, RunError)
        assert f"{name}, line 1" in str(error)
        (run / name).write_bytes(whole)


RECORD = st.fixed_dictionaries(
    {"queries": st.integers(0, 2**63 - 1)},
    optional={
        **dict.fromkeys(("accuracy", "agreement", "teacher_accuracy"), st.floats(0, 1)),
        **dict.fromkeys(("student_loss", "generator_grad_norm", "kl"), st.floats(-1e299, 1e299)),
    },
)
RECORDS = st.lists(RECORD, max_size=4).map(lambda lines: "".join(json.dumps(line) + "\n" for line in lines).encode())
WHOLE = SUMMARY | LEADING | DEFENDED
SUMMARIES = st.dictionaries(st.sampled_from(sorted(WHOLE)), JSON, max_size=3).map(lambda changes: WHOLE | changes)


@given(
    summary=SUMMARIES | JSON,
    metrics=RECORDS | LOG,
    config=st.dictionaries(st.sampled_from(["teacher", "method", "evaluation"]), JSON),
)
@few
@pytest.mark.filterwarnings("ignore")
def test_a_report_of_any_records(tmp_path: Path, summary: object, metrics: bytes, config: dict[str, Any]) -> None:
    """The pictures are drawn as well."""
    run = tmp_path / "run"
    if not run.exists():
        make_run(run)
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_bytes(metrics)
    (run / "config.yaml").write_text(json.dumps(config))
    assert isinstance(only_ours(lambda: write_report(run)), UserError | None)
