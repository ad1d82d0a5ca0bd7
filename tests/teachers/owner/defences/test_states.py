"""What defences remember, in this process and behind ``run.py serve``."""

import math
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from clients import question
from defended import ALL, KEY, WEIGHTS, defended, digits, pairs, queries, truths, watched
from processes import command
from refusals import refusal

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.errors import Refused
from dfme.oracle.ledger import audit
from dfme.teachers.open_inference.client import connect_v2
from dfme.teachers.options import V2Options
from dfme.teachers.owner.serve.server import Serving

STATEFUL = (
    *("modelguard_s:epsilon=.5", "modelguard_s:epsilon=0:limit=9", "noise:key_env=K"),
    *("watermark:key_env=K:rate=.2", "quota:images=9000", "quota:images=9000:window=99", "pow"),
    "noise:key_env=K+modelguard_s+pow+quota",
)


def comparable(state: dict[str, Any]) -> str:
    return str(
        {name: {k: v for k, v in each.items() if k != "window"} for name, each in state.items()}
    )


@pytest.mark.parametrize("text", [*STATEFUL, "watch"])
def test_a_state_taken_up_or_replayed_goes_on_bit_by_bit(text: str) -> None:
    parts = torch.cat([pairs()[:300], queries()[:600]]).split(300)
    make = partial(watched, ALL) if text == "watch" else partial(defended, text)
    unbroken, resumed, replaying, before = (make() for _ in range(4))
    answers = [unbroken(part) for part in parts]
    before(parts[0])
    resumed.load_state_dict(before.state_dict())
    for part, answer in zip(parts[1:], answers[1:], strict=True):
        assert torch.equal(resumed(part), answer)
    for part, answer in zip(parts[:2], answers[:2], strict=True):
        replaying.replay_answer(part, answer)
    assert torch.equal(replaying(parts[2]), answers[2])
    states = [comparable(teacher.state_dict()) for teacher in (unbroken, resumed, replaying)]
    assert states[0] == states[1] == states[2] != comparable(before.state_dict())
    assert KEY not in str(unbroken.report()) + str(unbroken.state_dict()) + repr(unbroken) + str(
        unbroken.info.defences
    )
    if text == "watch":
        reports = [teacher.info.watch.report() for teacher in (unbroken, resumed, replaying)]
        assert reports[0] == reports[1] == reports[2]
        assert (
            len([teacher for teacher in reports[0]["detectors"].values() if teacher["first_alarm"]])
            >= 5
        )


