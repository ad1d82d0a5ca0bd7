"""What fits a terminal, lines that are said once and counted, and names that steer neither it nor a page."""

import io
import itertools
import re
import shlex
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SMALL, parse_extract
from handmade import FIGURES, SUMMARY, cell_of, make_run, page_of
from known_teachers import ScriptedTeacher

from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.table import markdown
from dfme.cli.main import main
from dfme.config.messages import MAX_LETTERS, harmless, shortened
from dfme.errors import Refused, Unanswered
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import RateLimiter
from dfme.report.console import Console, Standing, end_table, header, teacher_name
from dfme.report.markdown import code, plain
from dfme.report.terminal import Notes, columns
from dfme.run.job import document, shown_command

ORDER = [
    "agreement 85.24%",
    "cost 12.30",
    "left",
    "so far",
    "queries/s",
    "student loss 0.6977",
    "generator loss -0.728",
]


class Screen(io.StringIO):
    """A terminal's stream."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """Everything that was drawn as a line, each anew, without colours."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]


@pytest.fixture
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A screen of so many columns."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


@pytest.mark.parametrize(
    ("screen", "shown"),
    [(40, 0), (60, 2), (79, 3), (80, 3), (100, 4), (200, 7)],
    indirect=["screen"],
)
def test_a_bar_fits_and_leaves_out_what_does_not_whole_and_in_order(
    screen: Screen, shown: int
) -> None:
    console = Console(300_000, screen, clock=iter(range(100)).__next__)
    console.follow(lambda: Standing(135_040, 0.45, 120.0, ""))
    console.evaluation(
        135_040,
        {"agreement": 0.8524, "cost": 12.3, "student_loss": 0.6977, "generator_loss": -0.728},
    )
    console.close()
    assert all(len(line) <= columns(screen) for line in screen.lines)
    first, *parts = screen.lines[-1].partition("45%  ")[2].split("  ")
    assert first == "135,040/300,000 queries"
    named = [re.sub(r"^\S+(?: s)? (left|so far|queries/s)$", r"\1", part) for part in parts]
    assert named == ORDER[:shown]


@pytest.mark.parametrize("screen", [60], indirect=True)
def test_messages_stand_above_the_line_broken_between_words_and_commands_stay_whole(
    screen: Screen,
) -> None:
    long = (
        "warning: the differences are mostly hidden by the answers' rounding; choose "
        "another space, or auto"
    )
    command = "  python run.py --resume --out " + "x" * 100
    console = Console(1_000, screen)
    console.start(0)
    console.note(long)
    console.note(f"stopped; go on with:\n{command}")
    console.close()
    assert all(line in screen.lines for line in textwrap.wrap(long, 60))
    assert f"\n{command}\n" in screen.getvalue(), "to be copied as it is"
    assert screen.lines[-1].endswith("0/1,000 queries"), "the line is below what was said"
    assert "\x1b[33m" in screen.getvalue(), "warnings are yellow"


def running() -> Standing:
    return Standing(4_800, 0.4, 70.0 - time.monotonic() % 60, "round 3 of 6, step 120 of 403")


@pytest.mark.parametrize("screen", [80], indirect=True)
def test_a_bar_moves_while_nothing_is_told(screen: Screen) -> None:
    console = Console(12_000, screen)
    console.follow(running)
    console.evaluation(4_800, {"agreement": 0.7})
    time.sleep(2.2)
    console.close()
    drawn = list(dict.fromkeys(screen.lines))
    assert len(drawn) >= 2, "a second later it is another line"
    for part in ("40%  round 3 of 6, step 120 of 403", "agreement 70.00%", " left", "12,000"):
        assert (part in drawn[-1]) is (part != "12,000")


def test_a_plain_line_comes_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfme.report.console.LINE_SECONDS", 0.08)
    stream = io.StringIO()
    console = Console(12_000, stream)
    console.follow(running)
    time.sleep(0.5)
    console.close()
    time.sleep(0.1)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= 7
    assert "4,800 / 12,000 queries (40%)  round 3 of 6, step 120 of 403" in lines[-1]
    assert re.search(r"(\d+ s|1:\d\d) left  \d s so far", lines[-1])


