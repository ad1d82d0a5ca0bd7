"""``run.py detect``: its tables and files, and what it refuses in one line. ``run.py estimate``: what it
says before it asks, and what its table says.
"""

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import parse, run
from small_runs import ctrl_c

from dfme.cli.detect import _lines
from dfme.cli.main import main
from dfme.config.defences import DETECTORS, NEED_FEATURES
from dfme.config.settings import EvaluationConfig, TeacherConfig
from dfme.measured import AccountReading, LoggedAccount
from dfme.oracle.ledger import audit
from dfme.owner_side import job_of, owner_of
from dfme.run.forecast import LAW, CloneEstimate, estimate, start_of
from dfme.run.job import PROJECT
from dfme.students.trainer import StudentTrainer
from dfme.teachers.owner.watch import detection
from dfme.teachers.owner.watch.detector import Observation
from dfme.teachers.owner.watch.record import Recording, account_tag

WEIGHTS = Path(__file__).resolve().parents[2] / "teachers/checkpoints/digits.safetensors"
DIGITS = f"--teacher.checkpoint {WEIGHTS}"
SERVICE = (
    "--teacher v2 --teacher.url http://127.0.0.1:9 --teacher.model m --teacher.authorised-by me"
)
QUIET = ("random order", "pairs")
NAMES = [name for name in DETECTORS if name not in NEED_FEATURES]


def write_log(folder: Path, count: int = 40) -> Path:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand((count, 1, 8, 8), generator=rng)
    p = torch.rand((count, 10), generator=rng).double().softmax(1)
    warnings = list[str]()
    Recording(folder, 30, 10**6, warnings.append)(account_tag("a"), 1, Observation(images, p, None))
    assert not warnings
    return next(folder.glob("log-*"))


