"""The record says what was audited, when, and with how many threads; a run goes on from it wherever its files lie."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_runs import BUDGET, SMALL, Metered, break_down, clone, ctrl_c, student

from dfme.cli.main import main
from dfme.errors import TeacherError, UserError
from dfme.oracle.ledger import Ledger
from dfme.run.job import PROJECT
from dfme.run.resuming import require_same_adapter
from dfme.teachers.facts import resolved_adapter

pytestmark = pytest.mark.usefixtures("here")

DIGITS = PROJECT / "teachers/checkpoints/digits.safetensors"


def summary(out: str | Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return told


def events(out: str | Path, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(out) / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def test_a_file_is_named_with_its_digest_and_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert main([*SMALL, "--teacher.checkpoint", str(DIGITS), "--out", "run"]) == 0
    told, digest = summary("run"), hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    assert told["teacher"]["target"] == f"digits.safetensors, sha256 {digest}"
    assert told["teacher"]["class_names"] == list("0123456789")
    assert events("run", "budget")[0]["teacher"] == told["teacher"]
    dates = [datetime.strptime(told[name], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) for name in ("started", "ended")]
    assert before <= dates[0] <= dates[1] <= datetime.now(UTC)
    assert main(["--resume", "--out", "run", "--budget", "140"]) == 0
    again = summary("run")
    assert again["started"] == told["started"]
    assert [each["started"] for each in again["stretches"]] == [each["started"] for each in events("run", "stretch")]
    assert [each["ended"] for each in again["stretches"]] == [each["at"] for each in events("run", "ended")]
    assert len(again["stretches"]) == 2


def test_a_module_of_ones_own_is_named_and_may_be_mended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(".")
    source = (
        "class T:\n    shape, num_classes, class_names = (1, 8, 8), 2, ('dark', 'light')\n"
        "    def __call__(self, x):\n        p = x.mean((1, 2, 3))\n        return [[1 - q, q] for q in p.tolist()]\n"
    )
    Path("recorded_teacher.py").write_text(source)
    words = [*SMALL, "--teacher", "recorded_teacher:T", "--out", "run"]
    assert main(words) == 0
    digest = hashlib.sha256(source.encode()).hexdigest()
    told = summary("run")["teacher"]
    assert told["target"] == f"recorded_teacher:T in recorded_teacher.py, sha256 {digest}"
    assert told["class_names"] == ["dark", "light"]
    Path("recorded_teacher.py").write_text(source + "# mended\n")
    capsys.readouterr()
    assert main(["--resume", "--out", "run", "--budget", "140"]) == 0
    assert f"'recorded_teacher.py' (sha256 '{digest[:12]}') is now" in capsys.readouterr().err


def test_a_checkpoint_that_lies_elsewhere_goes_on_if_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(DIGITS, "t.safetensors")
    assert main([*SMALL, "--teacher.checkpoint", "t.safetensors", "--out", "runs/a"]) == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    out = "../runs/a"
    assert main(["--resume", "--out", out, "--budget", "120"]) == 0  # found where the run was begun
    (here / "t.safetensors").rename("u.safetensors")
    assert main(["--resume", "--out", out, "--budget", "140", "--teacher.checkpoint", "u.safetensors"]) == 0
    monkeypatch.chdir(here)
    assert main(["--resume", "--out", "runs/a", "--budget", "160"]) == 0
    shutil.copy(PROJECT / "teachers/checkpoints/shapes.safetensors", "v.safetensors")
    capsys.readouterr()
    assert main(["--resume", "--out", "runs/a", "--budget", "180", "--teacher.checkpoint", "v.safetensors"]) == 2
    digests = [hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in (DIGITS, Path("v.safetensors"))]
    assert f"file checkpoint {digests[0]} (now {digests[1]})" in capsys.readouterr().err


ADAPTER = """
url: https://host/v1?version=2&apikey=abc123
headers: {X-Api-Key: hunter2, X-Token: "${KEY}", Accept-Language: en}
request: {json: {i: "${image}", auth: {password: swordfish}}}
answer: {path: s, form: mapping, classes: labels.txt}
"""


def test_an_adapter_is_written_out_without_secrets_and_held_to() -> None:
    Path("labels.txt").write_text("cat\ndog\n")
    Path("a.yaml").write_text(ADAPTER)
    text = resolved_adapter("json", {"adapter": "a.yaml", "url": ""})
    told = yaml.safe_load(text)
    assert told["url"] == "https://host/v1?version=2&apikey=***"
    assert told["headers"] == {"X-Api-Key": "***", "X-Token": "${KEY}", "Accept-Language": "en"}
    assert told["request"]["json"] == {"i": "${image}", "auth": {"password": "***"}}
    assert told["answer"]["classes"] == ["cat", "dog"]
    assert told["image"]["encoding"] == "png_base64"
    Path("kept.yaml").write_text(text)
    require_same_adapter(Path("kept.yaml"), text)
    changed = resolved_adapter("json", {"adapter": "a.yaml", "url": "https://host/v2"})
    first, now = (hashlib.sha256(each.encode()).hexdigest()[:12] for each in (text, changed))
    said = rf"url was '.*apikey=\*\*\*' \(now 'https://host/v2'\), sha256 as read {first} \(now {now}\)"
    with pytest.raises(UserError, match=said):
        require_same_adapter(Path("kept.yaml"), changed)


@pytest.fixture
def threads() -> Iterator[int]:
    """One for now; the number of this process is put back."""
    now = torch.get_num_threads()
    torch.set_num_threads(1)
    yield 1
    torch.set_num_threads(now)


def test_a_run_goes_on_with_its_own_number_of_threads(
    threads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 0.6.0 it went on with the others, and the student was another."""
    out = tmp_path / "run"
    with pytest.raises(TeacherError):
        clone(out, Metered({9: break_down}), device="cpu")
    torch.set_num_threads(3)
    assert clone(out, Metered(), device="cpu", resume=True, progress=True).finished
    said = f"threads: the run was begun with {threads} threads of torch, this process had 3; this stretch takes 1, too"
    assert said in capsys.readouterr().err
    assert [each["threads"] for each in events(out, "stretch")] == [1, 1]
    assert torch.get_num_threads() == 3