def test_the_end_table_has_hanging_lines_and_keeps_its_figures(tmp_path: Path) -> None:
    summary = SUMMARY | {
        "spent_by_purpose": {"generator": 85_504, "student": 214_496},
        "spent": 300_000,
    }
    narrow, wide = end_table(summary, tmp_path, 60), end_table(summary, tmp_path)
    assert max(map(len, wide.splitlines())) > 80 > 60 >= max(map(len, narrow.splitlines()))
    assert narrow.split() == wide.split()
    hanging = [line for line in narrow.splitlines() if line.startswith(" ")]
    assert [line[:18].strip() for line in hanging] == [""] * len(hanging)
    assert hanging[0][18] != " "


def test_the_first_line_says_who_is_asked_how_and_at_what_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    words = "--budget 12k --teacher.price-per-1000 2.5 --device cpu --method.name static"
    text = header(document(parse_extract(words.split())))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for part in ("teacher digits.safetensors (embedded digits)", "method static", "device cpu"):
        assert part in flat
    assert "budget 12,000 queries (30.00 at" in flat
    assert "wandb" not in flat
    tracked = header(document(parse_extract([*words.split(), "--wandb.mode", "offline"])))
    assert "wandb offline" in " ".join(tracked.split()), "nobody's recipe tracks a run in silence"


def test_a_teacher_has_a_name() -> None:
    service = {"kind": "v2", "url": "http://127.0.0.1:8080/x?key=1", "model": "digits"}
    named: list[tuple[dict[str, Any], str]] = [
        ({"kind": "torch", "checkpoint": "/nets/resnet.pt"}, "resnet.pt"),
        ({"kind": "torch", "checkpoint": "teachers/checkpoints/a.pt"}, "a.pt (embedded a)"),
        (service, "127.0.0.1:8080, model digits"),
        ({"kind": "json", "url": None, "adapter": "a/shop.yaml"}, "shop.yaml"),
        (
            {"kind": "my_module:MyTeacher", "checkpoint": "x.pt", "url": "http://a"},
            "my_module:MyTeacher",
        ),
        ({"kind": "torch", "checkpoint": "a\x1b[2Jb.pt"}, "a?[2Jb.pt"),
    ]
    assert [teacher_name(teacher) for teacher, _ in named] == [name for _, name in named]


@pytest.mark.integration
def test_the_first_line_comes_before_anything_heavy_is_loaded() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.stderr.isatty = lambda: True\nfrom "
        "dfme.cli.main "
        "import main\ntry: main(['--budget', '1k'])\nexcept ImportError: print('torch')"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout == "torch\n"
    assert process.stderr.startswith("teacher digits.safetensors (embedded digits), method")


def test_a_directory_steers_no_terminal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = "a\x1b[2J\u202eb"
    words = ["--budget", "40", "--evaluation.dataset", "none", "--student.replay-steps", "0"]
    assert main([*words, "--method.batch-size", "20", *SMALL.split(), "--out", out]) == 0
    assert main(["report", out]) == 0
    seen = capsys.readouterr()
    for text in (seen.out, seen.err):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "recorded in a?[2J?b" in seen.err
    for name in ("student.safetensors", "report.html"):
        assert f"a?[2J?b/{name}" in seen.out


def test_a_line_is_said_once_and_then_counted_before_the_next_one_and_at_the_end() -> None:
    messages = list[str]()
    with Notes(messages.append) as note:
        for line in [
            "429",
            "429",
            "429",
            "a warning",
            "429",
            "503",
            "a warning",
            "a warning",
            "429",
        ]:
            note(line)
    assert messages[:4] == [
        "429",
        "the same 2 more times: 429",
        "a warning",
        "the same 1 more time: 429",
    ]
    assert messages[4:] == ["503", "the same 1 more time: 429", "the same 2 more times: a warning"]


def test_what_goes_on_and_on_is_counted_every_five_minutes_in_bounded_memory() -> None:
    messages, seconds = list[str](), itertools.count()
    note = Notes(messages.append, clock=lambda: float(next(seconds)))
    for _ in range(1_000):
        note("busy")
    assert len(messages) == 4
    assert messages[0] == "busy"
    assert all(line.endswith(" more times: busy") for line in messages[1:])
    for number in range(1_000):
        note(f"line {number}")
    assert len(vars(note)["_again"]) <= 100


