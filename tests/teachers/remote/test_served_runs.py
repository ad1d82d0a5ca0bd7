"""Runs through run.py serve's own server: modes arrive as they left, two meters agree."""

import json
from pathlib import Path

import pytest
import torch
from processes import EVALUATION, METHOD, STUDENT, command, student
from toys import LinearTeacher

from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import audit
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.label_modes import restrict
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options

Serving = pytest.importorskip("dfme.teachers.owner.serve.server").Serving

pytestmark = pytest.mark.integration

SPEC = ImageSpec((1, 4, 4))
KEY = "sesame/with+odd_characters"


def teacher(spec: ImageSpec = SPEC) -> LinearTeacher:
    return LinearTeacher(spec, num_classes=5, mode="logits")


def extract(serving, out: Path, *more: str, budget: int = 200):
    words = [
        "--teacher",
        "v2",
        "--teacher.url",
        serving.url,
        "--teacher.model",
        "m",
        "--out",
        str(out),
    ]
    return command([*words, *METHOD, *STUDENT, *EVALUATION, "--budget", str(budget), *more])


def agree(serving, out: Path) -> None:
    totals = audit(out / "ledger.jsonl")
    assert serving.meter.images == totals.spent + totals.evaluation_queries == totals.served


@pytest.mark.parametrize("encoding", ["binary", "json"])
@pytest.mark.parametrize(
    "mode", ["logits", "probabilities", "probabilities:3", "top_k:2", "top_k:2:3", "label"]
)
@pytest.mark.parametrize("spec", [SPEC, ImageSpec((3, 4, 5), levels=256)], ids=["floats", "bytes"])
def test_what_is_served_is_what_arrives(mode: str, encoding: str, spec: ImageSpec) -> None:
    inner = restrict(teacher(spec), LabelMode.parse(mode))
    x = spec.quantise(torch.rand(7, *spec.shape, generator=torch.Generator().manual_seed(3)))
    with Serving(inner, "m", max_batch=7) as serving:
        remote = connect_v2(
            V2Options(url=serving.url, model="m", encoding=encoding),
            TeacherConfig(kind="v2"),
            torch.device("cpu"),
        )
        assert (remote.spec, remote.num_classes, remote.info.max_batch) == (spec, 5, 7)
        assert str(remote.label_mode) == mode
        got, expected = remote.ask(x, "key"), inner(x)
        remote.close()
        assert serving.meter.images == 7
    torch.testing.assert_close(got, expected.to(got.dtype), rtol=0, atol=1e-6, equal_nan=True)


def test_a_run_through_http_is_the_run_in_process_and_two_meters_agree(tmp_path: Path) -> None:
    with Serving(teacher(), "m", max_batch=8) as serving:
        assert extract(serving, tmp_path / "one", "--teacher.in-flight", "1").code == 0
        agree(serving, tmp_path / "one")
    with Serving(teacher(), "m", max_batch=8, requests_per_second=100) as serving:
        ended = extract(serving, tmp_path / "four", "--teacher.price-per-1000", "2.5")
        assert ended.code == 0, ended.err
        agree(serving, tmp_path / "four")
        refused = sum(serving.meter.refused.values())
    assert student(tmp_path / "one") == student(tmp_path / "four")
    summary = json.loads((tmp_path / "four/summary.json").read_text())
    assert sum(summary["service"]["refused"].values()) == refused
    assert summary["cost"] == pytest.approx(
        2.5 * (summary["spent"] + summary["evaluation_queries"]) / 1000
    )


def test_a_key_opens_and_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, capfd
) -> None:
    caplog.set_level("INFO")
    with Serving(teacher(), "m", key=KEY) as serving:
        monkeypatch.setenv("DFME_TEST_KEY", "another")
        wrong = extract(serving, tmp_path / "wrong", "--teacher.api-key-env", "DFME_TEST_KEY")
        assert wrong.code == 2
        assert "401" in wrong.line
        assert "another" not in wrong.err
        assert serving.meter.images == 0
        monkeypatch.setenv("DFME_TEST_KEY", KEY)
        right = extract(serving, tmp_path / "run", "--teacher.api-key-env", "DFME_TEST_KEY")
        assert right.code == 0, right.err
        agree(serving, tmp_path / "run")
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []
    assert KEY not in right.err + caplog.text + "".join(capfd.readouterr())
    assert "DFME_TEST_KEY" in (tmp_path / "run/config.yaml").read_text()