def test_a_ledger_cannot_ask_for_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    with pytest.raises(TeacherError):
        clone(tmp_path / "r", Metered({9: break_down}), device="cpu")
    path = tmp_path / "r" / "ledger.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    path.unlink()
    forged = Ledger(BUDGET, path, facts=first["teacher"])
    forged.begin(10**9)
    forged.settle()
    forged.close()
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / "r" / name).unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "r" / "journal")
    assert clone(tmp_path / "r", Metered(), device="cpu", resume=True).finished
    assert events(tmp_path / "r", "stretch")[1]["threads"] == threads


def test_a_signal_before_the_first_step_is_heeded_at_once_and_loses_nothing(tmp_path: Path) -> None:
    """On 0.6.0 the evaluation, and the first step of the method, were gone through first."""
    evaluation: dict[str, Any] = {"dataset": "digits", "limit": 40, "points": 1}
    whole, out, first, second = tmp_path / "whole", tmp_path / "run", Metered({1: ctrl_c}), Metered()
    clone(whole, Metered(), evaluation=evaluation)
    with pytest.raises(KeyboardInterrupt):
        clone(out, first, evaluation=evaluation)
    assert first.calls == 1
    assert clone(out, second, resume=True, evaluation=evaluation).finished
    assert first.served + second.served == BUDGET + 40
    assert student(out) == student(whole)


def test_images_of_no_known_size_are_those_of_the_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    from dfme.nets import build_net

    torch.save(build_net("cnn_small", (1, 8, 8), 10).state_dict(), "net.pt")
    words = [*SMALL, "--teacher.checkpoint", "net.pt"]
    assert main([*words, "--out", "a"]) == 2
    assert re.fullmatch(r"dfme: --teacher\.shape: .*give --teacher\.shape C,H,W\n", capsys.readouterr().err)
    assert not Path("a").exists()
    assert main([*words, "--out", "b", "--evaluation.dataset", "digits"]) == 0
    assert "images 1x8x8, as those of the evaluation (--teacher.shape)" in capsys.readouterr().err
    assert summary("b")["teacher"]["shape"] == [1, 8, 8]
