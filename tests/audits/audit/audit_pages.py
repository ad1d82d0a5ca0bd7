"""An audit.json of two attackers, two label modes, three defences and three seeds; its pages as
read.
"""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dfme.audits.audit.controls import controls
from dfme.audits.audit.page import write_page
from dfme.audits.audit.result import audit_result, document
from dfme.audits.audit.sheets import sheet

CHOSEN = ("schema", "from", "profile", "transfer", "per", "state", "kind", "rating")
CHOSEN += ("change", "channel")
"""Keys with few values, which nobody writes a text of their own into; ``kind`` of a teacher has any.
"""
SAMPLE = Path(__file__).with_name("audit_sample.json").read_text(encoding="utf-8")


def audit() -> dict[str, Any]:
    """All of it, read anew, so that a test may change it."""
    return json.loads(SAMPLE)  # type: ignore[no-any-return]


def sample(**changed: Any) -> dict[str, Any]:
    """The sample without limits, and parts of its own."""
    return audit() | {"verdicts": []} | changed


def controls_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [document(row) for row in controls(audit_result(content))]


def quota_of(content: dict[str, Any], checked: str | None) -> dict[str, Any] | None:
    quota = sheet(audit_result(content), checked)
    return document(quota) if quota else None


def judged(limit: str, wanted: float, holds: bool | None) -> dict[str, Any]:
    return {
        "limit": limit,
        "wanted": wanted,
        "value": None,
        "pass": holds,
        "text": f"{limit}, {wanted}",
    }


Curves = dict[str, list[tuple[int, float]]]


def curved(curves: Curves, per: str = "day", checked: float | None = None) -> dict[str, Any]:
    """The sample with these curves of the model as deployed, and perhaps an attack under the
    quota.
    """
    content = sample(defences=[])
    like = content["cells"][0]
    for name, curve in (curves | ({"check": [(1, checked)]} if checked else {})).items():
        content["cells"].append(
            like | {"name": name, "row": name, "agreement": curve[-1][1], "curve": curve}
        )
    content["options"] |= {"keep_below": 0.8, "per": per, "budget": 1_000}
    content["price"][0]["cells"] = [name for name in curves if name != "b"]
    content["price"][1]["cells"] = [
        name for name in curves if name == "b"
    ]  # on labels, which scores tell
    content["price"][2]["cells"] = []  # the other attacker's on scores
    content["quota"] = quota_of(content, "check")
    content["controls"] = controls_of(content)
    return content


def hostile(value: Any, mark: str, key: str = "") -> Any:
    """An audit whose every free text ends in a mark."""
    if isinstance(value, dict):
        return {name: hostile(part, mark, name) for name, part in value.items()}
    if isinstance(value, list):
        return [hostile(part, mark, key) for part in value]
    chosen = key in CHOSEN and value != "torch"
    return f"{value}{mark}" if isinstance(value, str) and not chosen else value


@dataclass
class Page(HTMLParser):
    """What a browser makes of the page: its text, tables by caption as rows of cells, headings."""

    text: str = ""
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    headings: list[tuple[str, str]] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    strong: list[str] = field(default_factory=list)
    behind: Any = None

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in ("meta", "img", "wbr", "br"):
            self._open.append(tag)
        if tag != "wbr":
            self.text += " "
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag
        if tag == "table":
            assert self._caption not in self.tables
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        data = re.sub(r"\s+", " ", data)
        if "style" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif {"th", "td"} & {*self._open}:
            self._rows[-1][-1] += f" {data}" if "small" in self._open else data
        elif self._open[-1:] and self._open[-1] in ("h1", "h2", "h3"):
            self.headings[-1] = (self._open[-1], self.headings[-1][1] + data)
        if "strong" in self._open:
            self.strong.append(data)

    def table(self, start: str) -> list[list[str]]:
        """The rows below the heads of the one table whose caption begins so."""
        (rows,) = (rows for caption, rows in self.tables.items() if caption.startswith(start))
        assert len({len(row) for row in rows}) == 1
        return rows[1:]


def page_of(content: dict[str, Any], folder: Path) -> Page:
    """The page, and ``behind`` it the appendix."""
    path = write_page(audit_result(content), folder / "audit.html")
    page = Page(behind=Page())
    for parsed, file in ((page, path), (page.behind, path.with_name("appendix.html"))):
        parsed.feed(file.read_text(encoding="utf-8"))
        assert parsed._open == []
    return page
