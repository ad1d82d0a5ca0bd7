"""``run.py check --backbone``: what is asked, charged and kept, of files, a killed process and a
service.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import one_line, run
from hostile import Hostile
from metered import METERED

from dfme.cli.check import CheckConfig
from dfme.oracle.ledger import audit

timm = pytest.importorskip("timm")

PROJECT = Path(__file__).resolve().parents[3]
FORM = "--teacher.shape 3,32,32 --teacher.levels 256"
SCALE = "--teacher.mean .485,.456,.406 --teacher.std .229,.224,.225"
METER = f"""{METERED}

import timm


class Meter(Metered):
    shape, num_classes, levels = (3, 32, 32), 4, 256

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.net = timm.create_model("test_resnet", False, num_classes=4).eval()
        self.net.load_state_dict(torch.load("owner.pt", weights_only=True))

    def __call__(self, images):
        self.count(images)
        with torch.no_grad():
            return self.net((images - 0.5) / 0.5).softmax(dim=1)
"""


@pytest.fixture
def models(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A public net of 1,000 classes, and an owner's with the same backbone and a head of four."""
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", False).train()
    with torch.no_grad():
        for _ in range(6):
            net(3 * torch.rand(32, 1, 1, 1) * torch.randn(32, 3, 32, 32) + torch.randn(32, 3, 1, 1))
    torch.save(net.state_dict(), "public.pt")
    head = {"fc.weight": 0.2 * torch.randn(4, 96), "fc.bias": torch.zeros(4)}
    torch.save(net.state_dict() | head, "owner.pt")
    (here / "meter.py").write_text(METER)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "meter", raising=False)
    return here


def verdict(out: str = "look") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(out, "backbone.json").read_text())
    return content


@pytest.mark.integration
def test_a_teacher_in_a_file_is_told_to_be_a_public_backbone(models: Path, capsys: Any) -> None:
    owner = f"--teacher.checkpoint owner.pt --teacher.arch timm:test_resnet {FORM} {SCALE}"
    words = f"check {owner} --teacher.num-classes 4 --price-per-1000 2"
    assert run(f"{words} --backbone timm:test_resnet=public.pt --out look") == 0
    shown = capsys.readouterr()
    assert "125 drawn images are asked and charged (check), 0.25 at the price given" in shown.err
    assert "copied exactly by 102 answers" in shown.out
    assert "\nasked    125 drawn images charged (check), in 2 requests, 0.25 at the" in shown.out
    assert "two decimals leave" in shown.out.splitlines()[-3]
    content = verdict()
    assert content["candidates"][0]["kind"] == "frozen"
    assert content["ledger"]["spent_by_purpose"]["check"] == content["asked"] == 125
    assert audit(Path("look/ledger.jsonl")).spent == 125
    # as much as it may, which is too little
    assert run(f"{words} --backbone timm:test_resnet=public.pt --images 60 --out less") == 0
    assert "cannot be told: 60 answers of the 102" in capsys.readouterr().out
    assert verdict("less")["asked"] == 60


@pytest.mark.integration
def test_a_killed_look_goes_on_and_asks_nothing_twice(models: Path, capsys: Any) -> None:
    words = "check --teacher meter:Meter --teacher.log log --backbone timm:test_resnet=public.pt"
    command = [sys.executable, str(PROJECT / "run.py"), *words.split(), "--out", "look"]
    more = ["--images", "110"]
    dying = {**os.environ, "DIES_AFTER": "50", "PYTHONPATH": str(models)}
    ended = subprocess.run(
        [*command, *more], capture_output=True, timeout=100, check=False, env=dying
    )
    assert ended.returncode == -9, ended.stderr
    assert 0 < len(Path("log").read_text().splitlines()) < 110
    for _ in range(2):
        assert run("check --resume --out look") == 0
        assert "copied exactly by 102 answers" in capsys.readouterr().out
    assert len(Path("log").read_text().splitlines()) == verdict()["asked"] == 110
    assert run("check --resume --out look --images 120") == 2
    assert "--images: expected 110, which this was begun with, got 120" in one_line(capsys)
    # other weights cost nothing
    torch.manual_seed(3)
    other = timm.create_model("test_vit", False, img_size=32)
    torch.save(other.state_dict(), "other.pt")
    assert run("check --resume --out look --backbone timm:test_vit=other.pt") == 0
    assert "copied" not in capsys.readouterr().out
    assert len(Path("log").read_text().splitlines()) == 110


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--backbone nowhere.pt", "--backbone: nowhere.pt: no such file or folder"),
        ("--backbone timm:no_such=public.pt", "--backbone: "),
        ("--backbone public.pt --out .", "--out: expected a new or empty directory"),
        ("--backbone public.pt --images 0", "--images: expected at least 1, got 0"),
        ("--out look", "--out: expected --backbone as well"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(
    models: Path, words: str, message: str, capsys: Any
) -> None:
    assert run(f"check --teacher meter:Meter --teacher.log log {words}") == 2
    assert message in one_line(capsys)
    assert not Path("log").exists()


def test_without_a_backbone_nothing_is_new() -> None:
    assert CheckConfig() == CheckConfig(images=None, backbone=(), out=None, resume=False)


@pytest.mark.integration
def test_a_service_is_asked_as_often_as_the_user_says_and_where_consent_allows(
    models: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DFME_AUTHORISED_BY", raising=False)
    backbone = "--backbone timm:test_resnet=public.pt"
    far = "--teacher v2 --teacher.url http://models.example/v2 --teacher.model m"
    assert run(f"check {far} {backbone} --images 125") == 2
    assert "--teacher.authorised-by" in one_line(capsys)
    with Hostile({2: "status:429/0"}) as server:
        words = f"check --teacher v2 --teacher.url {server.url} --teacher.model m {backbone}"
        assert run(words) == 2
        line = one_line(capsys)
        assert "--images: expected how many images the service may be asked, such as 125" in line
        assert server.images == 0
        assert run(f"{words} --images 125 --out look") == 0
        shown = capsys.readouterr()
        assert "copied" not in shown.out
        totals = audit(Path("look/ledger.jsonl"))
        assert server.images == totals.spent == totals.spent_by_purpose["check"] == 125
        assert totals.refused > 0
