"""Drills of real services: ``run.py serve``, an app behind ``dfme.Guard``, a webhook's receiver."""

import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
import torch
from defended import WEIGHTS, digits, watched
from drilled import BATCH, EVALUATED, agreement_by, drill, outcome, recorded_run
from guarded_apps import served
from processes import PROJECT, Bench, in_this_process
from service import Request, Service, http

from dfme.oracle.ledger import audit
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec
from dfme.teachers.owner.watch.alarms import Alarm, AlarmFile
from dfme.teachers.owner.watch.record import account_tag

pytestmark = pytest.mark.integration
Serving = pytest.importorskip("dfme.teachers.owner.serve.server").Serving
KEY = "the-key-of-the-drill"
SMALL = "--budget 400 --student.arch cnn_small --student.steps 40 --wait 0.2".split()
LIVE = ["--evaluation.dataset", "digits", *SMALL]
AT_ONCE = 64


@pytest.fixture
def keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with the embedded teachers, and a key in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("teachers", "configs"):
        (tmp_path / name).symlink_to(PROJECT / name)
    monkeypatch.setenv("DRILL_KEY", KEY)
    return tmp_path


def of_v2(url: str, *words: str) -> tuple[int, str, str]:
    teacher = f"--teacher v2 --teacher.url {url} --teacher.model digits"
    return drill(*teacher.split(), *words)


def attack(count: int = 400) -> torch.Tensor:
    """Images as the recipe frugal begins with."""
    rng = torch.Generator().manual_seed(0)
    return ProceduralImages(ImageSpec((1, 8, 8)), ["leaves", "pen"]).draw(count, rng)


