"""Content of ledger.jsonl: one JSON object per line, in the order things happened, the true history
of a run.

    {"seq":0,"event":"budget","budget":300000,"run":"1f..","teacher":{..}}   in force after answer
    ``seq`` {"seq":0,"event":"stretch","started":"2026-01-31T12:00:00Z","threads":8} the run begins,
    or goes on {"seq":1,"event":"charge","purpose":"student","images":256,"spent":256}  written
    before the send {"seq":1,"event":"refused","images":256,"reason":"429"}                  not
    served: given back {"seq":2,"event":"failed","images":256,"reason":"timeout"}
    maybe served: stays charged {"seq":3,"event":"lost","images":256,"reason":".."}
    the answer is lost: written off {"seq":4,"event":"no_answer","images":2,"reason":"no label"}
    answered without a class {"seq":3,"event":"beside","purpose":"benign","images":180}
    outside the run's queries {"seq":9,"event":"ended","at":"2026-01-31T12:30:00Z"}
    the stretch ends, unless killed

Charges are numbered without a gap. ``spent`` is the total of charged purposes after the line. Every
line ends in a ``check``: the CRC-32 of its other members and of all lines before it. ``run`` is a
random name, the same in all sessions of a run; ``teacher`` is what the run was started with.
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, get_args

from dfme.errors import OptionError, RunError, say
from dfme.files import whole_lines

Purpose = Literal["generator", "student", "seed", "check", "evaluation", "transfer", "benign"]
"""What a query is for. Recorded and part of the cost, but not charged to the budget, are
``evaluation``, ``transfer`` (an audit examines finished copies) and ``benign`` (images of honest
users)."""

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
CHARGED: tuple[Purpose, ...] = ("generator", "student", "seed", "check")
TOLD_ONLY = (
    "target",
    "adapter",
    "source",
    "sources",
)  # facts that follow from others, or that may change
MAX_SHOWN = 200  # letters of what is wrong with a line


class Charge(NamedTuple):
    images: int
    purpose: Purpose


class RunStretch(TypedDict):
    """A session of a run: its times by ISO 8601, the last of them unless it was killed."""

    started: str
    threads: int
    ended: NotRequired[str]


class LedgerState(TypedDict):
    """A ledger's counters in a checkpoint. ``seq``: the last charge that is counted."""

    seq: int
    images: dict[Purpose, int]
    requests: int
    refused: int
    failed: int
    lost: int


@dataclass(frozen=True)
class Totals:
    """A ledger added up over all sessions, in images (``requests`` in requests).

    ``failed`` images were charged (or recorded, for evaluation) without an answer to learn from. So
    were those of ``no_answer``: the service answered, but with none of the classes, and they are
    left out. ``benign_queries`` has those of charges and those that a custom teacher was asked
    ``beside`` them.
    """

    budget: int = 0
    spent: int = 0
    spent_by_purpose: dict[str, int] = field(default_factory=dict)
    evaluation_queries: int = 0
    requests: int = 0
    refused: int = 0
    failed: int = 0
    lost: int = 0
    transfer_queries: int = 0
    benign_queries: int = 0
    no_answer: int = 0

    @property
    def served(self) -> int:
        """The most images that the teacher can have served, and so can ask money for."""
        beside = self.evaluation_queries + self.transfer_queries + self.benign_queries
        return self.spent + beside + self.lost