@pytest.mark.integration
def test_the_tables_are_printed_and_kept_beside_the_figures(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "SESSIONS", 2)
    write_log(here / "log")
    assert run(f"detect log --benign digits {DIGITS} --out found") == 0
    printed = capsys.readouterr().out
    detection_json = json.loads(Path("found/detection.json").read_text())
    assert printed.rpartition("\n\n")[0] in Path("found/detection.md").read_text()
    assert [entry["name"] for entry in detection_json["detectors"]] == NAMES
    assert [*detection_json["left_out"]] == ["mahalanobis", "sequential", "sprt"]
    assert printed.count("since the log has not all distances of features.") == 3
    assert (detection_json["accounts"][0]["account"], detection_json["accounts"][0]["images"]) == (
        account_tag("a"),
        40,
    )
    for name in NAMES:
        who = f"{account_tag('a')} |     40 |           0"
        if name == "mmd":
            who = f"{'all':16} |     40 |            "
        assert f"| {who} | {name:>10} |" in printed
    for entry in detection_json["benign"]:
        assert entry["per_10000"] == 10_000 * entry["alarms"] / 1_200
        assert entry["per_10000_upper"] > entry["per_10000"]
    (quiet,) = [
        entry for entry in detection_json["benign"] if (entry["stream"], entry["detector"]) == QUIET
    ]
    assert (quiet["alarms"], quiet["per_10000_upper"]) == (0, pytest.approx(30_000 / 179))
    assert "0 of 2 (< 168)" in printed
    assert "0 %" not in printed.replace("95 %", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"nowhere {DIGITS}", "expected a folder that run.py serve --record wrote"),
        (f"log {DIGITS} --teacher.watch sprt", "expected a log that can feed sprt"),
        (f"log {SERVICE}", "a service is watched where it runs"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_one_line(
    here: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(here / "log")
    assert message in refused_words(f"detect {words} --benign digits", capsys)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "damage",
    [
        b"\0\xff\n",
        b"[" * 5_000 + b"\n",
        b'{"account": "0123456789abcdef"}\n',
        b"x" * (1 << 20),
        b'"score": "x"',
        *(b'"top": %s' % top for top in (b"10", b"-1", b"9999999999999999999999")),
        b'"fingerprint": "%s"' % (b"0" * 17 + b"x"),
    ],
)
def test_a_damaged_log_is_one_line(
    here: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(here / "log")
    lines = log.read_bytes().splitlines(keepends=True)
    if damage.startswith(b'"'):
        start = lines[3].index(damage.partition(b":")[0])
        stop = min(at for at in (lines[3].find(b",", start), lines[3].find(b"}", start)) if at > 0)
        lines[3] = lines[3][:start] + damage + lines[3][stop:]
    else:
        lines.insert(3, damage)
    log.write_bytes(b"".join(lines))
    line = refused_words(f"detect log --benign digits {DIGITS}", capsys)
    assert re.search("expected lines|expected a line|another one", line)
    assert len(line) < 500


def test_a_name_in_a_strangers_log_steers_no_terminal() -> None:
    reading = AccountReading(None, 0, 0.1, 0.1, 0.2, 0.0, "")
    account = LoggedAccount("\x1b[2Jeve", 1, 0, {1: {"labels": reading}})
    ((name, *_),) = _lines(account)
    assert name.isprintable()
    assert name.endswith("[2Jeve")


def test_a_pipe_in_place_of_a_log_is_not_waited_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(here / "log")
    log.unlink()
    os.mkfifo(log)
    assert "expected a log that can be read" in refused_words(
        f"detect log --benign digits {DIGITS}", capsys
    )


def test_a_teacher_without_a_network_of_ours_is_watched_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection, "SESSIONS", 1)
    config = TeacherConfig(kind="own:Linear", label_mode="label", defences=("lattice:n=10",))
    seen = owner_of(
        job_of(config, {"shape": (1, 8, 8)}, "cpu", EvaluationConfig(dataset="digits"))
    ).detection([*DETECTORS], tell=lambda line: None)
    assert [detector.name for detector in seen.detectors] == NAMES
    assert [*seen.left_out] == ["mahalanobis", "sequential", "sprt"]
    assert all(stream.per_10000_upper > 0 for stream in seen.benign)


# Estimate

DIGITS_SCORED = (
    f"--teacher.checkpoint {PROJECT}/teachers/checkpoints/digits.safetensors "
    "--evaluation.dataset digits"
)
SMALL = (
    "--student.arch cnn_small --student.replay-batch 32 --student.steps 150 --device cpu "
    "--evaluation.points 5"
)


def printed(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    return main(["estimate", *shlex.split(words)]), *capsys.readouterr()


@pytest.mark.integration
def test_a_pilot_too_small_for_a_curve_says_so_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(f"{DIGITS_SCORED} {SMALL} --budget 500 --out run", capsys)
    assert code == 0
    assert "no estimate: its learning curve has 1 scores" in out
    assert out.endswith("  python run.py estimate --resume --out run --pilot 0.1 --budget 1500\n")
    assert json.loads(Path("run", "estimate.json").read_text())["recommended_budget"] is None


@pytest.mark.integration
def test_before_the_first_query_the_pilot_is_said_with_its_price(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(f"{DIGITS_SCORED} --dry-run --price-per-1000 2", capsys)
    assert code == 0
    assert "pilot: 1,200 of a budget of 12,000 images would be asked for and charged" in out
    assert "images      1,200 would be charged: student 1,200" in out
    assert "recipe      frugal; method procedural" in out
    assert (
        "cost        3.12 it would be, at 2 per 1,000 images, evaluation included" in out
    )  # 1,559 images
    assert not Path("runs").exists()


def test_the_help_names_the_pilot_and_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed("--help", capsys)[1]
    assert "--pilot" in out
    assert "default: frugal" in out


ROUNDS = ".07,.14,.25,.4,1"
STEPS = {0.07: 5, 0.14: 7, 0.25: 9, 0.4: 11, 1.0: 18}  # fifty like the roots of the shares
SUMMARY: dict[str, Any] = {
    "spent": 1_200,
    "wall_seconds": 20.0,
    "evaluation_queries": 359,
    "lost": 1,
    "label_mode": "probabilities",
    "teacher": {"shape": [1, 8, 8]},
    "evaluation": {"name": "digits", "images": 359, "held_back": False},
    "baselines": {"constant_agreement": 0.1},
}
SCORES = {100: 0.4, 200: 0.5, 300: 0.6, 500: 0.7, 1_200: 0.82}


def estimated(
    budget: int = 12_000, scores: dict[int, float] = SCORES, rate: float | None = None
) -> CloneEstimate:
    """The estimate of a pilot in five rounds of fifty steps in all, a hundredth of a second
    each.
    """
    job = parse(
        f"{DIGITS_SCORED} --recipe frugal --student.steps 50 --student.rounds {ROUNDS} --price-per-1000 10"
    )
    job = replace(job, teacher_options=job.teacher_options | {"images_per_second": rate})
    records: list[dict[str, float | None]] = []
    for number, (queries, agreement) in enumerate(scores.items(), 1):
        at = [(queries, 10 * number - 10, 0.1), (queries, 10 * number, agreement)]
        names = ("queries", "student_steps", "agreement", "seconds")
        records += [
            dict(zip(names, (q, s, a, 0.001 * q + 0.01 * s), strict=True)) for q, s, a in at
        ]
    return estimate(job, SUMMARY, records, budget)


def test_queries_time_and_money_belong_together() -> None:
    forecast = estimated()
    start = start_of([*SCORES.items()], 359)
    first, second, _ = forecast.levels
    assert (first.reached, first.queries) == (1_200, [None] * 3)
    assert second.reached is None
    for queries_to_goal, queries, seconds, cost in zip(
        start.queries_to(LAW, 0.9),
        second.queries,
        second.seconds,
        second.cost,
        strict=True,
    ):
        assert (
            queries is None
            if queries_to_goal is None
            else queries_to_goal <= queries < queries_to_goal + 1
        )
        if queries is not None:
            steps = sum(STEPS[share] for share in STEPS if share * queries > 1_200)
            assert seconds == pytest.approx(20 + 0.001 * (queries - 1_200) + 0.01 * steps, abs=0.06)
            assert cost == pytest.approx((queries + 360) / 100)
    # Of 12,000 queries: 10,800 to go, and the rounds at 1,680, 3,000, 4,800 and 12,000.
    assert forecast.training_share == pytest.approx(0.45 / (10.8 + 0.45), abs=1e-3)


def test_a_stated_rate_is_not_exceeded() -> None:
    slow, fast = estimated(rate=100), estimated()
    expected = [forecast.levels[1].queries[1] for forecast in (slow, fast)]
    assert expected[0] == expected[1]
    assert (slow.levels[1].seconds[1] - fast.levels[1].seconds[1]) == pytest.approx(
        (expected[0] - 1_200) * (0.01 - 0.001), abs=0.1
    )


def test_what_is_recommended_is_enough_for_the_highest_goal_within_the_budget() -> None:
    forecast = estimated()
    _, expected, high = forecast.levels[1].queries
    less = expected - 1
    assert estimated(less).recommended_budget == less, "no goal is expected within it: all of it"
    within = [level.queries for level in forecast.levels if (level.queries[1] or 12_001) <= 12_000]
    assert forecast.recommended_budget == min(within[-1][2] or 12_000, 12_000)
    assert estimated(expected + 1).recommended_budget == min(high or expected + 1, expected + 1)
    assert estimated(scores={100: 0.5, 500: 0.9, 1_200: 0.96}).recommended_budget is None, (
        "all is reached"
    )


@pytest.mark.parametrize(
    "scores", [{1_200: 0.8}, {100: 0.5, 500: 0.4, 1_200: 0.3}, {9: 0.01, 99: 0.05, 999: 0.1}]
)
def test_a_curve_without_a_rise_gives_no_estimate(scores: dict[int, float]) -> None:
    forecast = estimated(scores=scores)
    assert forecast.agreement_there is forecast.recommended_budget is None
    assert all(level.queries == [None] * 3 for level in forecast.levels if level.reached is None)


@pytest.fixture
def stop_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C before the students train for the fourth time."""
    times, proper = list[int](), StudentTrainer.train_pending

    def train(trainer: StudentTrainer, most: int) -> Any:
        times.append(trainer.steps)
        if len(times) == 4:
            ctrl_c()
        return proper(trainer, most)

    monkeypatch.setattr(StudentTrainer, "train_pending", train)
    return times


@pytest.mark.integration
def test_a_user_whose_pilot_is_stopped_goes_on_and_takes_the_run_that_is_recommended(
    capsys: pytest.CaptureFixture[str], stop_once: list[int]
) -> None:
    code, out, _ = printed(
        f"{DIGITS_SCORED} {SMALL} --budget 4k --price-per-1000 2 --out run", capsys
    )
    assert (code, len(stop_once)) == (130, 4)
    assert not Path("run", "estimate.json").exists()
    again = out.rstrip().splitlines()[-1]
    assert again == "  python run.py estimate --resume --out run --pilot 0.1 --budget 4000"
    code, out, _ = printed(again.partition("estimate ")[2], capsys)
    assert (code, audit(Path("run/ledger.jsonl")).spent) == (0, 400)
    forecast = json.loads(Path("run", "estimate.json").read_text())
    table = out[out.index("the pilot's agreement") :]
    assert (forecast["pilot"], forecast["budget"], forecast["scores"][-1][0]) == (400, 4_000, 400)
    assert printed("--resume --out run", capsys)[1].endswith(table), (
        "of a finished pilot, without asking"
    )
    command = table.rstrip().splitlines()[-1].split()
    assert command[:5] == ["python", "run.py", "--resume", "--out", "run"]
    assert main(command[2:]) == 0
    summary = json.loads(Path("run", "summary.json").read_text())
    assert summary["spent"] == audit(Path("run/ledger.jsonl")).spent == int(command[-1]) > 400
    assert (summary["lost"], json.loads(Path("run", "estimate.json").read_text())) == (0, forecast)


@pytest.mark.integration
def test_without_an_evaluation_set_it_says_that_queries_are_no_images_of_the_owner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = f"{DIGITS_SCORED} {SMALL} --evaluation.dataset none --budget 8k --pilot .5 --out run"
    code, out, _ = printed(words, capsys)
    assert code == 0
    assert "paid queries that were held back, not of images of yours" in out
    forecast = json.loads(Path("run", "estimate.json").read_text())
    assert forecast["evaluation"]["held_back"]
    assert len(forecast["scores"]) >= 3
