"""Who allows a service to be asked, and which variables go there: whoever runs a command."""

import io
import shlex
from pathlib import Path
from typing import Any

import pytest
from begun import refused_words
from clients import described
from command_line import parse_extract
from tables import all_hold

from dfme import owner_side
from dfme.cli import compare
from dfme.config.yaml_files import dump_yaml, sealed
from dfme.errors import UserError
from dfme.run.job import document, resume_command
from dfme.teachers.options import ServiceOptions, V2Options

FAR, NEAR = "http://models.example/v2", "http://127.0.0.1:9"
HEADERS = {"X-Key": "${STRANGE_KEY}", "X-Word": "${STRANGE_WORD}"}
ME = "--teacher.authorised-by=me: to test it"
VERBS = (
    "extract --budget 10k",
    "check",
    "evaluate --student run",
    "serve",
    "compare --config recipe.yaml --methods static --out c",
    "--resume --out run",
)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DFME_AUTHORISED_BY", raising=False)
    for name in ("STRANGE_KEY", "STRANGE_WORD"):
        monkeypatch.setenv(name, f"value-of-{name.lower()}")


def strangers(url: str = FAR, adapter: dict[str, Any] | None = None, **options: Any) -> None:
    """A recipe that says yes to itself, and the same as the record of a run."""
    teacher = {"kind": "v2", "url": url, "model": "m"}
    if adapter is not None:
        Path("adapter.yaml").write_text(dump_yaml({**described(), "url": url, **adapter}))
        teacher = {"kind": "json", "adapter": "adapter.yaml"}
    consents = {
        "authorised_by": "the owner, really",
        "allow_env": ["STRANGE_KEY", "STRANGE_WORD"],
        **options,
    }
    write_recipe_and_run({**teacher, **consents})


def write_recipe_and_run(teacher: dict[str, Any]) -> None:
    paper = dump_yaml({"teacher": teacher, "evaluation": {"dataset": "digits"}})
    Path("run").mkdir(exist_ok=True)
    Path("recipe.yaml").write_text(paper)
    Path("run/config.yaml").write_text(sealed(f"{paper}budget: 10k\n"))
    Path("run/student.safetensors").touch()


def words_of(verb: str) -> list[str]:
    has_file = any(flag in verb for flag in ("--resume", "--config", "--student"))
    return shlex.split(verb if has_file else f"{verb} --config recipe.yaml")