@dataclass
class History:
    """The lines of a ledger so far; ``kept`` holds the charges that were neither refused nor lost.

    ``failed`` numbers those of them that have no answer and stay charged. ``reasons`` counts
    requests that were refused or failed by the reason given. ``no_answer`` has, by charge, the
    images that were answered without a class, by reason.
    """

    run: str = ""
    teacher: dict[str, Any] | None = None
    check: int = 0
    kept: dict[int, Charge] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    reasons: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    no_answer: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    budgets: list[tuple[int, int]] = field(default_factory=list)
    stretches: list[RunStretch] = field(default_factory=list)
    requests: int = 0
    spent: int = 0
    refused: int = 0
    lost: int = 0
    beside: int = 0
    size: int = 0

    def images(self, until: int | None = None) -> dict[Purpose, int]:
        """Images kept per purpose, of all charges or of those numbered up to ``until``."""
        counts = dict.fromkeys(PURPOSES, 0)
        for seq, charge in self.kept.items():
            if until is None or seq <= until:
                counts[charge.purpose] += charge.images
        return counts

    def budget(self, seq: int) -> int | None:
        """The budget in force after charge ``seq`` was answered, if the file says."""
        return next((budget for since, budget in reversed(self.budgets) if since <= seq), None)

    def verify(self, line: bytes) -> None:
        """Hold one line to its check. Raises ValueError if it is not the line that was written
        here.
        """
        members, _, end = line.rpartition(b',"check":"')
        self.check = zlib.crc32(members, self.check)
        if end != b'%08x"}\n' % self.check:
            raise ValueError("its check does not fit what it and the lines before it say")

    def add(self, entry: dict[str, Any]) -> None:
        """Take one line in. Raises ValueError, KeyError or TypeError if it cannot follow the
        others.
        """
        event = entry["event"]
        seq = entry["seq"]
        if event == "charge":
            self._charge(seq, Charge(entry["images"], entry["purpose"]), entry["spent"])
        elif event in ("refused", "failed", "lost"):
            self._unanswered(seq, event, entry["images"])
            if event != "lost":
                self.reasons[event][str(entry["reason"])] += 1
        elif event == "no_answer":
            self._leave_out(seq, entry["images"], str(entry["reason"]))
        elif event == "beside":
            self.beside += entry["images"]
        elif event == "budget":
            self.budgets.append((seq, entry["budget"]))
            self.run = self.run or entry.get("run", "")
            self.teacher = self.teacher or entry.get("teacher")
        elif event == "stretch":
            self.stretches.append({"started": entry["started"], "threads": entry["threads"]})
        elif event == "ended" and self.stretches:
            self.stretches[-1]["ended"] = entry["at"]
        else:
            raise ValueError(f"unknown event {event!r}")

    def _charge(self, seq: int, charge: Charge, spent: int) -> None:
        if charge.purpose not in PURPOSES:
            raise ValueError(f"unknown purpose {charge.purpose!r}")
        if seq != self.requests + 1:
            raise ValueError(
                f"charge {seq} follows charge {self.requests}: lines are missing or repeated"
            )
        self.requests = seq
        self.kept[seq] = charge
        self.spent += charge.images if charge.purpose in CHARGED else 0
        if spent != self.spent:
            raise ValueError(
                f"it says {spent} images were spent, the lines before it add up to {self.spent}"
            )
        if self.budgets and self.spent > self.budgets[-1][1]:
            raise ValueError(
                f"{self.spent} images spent exceed the budget of {self.budgets[-1][1]}"
            )

    def _leave_out(self, seq: int, images: int, reason: str) -> None:
        charge = self.kept.get(seq)
        left_out = self.no_answer[seq].total() + images
        if charge is None or seq in self.failed or not 0 < images <= left_out <= charge.images:
            raise ValueError(
                f"{images} images without an answer in charge {seq}, which is {charge}"
            )
        self.no_answer[seq][reason] += images

    def _unanswered(self, seq: int, event: str, images: int) -> None:
        charge = self.kept.get(seq)
        if charge is None or charge.images != images or seq in self.failed:
            raise ValueError(f"{images} images {event} for charge {seq}, which is {charge}")
        self.no_answer.pop(seq, None)
        if event == "failed":
            self.failed.add(seq)
            return
        del self.kept[seq]
        self.spent -= images if charge.purpose in CHARGED else 0
        if event == "lost":
            self.lost += images
        else:
            self.refused += images


def require_same_teacher(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """UserError naming, with both values, every fact that is not as on record; compared as JSON has
    them.
    """
    if (uncut := "uncut_label_mode") in {
        **recorded,
        **now,
    }:  # it is on record where something is cut
        recorded, now = ({uncut: facts.get("label_mode"), **facts} for facts in (recorded, now))
    before, now = (
        {name: side[name] for name in side if name not in TOLD_ONLY} for side in (recorded, now)
    )
    if differing := list(_differing(before, json.loads(json.dumps(now)))):
        raise OptionError(
            "resume",
            say(
                "this run was started with a teacher of {}; resume with the teacher as it was, or "
                "start a new run in another {out}",
                ", ".join(differing),
            ),
        )


def _differing(
    recorded: Mapping[str, Any], now: Mapping[str, Any], of: str = "", most: int = MAX_SHOWN
) -> Iterator[str]:
    """Differences in words; the digests of ``files`` by their first 12 letters."""
    for name in {**recorded, **now}:
        before = recorded.get(name)
        after = now.get(name)
        if name == "files" and isinstance(before, dict) and isinstance(after, dict):
            yield from _differing(before, after, "file ", 12)
        elif before != after:
            yield f"{of}{_shown(name)} {_shown(before, most)} (now {_shown(after, most)})"


def _shown(value: object, most: int = MAX_SHOWN) -> str:
    """The beginning of a fact, with nothing unprintable in it."""
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return "none" if value is None else text[:most]


def read_history(path: Path) -> History:
    """Read a ledger; ``size`` is the end of its last whole line.

    A last line without its newline was torn by a kill before the send and is left out. Anything
    else that is not a line of a ledger raises RunError: a budget never grows because a line cannot
    be read.
    """
    history = History()
    try:
        for number, line in enumerate(whole_lines(path), 1):
            try:
                history.add(json.loads(line))
                history.verify(line)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                problem = f"no {error}" if isinstance(error, KeyError) else str(error)[:MAX_SHOWN]
                raise RunError(
                    f"{path}, line {number}: expected a ledger's next line: {problem}"
                ) from error
            history.size += len(line)
    except OSError as error:
        raise RunError(f"{path}: cannot read the ledger: {error.strerror}") from error
    return history


def audit(path: Path) -> Totals:
    """Add a ledger up from its file alone; RunError for a missing or damaged one."""
    history = read_history(path)
    images = history.images()
    return Totals(
        budget=history.budgets[-1][1] if history.budgets else 0,
        spent=sum(images[purpose] for purpose in CHARGED),
        spent_by_purpose={purpose: images[purpose] for purpose in CHARGED},
        evaluation_queries=images["evaluation"],
        requests=history.requests,
        refused=history.refused,
        failed=sum(history.kept[seq].images for seq in history.failed),
        lost=history.lost,
        transfer_queries=images["transfer"],
        benign_queries=images["benign"] + history.beside,
        no_answer=sum(left_out.total() for left_out in history.no_answer.values()),
    )