@pytest.mark.parametrize(
    "failure",
    [
        lambda n: Refused(f"busy, your request is {n:x}", "425"),
        lambda n: Refused(f"no route {n}", "no connection"),
        lambda n: Unanswered(f"broken, see {n}", "500"),
    ],
    ids=["refused", "no connection", "failed"],
)
def test_no_failure_floods_the_terminal(failure: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is worded: 40 requests in flight four at a time, of which each fails twice."""
    messages, number = list[str](), itertools.count()
    service, attempts = ScriptedTeacher(max_batch=1), dict[str, int]()
    ask = service.ask

    def failing(query: torch.Tensor, key: str) -> torch.Tensor:
        attempts[key] = attempts.get(key, 0) + 1
        if attempts[key] <= 2:
            raise failure(next(number))  # type: ignore[operator]
        return ask(query, key)

    service.ask = failing
    monkeypatch.setattr(RateLimiter, "pause", lambda self, seconds: None)
    with Notes(messages.append) as note:
        Oracle(service, Ledger(1_000), tell=note)(torch.rand(40, 1, 2, 2))
    assert len(messages) == 2
    assert messages[1].startswith("the same 79 more times: ")


STEERING = "\x1b\x07\x9b\u202e\u2066\u200b\u2028\ufeff"
HOSTILE = (
    f"a{STEERING}[2J<img src=x onerror=go()>[go](http://evil.example)![i](x) `ls` **b** "
    "| c &lt; _d_\n# e"
)


def steers(text: str) -> set[str]:
    return {letter for letter in STEERING if letter in text}


@pytest.mark.parametrize(
    "name",
    ["digits.safetensors", "reverse_sigmoid:beta=0.7", "my_module:My_Class", "été [0.1, 0.2]"],
)
def test_usual_names_stay_as_they_are(name: str) -> None:
    assert plain(name) == harmless(name) == name
    assert code(name) == f"`{name}`"


def test_markup_in_a_name_is_text_on_one_line() -> None:
    text = plain(HOSTILE)
    assert "\n" not in text
    assert "<" not in text
    assert steers(text) == set()
    for mark in ("`", "*", "](", "|"):
        places = [place for place in range(len(text)) if text.startswith(mark, place)]
        assert places, mark
        assert all(text[place - 1] == "\\" for place in places)
    assert code("a `b`` c") == "``` a `b`` c ```", "longer than any fence in it"


def test_a_comparison_shows_names_as_text() -> None:
    outcomes = (
        Outcome(cell_of(HOSTILE, "label", 300, 0), "finished", figures=FIGURES),
        Outcome(cell_of("b", "label", 300, 0), "failed", f"no such file {HOSTILE}"),
    )
    facts = {"teacher": HOSTILE, "command": shown_command(["python", "run.py", HOSTILE])}
    text = markdown(ComparisonResult(f"Comparison {HOSTILE}", facts, outcomes))
    assert steers(text) == set()
    outside = [line for line in text.splitlines() if not line.startswith("- command:")]
    assert not [line for line in outside if "<img" in line or line.startswith("# e")]
    (command,) = set(text.splitlines()) - {*outside}
    assert command.startswith("- command: `` ")
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_a_runs_report_shows_names_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page_of(run, teacher={"target": HOSTILE, "num_classes": 10}, warnings=[HOSTILE])
    assert steers((run / "report.html").read_text()) == set()


@pytest.mark.parametrize(
    "word", [HOSTILE, "it's", "a b", "", "\\x1b", "'\x1b'", "--flag=\u202eevil", "a\nb"]
)
def test_a_shown_command_is_taken_by_a_shell_and_steers_nothing(word: str) -> None:
    shown = shown_command(["-c", "import sys; print(ascii(sys.argv[1]))", word])
    assert shown.isprintable()
    if word.isprintable():
        assert shlex.split(shown)[-1] == word


@pytest.mark.integration
@pytest.mark.parametrize("word", [HOSTILE, "'\x1b\\'", "\u202e\U000e0041"])
def test_bash_gives_a_program_the_word_that_was_typed(word: str) -> None:
    shown = shown_command([sys.executable, "-c", "import sys; print(ascii(sys.argv[1]))", word])
    process = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ascii(word)


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    short = shortened(f"--flag: {'x' * 2_000}; do that")
    assert len(short) == MAX_LETTERS == 500
    assert short.startswith("--flag: ")
    assert short.endswith("; do that")
    assert shortened("short") == "short"
    assert len(shortened("y" * 501)) == 500
