"""``run.py drill --from``: what is sent, what is refused before the first image, what is said."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drilled import drill, outcome, recorded_run, stage
from torch import Tensor

from dfme.oracle.ledger import audit

__all__ = ["stage"]
AT_ONCE = 64


def images(count: int = 300, side: int = 8) -> Tensor:
    return torch.rand((count, 1, side, side), generator=torch.Generator().manual_seed(5))


def replayed(*words: str) -> tuple[int, str, str]:
    """A drill of ``Staged`` by the queries of ``recorded``, into ``out``."""
    usual = "--teacher staged_client:Staged --alarm-file alarms.jsonl --wait 0.05 --out out"
    return drill(*usual.split(), "--from", "recorded", *words)


def seen() -> Tensor:
    """What the service was asked."""
    return torch.from_numpy(np.fromfile("seen.f32", np.float32)).view(-1, 1, 8, 8)


def test_the_very_images_are_sent_in_their_order_and_nothing_is_trained(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    code, out, err = replayed("--teacher.rings", "150/290")
    assert code == 0, err
    assert torch.equal(seen(), images())
    told = outcome()
    asked = 3 * AT_ONCE  # 150 is of the third request, and the channel is read after each
    assert (told["images"], told["agreement"]) == (asked, 0.3)
    assert (told["agreement_end"], told["constant"], told["images_in_all"]) == (0.7, 0.1, 300)
    assert (told["attack"], told["from"]) == ("frugal", str(stage / "recorded"))
    ledger = audit(Path("out/ledger.jsonl"))
    assert (ledger.spent, ledger.spent_by_purpose["check"]) == (300, 300)
    assert ledger.evaluation_queries == 0
    words = (
        "drill: rang after 192 images, when the recorded copy agreed on 30.0%, and on 70.0% once "
        "it had learned from 200 (one constant answer: 10.0%; in the end 70.0%); the alarm is of la"
    )
    assert out.startswith(words)
    assert not Path("out/student.safetensors").exists()


def test_before_the_first_evaluation_the_constant_answer_stands(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    assert replayed("--teacher.rings", "3")[0] == 0
    assert (outcome()["images"], outcome()["agreement"]) == (AT_ONCE, 0.1)


def test_a_budget_and_an_alarm_end_it_early(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    code, out, _ = replayed("--budget", "100")
    assert code == 4
    assert torch.equal(seen(), images()[:100])
    assert "drill: never rang in 100 images; the recorded copy agreed on 30.0% (one con" in out
    Path("seen.f32").unlink()
    words = ("--teacher.rings", "3", "--stop-at-alarm", "true", "--out", "stopped")
    assert replayed(*words)[0] == 0
    assert outcome("stopped")["images_in_all"] == AT_ONCE
    assert outcome("stopped")["agreement_end"] == 0.1  # of what was sent, not of the whole record


def test_a_refusal_is_an_outcome(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    code, out, _ = replayed("--teacher.rings", "70", "--teacher.refuses", "128")
    assert code == 0
    assert outcome()["refused_at"] == 128
    assert "the service refused us after 128 images" in out


def test_what_was_asked_before_a_failure_is_not_asked_again(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    code, _, err = replayed("--teacher.fails", "200", "--teacher.rings", "130")
    assert code == 3
    assert (outcome()["rang"], outcome()["finished"]) == (True, False)
    words = ("--teacher.fails", "1000000000", "--budget", "400")
    code, _, err = drill("--resume", "--out", "out", *words)
    assert code == 0, err
    assert torch.equal(seen(), images())
    told = outcome()
    ledger = audit(Path("out/ledger.jsonl"))
    assert (told["images"], told["finished"]) == (192, True)
    assert (ledger.failed, ledger.spent) == (AT_ONCE, 300 + AT_ONCE)


REFUSED: dict[str, dict[str, Any]] = {
    "images of another shape": {"images": torch.rand((5, 1, 9, 9))},
    "images of other levels": {"images": torch.zeros((5, 1, 8, 8)), "levels": 256},
    "another number of classes": {"images": torch.rand((5, 1, 8, 8)), "classes": 7},
    "no image": {"images": torch.rand((0, 1, 8, 8))},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_record_that_does_not_fit_is_refused_before_the_first_image(
    stage: Path, what: str
) -> None:
    recorded_run(Path("recorded"), **REFUSED[what])
    code, out, err = replayed()
    assert (code, out) == (2, "")
    assert err.startswith("dfme: --from: expected ")
    assert err.count("\n") == 1
    assert not Path("seen.f32").exists()
    assert not Path("out").exists()


def test_a_directory_that_is_neither_is_refused_and_so_is_an_audit_without_queries(
    stage: Path,
) -> None:
    for name in ("nowhere", "."):
        code, _, err = drill(*"--teacher staged_client:Staged --alarm-file a --from".split(), name)
        assert code == 2
        assert "expected the directory of an audit, or of a run with queries/" in err
    recorded_run(Path("recorded"), images())
    Path("recorded/queries/form.json").write_text("{}")
    code, _, err = replayed()
    assert code == 2
    assert err.count("\n") == 1
    Path("recorded/queries/form.json").write_text(json.dumps({"schema": "dfme.queries/1"}))
    assert replayed()[0] == 2


def audit_with(monkeypatch: pytest.MonkeyPatch, **places: str) -> None:
    """An audit whose headline's attack by scores has these cells, by their names, in these places."""
    cells = [SimpleNamespace(name=name, dir=place) for name, place in places.items()]
    lines = [
        SimpleNamespace(row="frugal", mode="label", cells=["by_labels"]),
        SimpleNamespace(row="frugal", mode="probabilities", cells=["first", "second"]),
        SimpleNamespace(row="dfme", mode="probabilities", cells=["other"]),
    ]
    headline = SimpleNamespace(attacker="frugal", mode="probabilities")
    audit = SimpleNamespace(headline=headline, price=lines, cells=cells)
    monkeypatch.setattr("dfme.audits.drill.replay.recorded", lambda path: audit)