@pytest.mark.parametrize("text", STATEFUL)
def test_an_honest_users_look_leaves_the_state_alone(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = defended(text)
    teacher(queries()[:300])
    state = str(teacher.state_dict())
    served = teacher.preview(queries()[300:400])
    assert torch.equal(served, teacher.preview(queries()[300:400]))
    assert str(teacher.state_dict()) == state
    assert torch.equal(teacher(queries()[300:400]), served)
    state = str(teacher.state_dict())
    last = teacher._stack[-1]
    answer = last.answer

    def fails(*arguments: Any) -> Any:
        answer(*arguments)
        raise RuntimeError

    monkeypatch.setattr(last, "answer", fails)
    refusal("", teacher.preview, queries()[400:500], error=RuntimeError)
    assert str(teacher.state_dict()) == state


def test_the_truth_is_the_teacher_without_defences_in_the_same_label_mode() -> None:
    for mode in ("label", "top_k:3", "probabilities:3"):
        teacher = defended("noise:key_env=K", mode)
        truth = digits("none", mode)(queries()[:300]).nan_to_num()
        assert torch.equal(teacher.undefended(queries()[:300]).nan_to_num(), truth)
        assert str(teacher.undefended.label_mode) == str(teacher.label_mode) == mode
    assert digits().info.undefended is None


@pytest.mark.parametrize("mode", ["top_k:3", None])
def test_another_key_is_noticed_by_the_witness(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = defended("noise:key_env=K:sigma=.5", mode)(queries()[:64])
    defended("noise:key_env=K:sigma=.5", mode).replay_answer(queries()[:64], answers)
    monkeypatch.setenv("K", "another-key")
    refusal(
        r"noise:.*: other answers than on record; expected the same key",
        defended("noise:key_env=K:sigma=.5", mode).replay_answer,
        queries()[:64],
        answers,
        error=ValueError,
    )


def test_modelguard_s_answers_the_first_stored_within_epsilon_in_order() -> None:
    """Against a loop over images, written from the rule."""
    teacher, epsilon = defended("modelguard_s:epsilon=.4:limit=6"), 0.4
    (defence,) = teacher._stack
    p = truths()[:1_500].double()
    p = p / p.sum(1, keepdim=True)
    stores: dict[int, list[torch.Tensor]] = {}
    expected, over = [], 0
    for row in p:
        store = stores.setdefault(int(row.argmax()), [])
        distances = [float((row - stored).abs().sum()) for stored in store]
        near = [
            stored for stored, distance in zip(store, distances, strict=True) if distance <= epsilon
        ]
        if near:
            expected.append(near[0])
        elif len(store) < 6:
            store.append(row)
            expected.append(row)
        else:
            expected.append(store[distances.index(min(distances))])
            over += 1
    answers = torch.cat([defence.answer(part, part) for part in p.split(128)])
    assert torch.equal(answers, torch.stack(expected))
    assert over > 0
    stored = sum(map(len, stores.values()))
    assert teacher.report() == {"modelguard_s": {"over_budget": over, "centroids": stored}}
    again = defended("modelguard_s:epsilon=2")
    again(queries()[:600])
    assert again.report()["modelguard_s"]["centroids"] == len(truths()[:600].argmax(1).unique())


def test_a_quota_for_good_counts_what_it_answers_and_no_more() -> None:
    teacher = defended("quota:images=300")
    teacher(queries()[:200])
    for _ in range(2):
        text = re.escape("the quota of 300 images is used up (200 answered, 101 asked for)")
        caught = refusal(f"^{text}$", teacher, queries()[:101], error=Refused)
        assert (caught.reason, caught.retry) == ("quota", False)
    assert torch.equal(teacher(queries()[200:300]), truths()[200:300])
    assert teacher.report()["quota"] == {"images": 300, "refused": 202, "window": 0}
    teacher.preview(queries()[:50])
    teacher.replay_answer(queries()[:1], teacher.undefended(queries()[:1]))
    assert teacher.state_dict()["quota"]["images"] == 301


def test_a_quota_with_a_window_says_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    teacher = defended("quota:images=100:window=60")
    # the clock reads it
    for now, images in ((1_000.0, 50), (1_010.0, 30), (1_020.0, 20)):  # noqa: B007
        teacher(queries()[:images])
    for images, seconds in ((1, 40), (50, 40), (51, 50), (100, 60)):
        caught = refusal("within 60 s", teacher, queries()[:images], error=Refused)
        assert (caught.retry, caught.retry_after) == (True, seconds)
    caught = refusal("", teacher, queries()[:101], error=Refused)
    assert not caught.retry
    now = 1_060.0
    teacher(queries()[:50])
    refusal("", teacher, queries()[:1], error=Refused)
    now = 1_080.0
    teacher(queries()[:50])


def test_work_is_that_of_the_stream_so_far() -> None:
    teacher = defended("pow:usual=.2:base=1.05")
    p = truths()[:400].double()
    teacher(queries()[:400])
    nats = [
        -sum(x * math.log(x) for x in row if x > 0) for row in (p / p.sum(1, keepdim=True)).tolist()
    ]
    seconds = [min(max(1.05 ** (sum(nats[:n]) - 0.2 * n), 0.1), 2_948.0) for n in range(400)]
    report = teacher.report()["pow"]
    assert report["images"] == 400
    assert report["nats"] == pytest.approx(sum(nats))
    assert report["seconds_of_work"] == pytest.approx(sum(seconds))
    assert min(seconds) < 0.3
    steep = defended("pow:base=1000")
    steep(queries()[:400])
    assert max(1000.0, steep.report()["pow"]["seconds_of_work"]) < 400 * 2_948.0 + 1


SERVED = "noise:key_env=K:sigma=.05+modelguard_s:epsilon=.5+watermark:key_env=K:rate=.2"


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
def test_a_run_against_a_quota_ends_in_one_line_with_everything_kept(tmp_path: Path) -> None:
    with Serving(defended("quota:images=500+noise:key_env=K"), "digits") as serving:
        line = (
            f"extract --method.name procedural --teacher v2 --teacher.url {serving.url} "
            "--teacher.model digits --evaluation.dataset none --budget 2k "
            f"--out {tmp_path / 'kept'}"
        )
        ended = command(line.split())
    assert ended.code == 3, ended.err
    (last,) = [line for line in ended.err.splitlines() if "answered 403" in line]
    assert re.search(
        r'answered 403 \(\{"error":\s?"refused: quota"\}\).*all that was paid is kept', last
    )
    assert not re.search(f"Traceback|{KEY}", ended.err)
    ledger = tmp_path / "kept" / "ledger.jsonl"
    assert "403" in ledger.read_text()
    assert 0 < serving.meter.images == audit(ledger).spent <= 500


@pytest.mark.integration
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
