"""What audit.json holds, as dataclasses: they are its form, its check and its JSON schema."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, with_config

from dfme.audits.audit.account_parts import ManyAccounts
from dfme.audits.audit.parts import (
    FORM,
    AttackedDefence,
    CellResult,
    Differences,
    Fidelity,
    IntOrFloat,
    NotRun,
    OverSeeds,
    ParetoPoint,
    Recognition,
    SeedsOfFigure,
    Transfer,
    Twin,
    WatchedAttacks,
)
from dfme.audits.audit.price_parts import FidelityTest, Headline, PriceLine, PublicBackbone
from dfme.config.messages import printable
from dfme.errors import RunError
from dfme.measured import Bill
from dfme.report.run_files import read_object

SCHEMA = "dfme.audit/1"
"""The name of the form."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What made the audit."""

    dfme: str
    torch: str
    python: str
    commit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How and when it was made, over all sessions."""

    command: str
    started: str
    wall_seconds: float
    machine: str
    finished: bool
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. ``rate``: images that a key is allowed, ``weights``: of students."""

    profile: Literal["quick", "standard", "full"]
    budget: int
    seeds: Sequence[int]
    attackers: Sequence[str]
    label_modes: Sequence[str]
    defences: Sequence[str]
    total: int | None
    transfer: Literal["auto", "true", "false"]
    keep_below: float | None
    per: Literal["minute", "hour", "day", "month"]
    price_per_1000: float | None
    rate: str | None = None
    weights: str | None = None
    public_pool: str | None = None
    acceptable: Mapping[str, IntOrFloat]


@dataclass(frozen=True, slots=True)
class EvaluatedOn:
    """The images that copies are scored on."""

    name: str | None
    images: int | None
    labelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The audited teacher. ``place``: a file that describes it, for SARIF."""

    kind: str
    name: str
    local: bool
    label_mode: str
    shape: Sequence[int] | None
    num_classes: int | None
    levels: int | None
    defences: Sequence[str]
    authorised_by: str | None
    accuracy: float | None
    evaluation: EvaluatedOn
    place: str


@dataclass(frozen=True, slots=True)
class Halves:
    """The evaluation images' halves; ``sha256``: digest of the one that is held back."""

    dataset: str
    held_back: int
    scored: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, how much it helps, and the row of the audit that says so."""

    text: str
    effect: str
    place: Annotated[str, Field(alias="from")]


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Whether a stated limit holds; None: not known."""

    limit: str
    wanted: IntOrFloat
    value: IntOrFloat | None
    holds: Annotated[bool | None, Field(alias="pass")]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Games:
    """Agreements to hold a copy against: of one answer to everything, a guess and a twin.

    ``advantage``: a copy's share of the way from the first to the last.
    """

    constant: float | None
    constant_balanced: float | None = None
    guess: float | None
    twin: Twin | None
    advantage: Sequence[OverSeeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSums:
    """Images of all ledgers. ``served``, ``cost``: the most owed. ``shared``: those that were not
    asked, since another cell had asked them.
    """

    images: int
    evaluation: int
    transfer: int
    benign: int
    served: int
    shared: int
    cost: float | None
    cells: int


@dataclass(frozen=True, slots=True)
class Technique:
    """A technique of MITRE ATLAS."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """Names of the threat in catalogues."""

    atlas: Sequence[Technique]
    owasp: Sequence[str]


@dataclass(frozen=True, slots=True)
class CheckedQuota:
    """An attack under the quota."""

    cell: str
    agreement: float
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSheet:
    """The largest quota of a key that keeps every attacker below an agreement.

    ``open``: no attack that ran got there. ``lines``: the quota as servers say it.
    """

    keep_below: float
    per: str
    images: int
    best: float
    attacker: str
    cell: str
    open: bool
    checked: CheckedQuota | None = None
    lines: Mapping[str, str]
    text: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control of a catalogue, and our figure, if any, with the directory of its cell."""

    source: str
    version: str
    date: str
    control: str
    asks: str
    figure: str | None
    dir: str | None


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The whole audit.json; docs/audit.md says what its parts are.

    ``untried``: what attackers had of whom none has finished.
    """

    schema: Literal["dfme.audit/1"]
    tool: Tool
    made: Made
    options: Options
    target: Target
    halves: Halves | None
    headline: Headline
    advice: Sequence[Advice]
    verdicts: Sequence[LimitVerdict]
    fidelity_test: FidelityTest | None = None
    public_backbone: PublicBackbone | None = None
    untried: Sequence[str] = ()
    price: Sequence[PriceLine]
    games: Games
    defences: Sequence[AttackedDefence]
    utility: Sequence[Bill]
    pareto: Sequence[ParetoPoint]
    detection: WatchedAttacks | None
    accounts: ManyAccounts | None = None
    cells: Sequence[CellResult]
    fidelity: Sequence[Fidelity]
    fidelity_seeds: Sequence[SeedsOfFigure]
    differences: Differences | None
    transfer: Transfer | None
    recognition: Recognition | None
    ledger: LedgerSums
    taxonomy: Taxonomy
    not_run: Sequence[NotRun]
    limits: Sequence[str]
    pictures: Mapping[str, str]
    quota: QuotaSheet | None
    controls: Sequence[Control]

    @property
    def findings(self) -> list[str]:
        """Sentences beside the headline: the catalogue's test, and whether the model is a public
        backbone with a last layer of its own.
        """
        parts = (self.public_backbone, self.fidelity_test)
        return [part.text for part in parts if part is not None]

    def cells_of(self, *modes: str) -> list[str]:
        """Names of the cells of all attackers and seeds on the undefended model, in these label
        modes.
        """
        lines = (line for line in self.price if line.mode in modes)
        return [name for line in lines for name in line.cells]


PartType = TypeVar("PartType")


_ADAPTERS = dict[Any, TypeAdapter[Any]]()


def _adapter(form: Any) -> TypeAdapter[Any]:
    if form not in _ADAPTERS:
        _ADAPTERS[form] = TypeAdapter(form, config=None if is_dataclass(form) else FORM)
    return _ADAPTERS[form]


def document(part: Any) -> Any:
    """A part as audit.json has it."""
    return _adapter(type(part)).dump_python(part, mode="json", by_alias=True)


def parse(form: type[PartType], content: Any, file: str) -> PartType:
    """A part of a file's JSON. RunError, in one line, for what does not fit."""
    try:
        # as text, where a text is no number and a list may be a pair
        value: PartType = _adapter(form).validate_json(json.dumps(content))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"])) or "the whole"
        fault_text = printable(f"{place}: {fault['msg']}")
        raise RunError(
            f"{file}: expected all that {SCHEMA} holds, got {fault_text:.200}; remove it, "
            "and resume the audit"
        ) from None
    return value


def json_schema() -> dict[str, Any]:
    """The JSON schema of audit.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return schema | _adapter(AuditResult).json_schema()


def audit_result(content: Mapping[str, Any]) -> AuditResult:
    """An audit from the JSON of its file. RunError, in one line, for what is not a whole audit of
    this form.
    """
    if (schema := content.get("schema")) != SCHEMA:
        raise RunError(
            f"audit.json: expected the schema {SCHEMA}, got {schema!r:.60}; make it again"
        )
    return parse(AuditResult, content, "audit.json")


def recorded(path: Path) -> AuditResult | None:
    """The audit of a file; None where there is none. RunError for what is no audit of this form."""
    content = read_object(path)
    return audit_result(content) if content else None