def check_before_asking(*words: str) -> None:
    """What every command does before it asks."""
    job = parse_extract(["--config", "recipe.yaml", "--out", "new", "--budget", "10k", *words])
    owner_side.check_teacher(job.teacher, job.teacher_options)


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_consents_to_nothing(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    strangers()
    line = refused_words(words_of(verb), capsys)
    assert "models.example is not this machine; expected your own --teacher.authorised-by" in line
    assert "what a file says does not count" in line


@pytest.mark.parametrize("url", [FAR, NEAR])
@pytest.mark.parametrize("verb", VERBS)
def test_a_variable_that_a_file_names_is_not_read(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for how in ({"api_key_env": "STRANGE_KEY"}, {"adapter": {"headers": HEADERS}}):
        strangers(url, **how)
        line = refused_words([*words_of(verb), ME], capsys)
        host = url.split("/")[2].partition(":")[0]
        assert f"STRANGE_KEY would be sent to {host}, because a file asks for it" in line
        assert "--teacher.allow-env STRANGE_KEY" in line
        assert "value-of" not in line


@pytest.mark.parametrize(
    "adapter",
    [
        {"headers": {"X": "a ${STRANGE_WORD}"}},
        {"request": {"json": {"image": "${image}", "b": [{"c": "${STRANGE_WORD}"}]}}},
        {
            "request": {"multipart": "f", "fields": {"x": "${STRANGE_WORD}"}},
            "image": {"encoding": "png"},
        },
        {"url": f"{NEAR}/x?key=${{STRANGE_WORD}}"},
    ],
)
def test_every_place_of_an_adapter_is_looked_at(adapter: dict[str, Any]) -> None:
    strangers(NEAR, adapter, api_key_env="STRANGE_KEY")
    for words in ([], ["--teacher.api-key-env=STRANGE_KEY"], ["--teacher.allow-env=WORD"]):
        with pytest.raises(UserError, match=r"STRANGE_WORD would be sent to 127\.0\.0\.1"):
            check_before_asking(*words)
    check_before_asking("--teacher.allow-env=STRANGE_WORD,STRANGE_KEY")
    check_before_asking("--teacher.allow-env=STRANGE_WORD", "--teacher.api-key-env=STRANGE_KEY")


def test_the_first_line_says_which_variables_go_where(capsys: pytest.CaptureFixture[str]) -> None:
    strangers(FAR, {"headers": HEADERS})
    check_before_asking(ME, "--teacher.allow-env=STRANGE_KEY,STRANGE_WORD,NOT_ASKED_FOR")
    expected_line = "sent to models.example from the environment: STRANGE_KEY, STRANGE_WORD\n"
    assert capsys.readouterr().err == expected_line
    strangers(NEAR)
    check_before_asking(ME)
    assert capsys.readouterr() == ("", "")


def test_the_environment_of_who_runs_it_consents_too_and_a_flag_beats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strangers()
    monkeypatch.setenv("DFME_AUTHORISED_BY", "me, for all day")
    check_before_asking()
    for words, by in (([], "me, for all day"), ([ME], "me: to test it")):
        job = parse_extract(["--config", "recipe.yaml", "--budget", "10k", *words])
        assert document(job)["teacher"]["authorised_by"] == by, "what counted is what is recorded"
    monkeypatch.setenv("DFME_AUTHORISED_BY", " ")
    with pytest.raises(UserError, match="does not count"):
        check_before_asking()


def test_what_a_resumed_run_needs_is_in_the_command_that_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strangers(FAR, {"headers": {"X": "${STRANGE_WORD}"}}, api_key_env="STRANGE_KEY")
    job = parse_extract(
        ["--resume", "--out", "run", ME, "--teacher.allow-env=STRANGE_WORD,STRANGE_KEY"]
    )
    _, _, *words = shlex.split(resume_command(Path("run"), job))
    assert words[:3] == ["--resume", "--out", "run"]
    again = parse_extract(words)
    owner_side.check_teacher(again.teacher, again.teacher_options)
    assert {*again.teacher_options.pop("allow_env")} == {"STRANGE_KEY", "STRANGE_WORD"}
    assert again.teacher_options.items() <= job.teacher_options.items()
    assert len(shlex.split(resume_command(Path("run"), parse_extract(["--seed", "1"])))) == 5, (
        "and else nothing more"
    )


def test_a_comparison_asks_only_by_its_own_words_and_hands_them_to_its_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flags of the first command are in its file; consent there does not count."""
    strangers(FAR, {"headers": HEADERS})
    paper = {
        "teacher": {"kind": "json", "adapter": "adapter.yaml"},
        "methods": ["static"],
        "seeds": [0],
    }
    flags = {"teacher.authorised-by": "the owner", "teacher.allow_env": "STRANGE_WORD"}
    flags["teacher.api-key-env"] = "STRANGE_KEY"
    Path("c.yaml").write_text(dump_yaml({**paper, "overrides": flags}))
    first = ["--config", "c.yaml", "--out", "c"]
    (cell,) = compare.plan_of(first).cells
    options = {
        name: cell.job.teacher_options[name]
        for name in ("authorised_by", "allow_env", "api_key_env")
    }
    assert options == {"authorised_by": None, "allow_env": (), "api_key_env": "STRANGE_KEY"}

    from dfme.audits.compare import session
    from dfme.report.terminal import StatusLine

    plan = compare.plan_of([*first, ME, "--teacher.allow-env", "STRANGE_WORD,STRANGE_KEY"])
    (plan.out / "cells").mkdir(parents=True)
    compared = session.Session(plan, {}, StatusLine(io.StringIO()))
    compared.sharing = 1
    verb, *words = compared._task(plan.cells[0]).words
    assert verb == "extract"
    job = parse_extract(words)
    owner_side.check_teacher(job.teacher, job.teacher_options)
    with pytest.raises(UserError, match="does not count"):
        owner_side.check_teacher(job.teacher, parse_extract(words[:4]).teacher_options)
    for mark in ("authorised_by: 'me: to test it'", "STRANGE_WORD,STRANGE_KEY"):
        assert mark in dump_yaml(plan.options), "the comparison's record has it"


def test_a_teacher_of_ones_own_has_options_of_these_names_as_before() -> None:
    Path("their_teacher.py").write_text(
        "def make(authorised_by: str = '', allow_env: str = ''): pass\n"
    )
    Path("recipe.yaml").write_text(
        "teacher: {kind: 'their_teacher:make', authorised_by: x, allow_env: y}\n"
    )
    job = parse_extract(["--config", "recipe.yaml"])
    assert job.teacher_options == {"authorised_by": "x", "allow_env": "y"}
    assert len(shlex.split(resume_command(Path("run"), job))) == 5


RESERVED = "user-agent HOST Content-Length Connection Keep-Alive Expect TE Trailer Upgrade".split()
RESERVED += "Proxy-Authorization proxy-connection User_Agent transfer_encoding".split()


def is_no_header_for_an_adapter(name: str) -> None:
    strangers(NEAR, {"headers": {name: "x"}})
    with pytest.raises(UserError, match=rf"headers: expected another header than {name}"):
        check_before_asking()
    strangers(NEAR, api_key_header=name)
    with pytest.raises(UserError, match=rf"api_key_header: expected another header than {name}"):
        check_before_asking()


def test_headers_by_which_http_works_and_a_client_is_known_are_not_an_adapters() -> None:
    all_hold(is_no_header_for_an_adapter, [(name,) for name in RESERVED])
    strangers(NEAR, {"headers": {"X-Forwarded-Host": "x", "Authorization": "Token x"}})
    check_before_asking()


@pytest.mark.parametrize(
    "url", ["http://${STRANGE_KEY}.evil.example/", "http://${STRANGE_KEY}/x", "https://a.${A}:80/"]
)
def test_a_secret_is_no_part_of_a_host(url: str) -> None:
    for adapter in (None, {}):
        strangers(url, adapter)
        with pytest.raises(UserError, match=r"--teacher\.url: expected .* \$\{NAME\} in its host"):
            check_before_asking(ME, "--teacher.allow-env=STRANGE_KEY,A")


def test_from_python_the_options_are_the_programs_own() -> None:
    from dfme.teachers.remote.secrets import read_secrets

    options = vars(V2Options(url=NEAR, model="m", api_key_env="STRANGE_KEY"))
    assert read_secrets(options, NEAR).fill("${STRANGE_KEY}") == "value-of-strange_key"
    with pytest.raises(UserError, match=r"--teacher\.allow-env STRANGE_WORD"):
        read_secrets(vars(ServiceOptions(url=NEAR)), NEAR, "STRANGE_WORD")


TRUSTED = "--teacher.trust=true"


@pytest.mark.parametrize("kind", ["pt2", "torchscript"])
def test_no_file_trusts_the_maker_of_a_program(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.pt2").write_bytes(b"a program")
    facts = {"kind": kind, "program": "net.pt2", "shape": [1, 8, 8], "num_classes": 10}
    write_recipe_and_run({**facts, "trust": True})
    for verb in VERBS:
        assert "--teacher.trust: expected true, as a flag and not in a file" in refused_words(
            words_of(verb), capsys
        ), verb
    job = parse_extract(["--config", "recipe.yaml", "--budget", "10k", TRUSTED])
    assert job.teacher_options["trust"] is True
    assert TRUSTED in resume_command(Path("run"), job)
    assert (
        parse_extract(["--resume", "--out", "run", TRUSTED]).teacher_options == job.teacher_options
    )
    assert parse_extract(["--resume", "--out", "run"]).teacher_options["trust"] is False


def test_a_message_of_many_problems_is_short_and_counts_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = [f"--student.{'x' * 60}{number}=1" for number in range(30)]
    line = refused_words(["extract", "--budget", "10", *wrong], capsys)
    assert len(line) <= 500
    assert line.endswith(" more like these")
    named = line.count("unknown flag")
    assert f"and {30 - named} more like these" in line
