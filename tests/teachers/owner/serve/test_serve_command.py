"""``run.py serve`` as a person meets it: its first line, its last, its mistakes."""

import re
import shlex
import signal
import sys
from pathlib import Path

import httpx2
import pytest
import torch
from clients import question
from processes import Bench
from toys import LinearTeacher

from dfme.cli.main import main
from dfme.spec import ImageSpec
from dfme.teachers.options import ServeConfig

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

OPENING = re.compile(
    r"(?P<name>\S+) at (?P<url>http://127\S+): (?P<what>.*); extract: (?P<command>.*)\n"
)


def problem(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that cannot work."""
    assert main(["serve", *shlex.split(words)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    return printed.err


@pytest.mark.integration
def test_it_says_what_is_where_and_counts_until_it_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    key = "only-in-the-environment"
    bench.environment["SERVICE_KEY"] = key
    common = ["serve", "--port", "0", "--device", "cpu"]
    custom = (
        "--teacher meter:Meter --teacher.log own.log --teacher.label-mode top_k:2 --threads 1"
    ).split()
    keyed = "--max-batch 64 --api-key-env SERVICE_KEY".split()
    processes = [bench.start([*common, *words]) for words in (keyed, custom)]
    openings = [
        OPENING.fullmatch(process.stdout.readline()) for process in processes if process.stdout
    ]
    digits, meter = (opening.groupdict() for opening in openings if opening)
    assert (
        digits["what"] == "1x8x8 images, at most 64 a request; 10 classes; label mode probabilities"
    )
    assert meter["what"] == "1x8x8 images; 10 classes; label mode top_k:2"
    assert (digits["name"], meter["name"]) == ("digits", "Meter")
    assert digits["command"] == (
        f"python run.py --teacher v2 --teacher.url {digits['url']} --teacher.model digits "
        "--teacher.api-key-env SERVICE_KEY"
    )
    body = question(torch.full((2, 1, 8, 8), 0.5))
    for opening, headers in ((digits, {"X-API-Key": key}), (digits, {}), (meter, {})):
        url = f"{opening['url']}/v2/models/{opening['name']}/infer"
        expected = 200 if headers or opening is meter else 401
        assert httpx2.post(url, json=body, headers=headers).status_code == expected
    assert sum(int(line) for line in (tmp_path / "own.log").read_text().split()) == 2
    for process, number in zip(processes, (signal.SIGTERM, signal.SIGINT), strict=True):
        process.send_signal(number)
    ends = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(end[0].startswith("served 2 images in 1 requests (") for end in ends)
    assert ends[0][0].endswith("; refused 1 requests (unauthorised 1)\n")
    assert key not in "".join(text for end in ends for text in end)
    assert [end[1] for end in ends] == ["", ""]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("host", "key", "lines"), [("127.0.0.1", None, 1), ("0.0.0.0", None, 2), ("0.0.0.0", "K", 2)]
)
def test_a_host_that_lets_others_in_is_said(
    monkeypatch: pytest.MonkeyPatch, host: str, key: str | None, lines: int
) -> None:
    import uvicorn

    from dfme.teachers.owner.serve.server import serve

    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    monkeypatch.setenv("K", "secret")
    lines_told: list[str] = []
    config = ServeConfig(host, 0, "toy", api_key_env=key)
    end = serve(LinearTeacher(ImageSpec((1, 2, 2))), config, lines_told.append)
    assert len(lines_told) == lines
    assert end.startswith("served 0 images")
    if host != "127.0.0.1":
        assert "--teacher.authorised-by" in lines_told[0]
        assert ("WHOEVER REACHES IT CAN QUERY IT" in lines_told[1]) == (key is None)
        assert "secret" not in lines_told[1]


def test_every_mistake_is_named_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    numbers = (
        "--port 70000 --max-batch 0 --images-per-second 0 --requests-per-second -1 --threads -1"
    )
    flags = re.findall(r"(--[\w.-]+): expected", problem(numbers, capsys))
    assert sorted(flags) == sorted(numbers.split()[::2])
    words = (
        "--model a/b --api-key-env NO_SUCH_KEY --device gpu --teacher.checkpoint nowhere.pt --prt 3"
    )
    line = problem(words, capsys)
    for part in ("--model: ", "NO_SUCH_KEY", "--device: ", "'nowhere.pt'", "did you mean --port?"):
        assert part in line


def test_a_missing_extra_names_what_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install starlette uvicorn" in problem("--port 0", capsys)
