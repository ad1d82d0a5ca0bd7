"""Names that somebody else gave: no report lets them steer a terminal, a browser or a Markdown
page.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import FIGURES, cell_of, make_run, page_of

from dfme.audits.compare.figures import ComparisonResult, Outcome
from dfme.audits.compare.table import markdown
from dfme.config.messages import MAX_LETTERS, harmless, shortened
from dfme.report.markdown import code, plain
from dfme.run.job import shown_command

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