def first_alarm(path: Path, account: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    own = [line for line in lines if line["account"] == account]
    return own[0]


def judged(out: str, alarm: dict[str, Any], before: int, step: int) -> dict[str, Any]:
    """The outcome in ``out``, held against the service's own first alarm, which came after
    ``before`` images that were not the attack's.
    """
    told = outcome(out)
    number = alarm["image"] - before
    assert number <= told["images"], "an upper bound"
    assert told["images"] - number < 4 * step, "seen within some requests"
    assert json.loads(told["alarm"]) == alarm
    return told


@contextmanager
def served_by_the_command(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """``run.py serve`` with a key and a watch: its address, and its last line once it has ended."""
    bench = Bench(folder)
    bench.environment["DRILL_KEY"] = KEY
    line = (
        "serve --port 0 --device cpu --api-key-env DRILL_KEY --watch coverage,scores "
        "--benign digits --alarm-file alarms.jsonl"
    )
    process = bench.start(line.split())
    ended: list[str] = []
    try:
        assert process.stdout is not None
        yield re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0], ended
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        ended += out.splitlines()[-1:]


def images_of(out: str) -> int:
    """All that the ledger says was asked."""
    totals = audit(Path(out, "ledger.jsonl"))
    return totals.spent + totals.evaluation_queries


KEYED = ["--teacher.api-key-env", "DRILL_KEY", "--alarm-file", "alarms.jsonl"]


@pytest.mark.timeout(200)
def test_a_served_teacher_is_drilled_live(keyed: Path) -> None:
    with served_by_the_command(keyed) as (url, ended):
        code, out, err = of_v2(url, *LIVE, *KEYED, "--out", "live")
    assert code == 0, err
    told = judged("live", first_alarm(keyed / "alarms.jsonl", account_tag(KEY)), EVALUATED, BATCH)
    assert told["agreement"] == agreement_by("live", told["images"])
    assert out.splitlines()[-2].startswith(f"drill: rang after {told['images']} images, when the")
    files = [path for path in Path("live").iterdir() if path.is_file()]
    kept = "".join(path.read_text(errors="ignore") for path in files)
    assert KEY not in out + err + kept
    assert f"served {images_of('live'):,} images" in ended[0]
    # an ordinary run, of which a report can be drawn again
    assert in_this_process(["report", "live"])[0] == 0


@pytest.mark.timeout(200)
def test_a_served_teacher_rings_at_a_record_where_the_watch_of_the_recorded_run_did(
    keyed: Path,
) -> None:
    run = "extract --recipe frugal --record-queries true --evaluation.dataset digits --out run"
    watch = "--teacher.watch coverage,scores --teacher.benign digits"
    local = f"{run} --teacher.checkpoint {PROJECT / WEIGHTS} {watch}".split()
    assert in_this_process([*local, *SMALL[:6]])[0] == 0
    with served_by_the_command(keyed) as (url, ended):
        words = [*KEYED, "--wait", "0.2", "--from", "run", "--out", "again"]
        code, _, err = of_v2(url, *words)
    assert code == 0, err
    alarm = first_alarm(keyed / "alarms.jsonl", account_tag(KEY))
    told = judged("again", alarm, 0, AT_ONCE)
    assert told["images"] == -(-alarm["image"] // AT_ONCE) * AT_ONCE
    assert told["agreement"] == agreement_by("run", told["images"])
    summary = json.loads(Path("run/summary.json").read_text())
    assert told["agreement_end"] == summary["agreement"]
    lines = [json.loads(line) for line in Path("alarms.jsonl").read_text().splitlines()]
    for name, seen in summary["watch"]["detectors"].items():
        rung = [line["image"] for line in lines if line["detector"] == name]
        assert rung[0] == seen["first_alarm"]
    assert f"served {images_of('again'):,} images" in ended[0]


def app_of_the_docs(**changed: str) -> Any:
    """The app behind a guard that docs/drill.md shows, with some of the guard's options changed."""
    page = (PROJECT / "docs/drill.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, text in changed.items():
        code, count = re.subn(rf'\b{name}="[^"]*",', text, code)
        assert count == 1
    model = ModuleType("my_model")
    teacher = digits()
    model.model = lambda images: teacher(images)  # type: ignore[attr-defined]
    space: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "my_model", model)
        exec(compile(code, "docs/drill.md", "exec"), space)
    return space["app"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("account", ["Authorization", "X-API-Key", None])
def test_an_app_behind_a_guard_is_drilled(keyed: Path, account: str | None) -> None:
    pytest.importorskip("fastapi")
    alarms = keyed / "alarms.jsonl"
    who = "" if account is None else f'account="{account}",'
    both = 'watch="coverage,scores",'
    app = app_of_the_docs(account=who, watch=both, on_alarm='on_alarm="log",')
    recorded_run(keyed / "run", attack())
    with served(app) as port:
        teacher = f"--teacher tf-serving --teacher.url http://127.0.0.1:{port}/v1/models/digits"
        form = ":predict --teacher.shape 1,8,8 --teacher.num-classes 10"
        words = [*f"{teacher}{form}".split(), "--teacher.api-key-env", "DRILL_KEY"]
        words += ["--teacher.api-key-header", account or "X-Nobody", "--alarm-file", str(alarms)]
        code, _, err = drill(*words, "--from", "run", "--wait", "0.2", "--out", "out")
    assert code == 0, err
    sent = {"Authorization": f"bearer {KEY}", "X-API-Key": KEY, None: ""}[account]
    told = judged("out", first_alarm(alarms, account_tag(sent)), 0, AT_ONCE)
    assert told["teacher"] == f"127.0.0.1:{port}"


@pytest.mark.timeout(200)
def test_the_guard_of_the_docs_rings_and_refuses_in_a_live_drill(keyed: Path) -> None:
    pytest.importorskip("fastapi")
    with served(app_of_the_docs()) as port:
        teacher = f"--teacher tf-serving --teacher.url http://127.0.0.1:{port}/v1/models/digits"
        form = ":predict --teacher.shape 1,8,8 --teacher.num-classes 10"
        words = [*f"{teacher}{form}".split(), "--teacher.api-key-env", "DRILL_KEY"]
        words += ["--teacher.api-key-header", "X-API-Key", "--alarm-file", "alarms.jsonl"]
        code, out, err = drill(*words, *LIVE, "--out", "out")
    assert code == 0, err
    told = outcome("out")
    alarm = first_alarm(keyed / "alarms.jsonl", account_tag(KEY))
    # the request that rings is answered; those beside it may be, too
    number = alarm["image"] - EVALUATED
    assert number <= told["images"]
    assert told["refused_at"] <= number + 4 * BATCH
    assert f"the service refused us after {told['refused_at']} images" in out


@contextmanager
def receiver(log: Path) -> Iterator[str]:
    """A webhook's receiver, which appends a line for each alarm; its address."""

    def note(request: Request) -> bytes:
        with log.open("a") as file:
            file.write(f"ALARM \x1b[31m{request.json['detector']}\n")
        return http({})

    with Service(note) as service:
        yield service.url


def posted(url: str) -> Callable[[Alarm], None]:
    """What tells a receiver of an alarm."""
    return lambda alarm: httpx2.post(url, json=alarm.entry()).raise_for_status() and None


@pytest.mark.timeout(200)
def test_a_webhook_is_heard_also_after_the_last_image(keyed: Path) -> None:
    teacher = watched("scores")
    log = keyed / "webhook.log"
    log.write_text("the service is up\n")
    recorded_run(keyed / "run", attack())
    with receiver(log) as url, Serving(teacher, "digits") as serving:
        teacher.watch.alarmed = posted(url)
        words = ["--from", "run", "--webhook-log", str(log), "--match", "ALARM", "--out", "out"]
        code, out, err = of_v2(serving.url, *words)
        assert code == 0, err
        assert serving.meter.images == 400
    told = outcome()
    assert (told["channel"], told["alarm"]) == ("webhook_log", "ALARM ?[31mscores")
    assert told["images"] <= 400
    assert "\x1b" not in out + err
    # a queue between the alarm and its line: it is heard while waiting
    late = threading.Timer(1.5, lambda: log.open("a").write("late\n"))
    with Serving(digits(), "digits") as serving:
        words = ["--from", "run", "--webhook-log", str(log), "--wait", "20", "--out", "late"]
        late.start()
        code, out, err = of_v2(serving.url, *words, "--budget", "64")
    late.join()
    assert code == 0
    assert (outcome("late")["images"], outcome("late")["alarm"]) == (64, "late")
    assert "all is asked; listening for 20 s more" in err


@pytest.mark.timeout(200)
def test_it_rings_and_refuses(keyed: Path) -> None:
    teacher = watched("scores", on_alarm="refuse")
    alarms = keyed / "alarms.jsonl"
    teacher.watch.alarmed = AlarmFile(alarms, print)
    recorded_run(keyed / "run", attack())
    with Serving(teacher, "digits", key=KEY) as serving:
        words = ["--alarm-file", str(alarms), "--teacher.api-key-env", "DRILL_KEY"]
        code, out, err = of_v2(serving.url, *words, "--from", "run", "--out", "out")
        assert code == 0, err
        images = serving.meter.images
    told = judged("out", first_alarm(alarms, account_tag(KEY)), 0, AT_ONCE)
    assert told["refused_at"] == told["images_in_all"] == images < 400
    assert f"the service refused us after {images} images" in out


@pytest.mark.timeout(200)
def test_a_quota_refuses_where_nobody_rings(keyed: Path) -> None:
    recorded_run(keyed / "run", attack())
    with Serving(digits("quota:images=150"), "digits") as serving:
        words = ["--webhook-log", "alarms.log", "--wait", "0.1", "--from", "run", "--out", "out"]
        code, out, err = of_v2(serving.url, *words)
    assert code == 4, err
    told = outcome()
    assert (told["rang"], told["refused_at"], told["images_in_all"]) == (False, 128, 128)
    assert "never rang in 128 images" in out
    assert "the channel's file was never there" in out


@pytest.mark.timeout(200)
def test_it_never_rings(keyed: Path) -> None:
    teacher = watched("prada")
    alarms = keyed / "alarms.jsonl"
    teacher.watch.alarmed = AlarmFile(alarms, print)
    with Serving(teacher, "digits") as serving:
        code, out, err = of_v2(serving.url, *LIVE, "--alarm-file", str(alarms), "--out", "out")
    assert code == 4, err
    summary = json.loads(Path("out/summary.json").read_text())
    assert outcome()["agreement_end"] == summary["agreement"]
    assert f"drill: never rang in 400 images; the copy agrees on {summary['agreement']:.1%}" in out
    assert alarms.read_text() == ""
