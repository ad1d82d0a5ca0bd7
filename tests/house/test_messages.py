"""Messages name options by their keys: every key exists, and no text spells a flag itself."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest
from command_line import options_of_sections
from sources import SOURCES, name, nodes_of

from dfme.audits.audit.options import AuditConfig
from dfme.audits.compare.plan import CompareConfig
from dfme.audits.drill.options import DrillConfig
from dfme.cli.check import CheckConfig
from dfme.cli.evaluate import EvaluateConfig
from dfme.cli.export import ExportConfig
from dfme.cli.retrain import RetrainConfig
from dfme.cli.verify import VerifyConfig
from dfme.config.settings import ExtractConfig
from dfme.config.values import options_of
from dfme.errors import Message, OptionError, Problem, Ref, UserError, as_yaml_key, say
from dfme.teachers.options import ServeConfig, TrainTeacherConfig
from dfme.teachers.owner.marking.options import MarkConfig

COMMANDS = (
    ExtractConfig,
    AuditConfig,
    CompareConfig,
    CheckConfig,
    DrillConfig,
    EvaluateConfig,
    ExportConfig,
    RetrainConfig,
    VerifyConfig,
    ServeConfig,
    TrainTeacherConfig,
    MarkConfig,
)
AT_THE_DOOR = ("dfme/cli/", "dfme/audits/", "dfme/errors.py", "dfme/report/report.html")
"""What speaks to users of the command line alone."""
NO_MESSAGES = {
    "dfme/run/job.py": "commands for a shell",
    "teachers/owner/serve/server.py": "commands for a shell, and warnings of the server",
    "teachers/remote/json_api/api.py": "the boundary of a form's parts",
}
FLAG = re.compile(r"(?<![\w-])--[a-z{]")


def known_keys() -> set[str]:
    """Every option of every command, and every section of options."""
    keys = {option.key for options in map(options_of, COMMANDS) for option in options}
    keys |= {option.key for option in options_of_sections()}
    sections = {key.partition(".")[0] for key in keys}
    return keys | sections | {"method.name", "method.keeps", "config", "help_all"}


def named_keys(path: Path) -> Iterator[tuple[int, str]]:
    """The keys that stand in the calls of a file, with their lines."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
            continue
        first = node.args[0]
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        if node.func.id == "say":
            keys = [key for _, key, _, _ in Formatter().parse(first.value) if key]
        else:
            keys = (
                [first.value] if node.func.id in ("Ref", "flag", "Problem", "OptionError") else []
            )
        yield from ((node.lineno, key) for key in keys)


def places_and_values(path: Path) -> Iterator[tuple[int, int, int]]:
    """Of every template that stands in a file: its line, its empty places and its values."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "say" and node.args:
            template, *values = node.args
            if isinstance(template, ast.Constant):
                fields = Formatter().parse(str(template.value))
                yield node.lineno, sum(key == "" for _, key, _, _ in fields), len(values)


def documentation(path: Path) -> set[int]:
    return {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}


def test_every_option_that_a_message_names_exists() -> None:
    known = known_keys()
    named = [(name(path), line, key) for path in SOURCES for line, key in named_keys(path)]
    assert len(named) > 250
    audits = {"pool", "attackers", "total", "free"}
    assert [place for place in named if place[2] not in known | audits] == []


def test_no_text_outside_the_command_line_spells_a_flag() -> None:
    spelled = [
        (name(path), node.lineno, node.value)
        for path in SOURCES
        if not name(path).startswith(AT_THE_DOOR) and name(path) not in NO_MESSAGES
        for texts in [documentation(path)]
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        if FLAG.search(node.value)
    ]
    assert spelled == []


def test_every_template_has_as_many_values_as_places() -> None:
    counts = [(name(path), *call) for path in SOURCES for call in places_and_values(path)]
    assert len(counts) > 100
    assert [place for place in counts if place[2] != place[3]] == []


@pytest.mark.parametrize(
    ("message", "flags", "keys"),
    [
        (say("expected {student.replay_steps} too"), "expected --student.replay-steps too", None),
        (
            say("{student.lr:0.1}: {!r}, {:,}", "a{b}", 1000),
            "--student.lr 0.1: 'a{b}', 1,000",
            None,
        ),
        (say("{{x}}: {}", Ref("method.reuse", True)), "{x}: --method.reuse true", None),
        ("give " + say("{out}") + "!", "give --out!", "give out!"),
        (say("{}; {}", say("a {seed}"), "{b}"), "a --seed; {b}", "a seed; {b}"),
        (
            Problem("seed", "expected 1", "2", Ref("student.lr")).text,
            "expected 1, got 2; did you mean --student.lr?",
            None,
        ),
    ],
)
def test_a_message_is_spelled_by_who_shows_it(
    message: Message, flags: str, keys: str | None
) -> None:
    assert str(message) == flags
    plain = flags.replace("--", "").replace("replay-steps", "replay_steps")
    assert message.spelled(as_yaml_key) == (keys or plain)


@pytest.mark.parametrize("template", ["{", "a}", "{} {"])
def test_another_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"format|encountered|expected"):
        say(template, 1)


def test_an_error_about_options_carries_their_problems_also_to_another_process() -> None:
    error = OptionError("student.lr", "expected a positive number", got="0")
    (problem,) = error.problems
    assert (problem.key, problem.got, str(error)) == (
        "student.lr",
        "0",
        "--student.lr: expected a positive number, got 0",
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == (str(error), error.problems)
    wrapped = UserError(error.message, about="weights.pt")
    assert wrapped.message.spelled(as_yaml_key).startswith("weights.pt: student.lr: expected")
