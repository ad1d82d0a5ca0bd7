"""``run.py drill`` with an attack of its own, on a client whose service rings as a test says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from drilled import BATCH, EVALUATED, agreement_by, drill, outcome, stage, staged
from processes import in_this_process

from dfme.oracle.ledger import audit

__all__ = ["stage"]
IN_THE_ATTACK = EVALUATED + 101
"""The 101st image of the attack, of its third batch."""


def test_it_says_after_how_many_images_it_rang_and_what_the_copy_was_worth_then(
    stage: Path,
) -> None:
    Path("alarms.jsonl").write_text('{"account": "x", "detector": "old", "image": 1}\n')
    code, out, err = staged("--teacher.rings", f"{IN_THE_ATTACK}/{EVALUATED + 280}")
    assert code == 0, err
    told = outcome()
    # the alarm is written in the third batch, and seen at most some batches later
    assert 3 * BATCH <= told["images"] <= 300
    assert told["images"] % BATCH == 0
    assert told["agreement"] == agreement_by("out", told["images"])
    summary = json.loads(Path("out/summary.json").read_text())
    assert told["agreement_end"] == summary["agreement"]
    assert told["constant"] == summary["baselines"]["constant_agreement"]
    assert (told["rang"], told["finished"], told["refused_at"], told["from"]) == (
        True,
        True,
        None,
        None,
    )
    assert json.loads(told["alarm"])["image"] == IN_THE_ATTACK
    assert (told["images_in_all"], told["attack"], told["channel"]) == (300, "frugal", "alarm_file")
    assert audit(Path("out/ledger.jsonl")).spent == 300
    assert f"drill: rang after {told['images']} images, when the copy agreed on" in out
    assert f"at image {IN_THE_ATTACK} of its account, after this drill's {EVALUATED}" in out
    (rang,) = [line for line in err.splitlines() if line.startswith("RANG after")]
    assert rang.startswith(f"RANG after {told['images']} images")


def test_where_nobody_rings_the_exit_code_is_4_and_alarms_at_honest_images_do_not_count(
    stage: Path,
) -> None:
    code, out, _ = staged("--teacher.rings", "5/300")
    assert code == 4
    told = outcome()
    assert (told["rang"], told["images"], told["agreement"], told["alarm"]) == (
        False,
        None,
        None,
        None,
    )
    assert "never rang in 300 images; the copy agrees on" in out
    assert "2 alarms came before the attack's first image" in out


def test_where_this_client_had_rung_before_silence_says_little(stage: Path) -> None:
    for account, words in (("eve", ""), ("bob", ""), ("bob", "--account eve")):
        Path("alarms.jsonl").write_text(
            "torn" + json.dumps({"account": "x", "detector": "d", "image": 1})
        )
        with Path("alarms.jsonl").open("a") as file:
            file.write("\n" + json.dumps({"account": account, "detector": "d", "image": 1}) + "\n")
        code, out, _ = staged(*words.split(), "--out", f"{account}{len(words)}", budget=100)
        assert code == 4
        assert ("; it had rung before this drill, and a detector" in out) == (not words)


def test_an_alarm_later_than_asked_for_is_too_late(stage: Path) -> None:
    code, out, _ = staged("--teacher.rings", f"{EVALUATED + 270}", "--within", "100")
    assert code == 4
    assert outcome()["rang"]
    assert "too late: after more than the 100 images" in out


def test_it_asks_no_more_than_a_step_beyond_the_alarm_where_it_is_told_to_stop(
    stage: Path,
) -> None:
    code, _, err = staged(
        "--teacher.rings", f"{IN_THE_ATTACK}", "--stop-at-alarm", "true", budget=2_000
    )
    assert code == 0, err
    told = outcome()
    assert told["finished"]
    assert told["images"] <= told["images_in_all"] < 2_000


def test_a_service_that_refuses_is_an_outcome_and_no_failure(stage: Path) -> None:
    refuses = EVALUATED + 200
    code, out, _ = staged("--teacher.rings", f"{IN_THE_ATTACK}", "--teacher.refuses", f"{refuses}")
    assert code == 0
    told = outcome()
    assert (told["refused_at"], told["images_in_all"], told["finished"]) == (200, 200, True)
    assert "; the service refused us after 200 images" in out
    assert told["agreement_end"] == agreement_by("out", 200)
    # said again, and nothing is asked
    before = Path("seen.f32").stat().st_size
    code, _, err = drill("--resume", "--out", "out")
    assert code == 0, err
    assert Path("seen.f32").stat().st_size == before


@pytest.mark.parametrize("option", ["refuses", "fails"])
def test_any_other_failure_is_one_with_all_that_was_paid_kept(stage: Path, option: str) -> None:
    last = 10 if option == "refuses" else EVALUATED + 100
    code, out, err = staged(f"--teacher.{option}", f"{last}")
    assert (code, out) == (3, "")
    assert "Traceback" not in err
    *_, line = err.splitlines()
    assert line.startswith("dfme: ")
    if option == "fails":
        assert "run.py drill --resume --out out" in line
        assert not outcome()["finished"]


def test_alarms_of_other_accounts_are_counted_apart(stage: Path) -> None:
    code, out, _ = staged("--teacher.rings", f"{IN_THE_ATTACK}", "--account", "5f3a")
    assert code == 4
    assert "1 alarm of another account (eve) did not count" in out


def test_a_line_of_any_form_counts_in_the_log_of_a_webhook_if_it_holds_the_text(
    stage: Path,
) -> None:
    words = ("--teacher.rings", f"{IN_THE_ATTACK}", "--out", "quiet")
    assert staged(*words, "--match", "model-stealing", channel="webhook_log")[0] == 4
    words = ("--teacher.rings", f"{IN_THE_ATTACK}", "--match", '"labels"')
    assert staged(*words, channel="webhook_log")[0] == 0
    assert outcome()["channel"] == "webhook_log"


def test_it_says_how_far_it_is_also_where_a_long_run_says_less(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfme.audits.drill.live.LINE_SECONDS", 0.01)
    monkeypatch.setattr("dfme.audits.drill.live.LINE_TIME", 1e9)
    _, _, err = staged("--teacher.rings", f"{IN_THE_ATTACK}")
    assert re.search(r"^\d+ queries, 0 s; nobody rang$", err, re.MULTILINE)
    assert re.search(r"^300 queries, \d s; it rang$", err, re.MULTILINE)


def test_nothing_of_the_run_is_other_than_that_of_a_run_without_a_drill(stage: Path) -> None:
    assert staged("--teacher.rings", f"{IN_THE_ATTACK}")[0] == 0
    drilled = np.fromfile("seen.f32", np.float32)
    Path("seen.f32").unlink()
    words = "extract --recipe frugal --teacher staged_client:Staged --evaluation.dataset digits"
    small = "--student.arch cnn_small --student.steps 20 --budget 300 --out plain"
    small += f" --teacher.rings {IN_THE_ATTACK}"
    assert in_this_process([*words.split(), *small.split()])[0] == 0
    assert np.array_equal(np.fromfile("seen.f32", np.float32), drilled)
    same = [Path(name, "student.safetensors").read_bytes() for name in ("out", "plain")]
    assert same[0] == same[1]
    hashes = [json.loads(Path(name, "summary.json").read_text()) for name in ("out", "plain")]
    assert hashes[0]["config_hash"] == hashes[1]["config_hash"]
