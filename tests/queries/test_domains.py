"""What the attacker knows sets the programs, is on record, and rules out programs of one's own."""

from pathlib import Path
from typing import get_args

import pytest
from command_line import parse_extract

from dfme.config.query_settings import QueriesConfig
from dfme.config.values import options_of
from dfme.errors import UserError
from dfme.queries.programs import DOMAINS, PROGRAMS
from dfme.report.console import header
from dfme.report.run_files import known_domain
from dfme.run.job import document


def document_of(words: str) -> dict[str, object]:
    return document(parse_extract(words.split()))


def test_every_domain_is_an_option_with_programs_of_ours() -> None:
    (option,) = (each for each in options_of(QueriesConfig, "queries.") if each.name == "domain")
    assert set(get_args(get_args(option.type)[0])) == {*DOMAINS, "unknown"}
    assert {name for names in DOMAINS.values() for name in names} <= {*PROGRAMS}
    assert option.default == "unknown"


@pytest.mark.parametrize("recipe", ["frugal", "dfme", "procedural"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_sets_the_programs_of_any_recipe_and_is_on_record(
    recipe: str, domain: str
) -> None:
    told = document_of(f"--recipe {recipe} --queries.domain {domain}")
    usual = document_of(f"--recipe {recipe}")
    assert told["queries"] == {
        **usual["queries"],  # type: ignore[dict-item]
        "domain": domain,
        "programs": [*DOMAINS[domain]],
    }
    assert known_domain(told) == domain
    assert f"the attacker knew: {domain}" in header(told)
    assert known_domain(usual) is None
    assert "attacker" not in header(usual)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = parse_extract("--recipe frugal --queries.domain handwriting".split())
    (tmp_path / "mine.yaml").write_text("recipe: frugal\nqueries: {domain: handwriting}\n")
    assert parse_extract(["--config", str(tmp_path / "mine.yaml")]).queries == job.queries


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--recipe frugal --queries.domain handwriting --queries.programs leaves",
            "--queries.domain unknown",
        ),
        ("--recipe frugal --queries.domain handwritting", "handwriting"),
        ("--recipe paper --queries.domain things", "--queries.procedural or --queries.base"),
    ],
)
def test_a_domain_without_a_say_is_refused(words: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_extract(words.split())