def test_of_an_audit_the_cheapest_attack_is_taken_that_recorded_its_queries(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("by_labels", "second", "other"):
        recorded_run(stage / "recorded" / "cells" / name, images(70 if name == "second" else 20))
    names = ("by_labels", "first", "second", "other")
    audit_with(monkeypatch, **{name: f"cells/{name}" for name in names})
    code, _, err = replayed()
    assert code == 4, err
    assert torch.equal(seen(), images(70))


def test_of_an_audit_no_directory_elsewhere_is_read(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_run(stage / "elsewhere", images(20))
    (stage / "recorded").mkdir()
    (stage / "recorded" / "link").symlink_to(stage / "elsewhere")
    audit_with(monkeypatch, first="../elsewhere", second="link")
    code, _, err = replayed()
    assert code == 2
    assert "no run of the attack in the audit's headline (frugal) has recorded queries in" in err


def test_a_service_that_is_another_model_than_the_recorded_one_is_said(stage: Path) -> None:
    x = images()
    truth = staged_classes(x)
    for name, share in (("alike", 0.99), ("other", 0.6)):
        recorded_run(stage / name, x)
        classes = truth.clone()
        wrong = round(300 * (1 - share))
        classes[:wrong] = (classes[:wrong] + 1) % 10
        scores = torch.nn.functional.one_hot(classes, 10).double().numpy()
        (stage / name / "queries" / "scores.f64").write_bytes(scores.tobytes())
        _, out, _ = replayed("--from", name, "--out", f"{name}_out")
        said = "to 40.0% of the images the service named another class than the recorded model"
        assert (said in out) == (name == "other")


def staged_classes(x_BCHW: Tensor) -> Tensor:
    """The classes that the service of ``Staged`` names."""
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    return ((x_BCHW - 0.5).flatten(1) @ weight).argmax(1)


@pytest.mark.parametrize(
    "text",
    [
        '{"queries": 100, "agreement": "high", "constant_agreement": [1]}',
        '{"queries": 100, "agreement": 1e300}',
        '{"queries": 100, "agreement": true}',
        '{"queries": 100, "agreement": null}',
    ],
)
def test_a_curve_without_sense_is_none(stage: Path, text: str) -> None:
    recorded_run(Path("recorded"), images(70))
    Path("recorded/metrics.jsonl").write_text(text + "\n")
    summary = {"budget": 5, "spent": 5, "baselines": ["constant_agreement"]}
    Path("recorded/summary.json").write_text(json.dumps(summary))
    code, out, err = replayed("--teacher.rings", "5")
    assert code == 0, err
    assert "drill: rang after 64 images; the alarm is of labels" in out


@pytest.mark.parametrize(
    "option",
    ["--student.steps", "--recipe", "--evaluation.dataset", "--seed", "--method", "--minutes"],
)
def test_an_option_that_only_training_reads_is_refused(stage: Path, option: str) -> None:
    recorded_run(Path("recorded"), images(5))
    values = {"--recipe": "dfme", "--evaluation.dataset": "digits", "--method": "static"}
    code, _, err = replayed(option, values.get(option, "5"))
    assert code == 2
    assert f"dfme: {option}: leave it out: with --from nothing is trained" in err


def test_the_plan_says_how_many_images_and_what_they_cost_and_sends_none(stage: Path) -> None:
    recorded_run(Path("recorded"), images())
    code, out, _ = replayed("--dry-run", "--price-per-1000", "2", "--budget", "250")
    assert code == 0
    assert "250 recorded images of frugal are sent again and charged (check), 0.50 at the" in out
    assert f"alarm_file: {stage / 'alarms.jsonl'}" in out
    assert not Path("out").exists()
    assert not Path("seen.f32").exists()
