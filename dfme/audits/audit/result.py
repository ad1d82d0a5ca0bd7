"""What audit.json holds, as dataclasses: they are its form, its check and its JSON schema."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, with_config

from dfme.audits.audit.account_parts import ManyAccounts
from dfme.audits.audit.beside_parts import AuditHistory
from dfme.audits.audit.parts import (
    FORM,
    AttackedDefence,
    CellResult,
    Differences,
    Fidelity,
    IntOrFloat,
    MarkRecognition,
    NotRun,
    OverSeeds,
    ParetoPoint,
    Recognition,
    SeedsOfFigure,
    Transfer,
    Twin,
    WatchedAttacks,
)
from dfme.audits.audit.price_parts import (
    DETECTED,
    FidelityTest,
    Headline,
    PriceLine,
    PublicBackbone,
    Rating,
)
from dfme.audits.audit.sheet_parts import Control, QuotaSheet
from dfme.audits.drill.result import DrillResult, first_fault
from dfme.errors import RunError
from dfme.measured import Bill
from dfme.report.run_files import read_object

AITG = "aitg"
"""The limit that is a catalogue's test, AITG-APP-09 of OWASP's AI Testing Guide."""

SCHEMA = "dfme.audit/2"
"""The name of the form."""
FIRST = "dfme.audit/1"
"""The form of release 0.18 and before, which is read as well."""


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
    """The images that copies are scored on; ``sha256``: their digest, with their labels."""

    name: str | None
    images: int | None
    labelled: bool
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The audited teacher. ``place``: a file that describes it, for SARIF. ``files``: SHA-256 of
    those that decide its answers, by the option or their own name; empty of a service, and None
    where they are not known.
    """

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
    files: Mapping[str, str] | None = None


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
    """Whether a stated limit holds; None: not known. ``rating``: a catalogue's word for it."""

    limit: str
    wanted: IntOrFloat
    value: IntOrFloat | None
    holds: Annotated[bool | None, Field(alias="pass")]
    text: str
    rating: Rating | None = None

    @property
    def stated(self) -> str:
        """The limit as its owner states it."""
        return self.limit if self.limit == AITG else f"{self.limit}={self.wanted}"


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
class CommonRequirement:
    """A number of OpenCRE, and the catalogue that names it so."""

    id: str
    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Taxonomy:
    """Names of the threat in catalogues."""

    atlas: Sequence[Technique]
    owasp: Sequence[str]
    opencre: Sequence[CommonRequirement] = ()


@with_config(FORM)
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The whole audit.json; docs/audit.md says what its parts are.

    ``untried``: what attackers had of whom none has finished.
    """

    schema: Literal["dfme.audit/2"]
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
    history: AuditHistory | None = None
    price: Sequence[PriceLine]
    games: Games
    defences: Sequence[AttackedDefence]
    utility: Sequence[Bill]
    pareto: Sequence[ParetoPoint]
    detection: WatchedAttacks | None
    accounts: ManyAccounts | None = None
    drill: DrillResult | None = None
    cells: Sequence[CellResult]
    fidelity: Sequence[Fidelity]
    fidelity_seeds: Sequence[SeedsOfFigure]
    differences: Differences | None
    transfer: Transfer | None
    recognition: Recognition | None
    marks: MarkRecognition | None = None
    ledger: LedgerSums
    taxonomy: Taxonomy
    not_run: Sequence[NotRun]
    limits: Sequence[str]
    pictures: Mapping[str, str]
    quota: QuotaSheet | None
    controls: Sequence[Control]

    @property
    def findings(self) -> list[str]:
        """Sentences beside the headline: the catalogue's test, whether the model is a public
        backbone with a last layer of its own, and whether a copy would be recognised by its mark.
        """
        parts = (self.public_backbone, self.fidelity_test, self.marks)
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


def parse(form: type[PartType], content: Any, file: str, held: str = SCHEMA) -> PartType:
    """A part of a file's JSON. RunError, in one line, for what does not fit what it holds."""
    try:
        # as text, where a text is no number and a list may be a pair
        value: PartType = _adapter(form).validate_json(json.dumps(content))
    except ValidationError as error:
        fault = first_fault(error)
        raise RunError(
            f"{file}: expected all that {held} holds, got {fault:.200}; remove it, "
            "and resume the audit"
        ) from None
    return value


def json_schema() -> dict[str, Any]:
    """The JSON schema of audit.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return schema | _adapter(AuditResult).json_schema()


def audit_result(content: Mapping[str, Any]) -> AuditResult:
    """An audit from the JSON of its file, of this form or the one before. RunError, in one line,
    for what is not a whole audit of such a form.
    """
    schema = content.get("schema")
    if schema == FIRST:
        return parse(AuditResult, _of_first(content), "audit.json", FIRST)
    if schema != SCHEMA:
        raise RunError(
            f"audit.json: expected the schema {SCHEMA} or {FIRST}, got {schema!r:.60}; make it "
            "again"
        )
    return parse(AuditResult, content, "audit.json")


def _of_first(content: Mapping[str, Any]) -> dict[str, Any]:
    """A document of the first form in today's: what came later is not known of it, and the
    catalogue's word for an agreement above 90 % was another.
    """
    test = content.get("fidelity_test")
    if isinstance(test, Mapping) and test.get("rating") == "vulnerable":
        content = {**content, "fidelity_test": {**test, "rating": DETECTED}}
    return {**content, "schema": SCHEMA}


def recorded(path: Path) -> AuditResult | None:
    """The audit of a file; None where there is none. RunError for what is no audit of this form."""
    content = read_object(path)
    return audit_result(content) if content else None
