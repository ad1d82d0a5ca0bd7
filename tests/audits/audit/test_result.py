"""The dataclasses of an audit are the form of audit.json: what a release wrote is read, and written
again byte for byte.
"""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from audit_pages import audit
from damage import refused
from processes import PROJECT

from dfme.audits.audit.document import cached
from dfme.audits.audit.page import write_page
from dfme.audits.audit.parts import CopyExamination
from dfme.audits.audit.result import (
    AuditResult,
    audit_result,
    document,
    json_schema,
    parse,
    recorded,
)
from dfme.errors import RunError

STORED_FILE = Path(__file__).with_name("audit_2.json")
STORED = STORED_FILE.read_text(encoding="utf-8")
"""An audit of today's form; lists were cut short, and what was null was given a value."""
OLD_FILES = ("audit_0_15.json", "audit_0_18.json")
"""Written in the form before by two releases; lists were cut short, and in the first what was null
was given a value.
"""


def parts(value: Any) -> Iterator[Any]:
    """All dataclasses within a value."""
    if is_dataclass(value):
        yield value
        value = [getattr(value, entry.name) for entry in fields(value)]
    if isinstance(value, dict):
        value = [*value.values()]
    for part in value if isinstance(value, list | tuple) else ():
        yield from parts(part)


def test_what_a_release_wrote_is_read_and_written_again_byte_for_byte() -> None:
    result = audit_result(json.loads(STORED))
    assert json.dumps(document(result), indent=1, allow_nan=False) + "\n" == STORED, (
        f"write a new field's value into {STORED_FILE.name}, as docs/extending.md says"
    )
    empty = dict[str, bool]()
    for part in parts(result):
        for entry in fields(part):
            name = f"{type(part).__name__}.{entry.name}"
            empty[name] = empty.get(name, True) and getattr(part, entry.name) in (None, [], {}, "")
    assert [name for name, is_empty in empty.items() if is_empty] == [], "it has every part"
    assert len(empty) > 200


@pytest.mark.parametrize("name", OLD_FILES)
def test_a_document_of_the_first_form_is_read_as_it_is_and_made_a_page_of(
    name: str, tmp_path: Path
) -> None:
    content = json.loads(STORED_FILE.with_name(name).read_text(encoding="utf-8"))
    assert content["schema"] == "dfme.audit/1"
    result = document(audit_result(content))
    optional = {entry.name for entry in fields(AuditResult) if entry.default is not MISSING}
    later = result.keys() - content.keys()
    assert {"history", "drill"} <= later <= optional
    test = content["fidelity_test"]["rating"]
    assert result["fidelity_test"]["rating"] == {"vulnerable": "vulnerability detected"}.get(
        test, test
    )
    assert result["schema"] == "dfme.audit/2"
    assert same(content, result) == []
    write_page(audit_result(content), tmp_path / "audit.html")
    sentence = content["headline"]["sentences"][0].replace("'", "&#39;")
    assert sentence in (tmp_path / "audit.html").read_text()


def same(old: Any, new: Any, place: str = "") -> list[str]:
    """Places where a document says something else than the older one says there."""
    if isinstance(old, dict):
        return [
            fault
            for key, value in old.items()
            for fault in same(value, new.get(key), f"{place}.{key}")
        ]
    if isinstance(old, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return [fault for pair in pairs for fault in same(*pair, place)]
    return [] if old == new or place in (".schema", ".fidelity_test.rating") else [place]


def test_the_schema_in_docs_is_derived_from_the_dataclasses() -> None:
    schema = json.loads((PROJECT / "docs/audit.schema.json").read_text())
    assert schema == json_schema(), "write the schema anew, as docs/extending.md says"
    for content in (json.loads(STORED), audit()):
        jsonschema.Draft202012Validator(schema).validate(content)
    assert {*schema["required"]} == audit().keys()
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(audit() | {"more": 1}, schema)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [],
            "found.json: expected all that dfme.audit/2 holds, got the whole: Input should be an object",
        ),
        ({"twin": {"file": "a"}}, "got twin.agreement: Field required; remove it, and resume"),
        ({"asked": "3"}, "got asked: Input should be a valid integer; remove it"),
        ({"fidelity": [{"class": "\x1b\n"}]}, "got fidelity.0.cell: Field required"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(content: Any, message: str) -> None:
    refused(message, parse, CopyExamination, content, "found.json", error=RunError)


def test_a_result_on_file_is_made_once_for_a_key_and_checked_when_it_is_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "found.json"
    for key, asked in (("a", 3), ("a", 4), ("b", 5)):
        examination = cached(file, CopyExamination, [key], lambda: CopyExamination(asked=asked))  # noqa: B023
        assert examination.asked == (3 if key == "a" else 5)
    file.write_text('{"of": ["b"], "found": {"asked": "many"}}')
    with pytest.raises(RunError, match=r"found\.json: expected all .* got asked: Input"):
        cached(file, CopyExamination, ["b"], CopyExamination)
    assert recorded(tmp_path / "audit.json") is None
    (tmp_path / "audit.json").write_text(json.dumps(json.loads(STORED) | {"halves": {}}))
    with pytest.raises(RunError, match=r"audit\.json: expected all .* got halves\.dataset: Field"):
        recorded(tmp_path / "audit.json")
