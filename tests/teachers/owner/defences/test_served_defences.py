"""Defences behind ``run.py serve``, and in a run's directory: what clients get, what they are not
told.
"""

import json
import re
import signal
from pathlib import Path

import httpx2
import pytest
import torch
from clients import question
from defended import KEY, WEIGHTS, defended, queries
from processes import PROJECT, Bench

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dfme.teachers.owner.serve.server import Serving

pytestmark = pytest.mark.integration

SERVED = "noise:key_env=K:sigma=.05+modelguard_s:epsilon=.5+watermark:key_env=K:rate=.2"


@pytest.mark.parametrize("mode", ["probabilities", "top_k:3"])
def test_a_client_gets_what_the_defended_teacher_answers(mode: str) -> None:
    with Serving(defended(SERVED, mode), name="digits") as serving:
        options = V2Options(url=serving.url, model="digits")
        client = connect_v2(options, TeacherConfig(kind="v2"), torch.device("cpu"))
        local = defended(SERVED, mode)
        assert str(client.label_mode) == mode
        for part in queries()[:300].split(100):  # in order of arrival
            answers = client(part)
            assert torch.equal(answers.nan_to_num(), local(part).nan_to_num())
            if mode == "probabilities":
                assert float((answers.sum(1) - 1).abs().max()) < 1e-6
        client.close()
        for path in ("/v2", "/v2/models/digits", "/v2/models/digits/config", "/metrics"):
            assert not re.search(
                "noise|modelguard|watermark|defen", httpx2.get(serving.url + path).text
            )


def test_a_quota_is_refused_in_words_and_served_to_nobody() -> None:
    for text, status, wait in (
        ("quota:images=100", 403, None),
        ("quota:images=100:window=50", 429, "50"),
    ):
        with Serving(defended(text), name="digits") as serving:
            url = f"{serving.url}/v2/models/digits/infer"
            replies = [httpx2.post(url, json=question(queries()[:40])) for _ in range(3)]
            assert [reply.status_code for reply in replies] == [200, 200, status]
            assert replies[2].json() == {"error": "refused: quota"}
            assert replies[2].headers.get("Retry-After") == wait
            assert (serving.meter.images, serving.meter.requests, serving.meter.answered) == (
                80,
                2,
                2,
            )
            assert serving.meter.refused == {"quota": 1}
            assert serving.meter.failed == 0


def test_a_run_against_a_quota_ends_in_one_line_with_everything_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.environment["K"] = KEY
    serve = ["serve", "--port", "0", "--teacher.defences", "quota:images=500+noise:key_env=K"]
    server = bench.start([*serve, "--teacher.checkpoint", str(PROJECT / WEIGHTS)])
    opening = re.match(r"digits at (\S+): [^+]* extract: [^+]*\n", server.stdout.readline())
    assert "noise" not in opening[0]
    assert server.stdout.readline().startswith(
        "behind quota:images=500:window=0.0+noise:sigma=0.2:"
    )
    line = (
        f"extract --method.name procedural --teacher v2 --teacher.url {opening[1]} "
        "--teacher.model digits"
    )
    run = bench.start(
        [*line.split(), "--evaluation.dataset", "none", "--budget", "2k", "--out", "kept"]
    )
    out, err = run.communicate(timeout=120)
    assert run.returncode == 3, err
    (last,) = [line for line in err.splitlines() if "answered 403" in line]
    assert re.search(
        r'answered 403 \(\{"error":\s?"refused: quota"\}\).*all that was paid is kept', last
    )
    assert "Traceback" not in out + err
    ledger = [
        json.loads(line) for line in (tmp_path / "kept/ledger.jsonl").read_text().splitlines()
    ]
    assert any("403" in str(line) for line in ledger)
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=60)
    served = re.search(
        r"served (\d+) images .*; refused 1 requests .*; quota \{'images': (\d+)", out
    )
    assert served is not None, out
    assert served[1] == served[2]
    assert 0 < int(served[1]) <= 500
    assert KEY not in out + err


def test_no_key_is_written_anywhere_by_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    defences = (
        "noise:key_env=K+watermark:key_env=K+misinform:key_env=K:tau=.5+modelguard_s:epsilon=.2"
    )
    line = (
        f"extract --teacher.checkpoint {WEIGHTS} --teacher.defences {defences} "
        "--method.name procedural"
    )
    assert main(f"{line} --budget 300 --student.steps 5 --out {tmp_path / 'run'}".split()) == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 4
    forms = [KEY.encode(), KEY.encode().hex().encode(), KEY.encode("utf-16-le")]
    outputs = ["".join(capfd.readouterr()).encode(), *(path.read_bytes() for path in files)]
    assert not any(form in content for content in outputs for form in forms)
    assert (
        "noise:sigma=0.2:fresh=true:keep_top=false:key_env=K"
        in (tmp_path / "run/config.yaml").read_text()
    )
