"""What an audit's figures are evidence for, in catalogues of controls; it never says that one is
met.
"""

from dfme.audits.audit.model import Entry
from dfme.audits.compare.plan import NO_DEFENCE

AISVS = "OWASP AISVS", "1.0", "2026"
ATLAS = "MITRE ATLAS", "2026.05", "27 May 2026"
NIST = "NIST AI 100-2", "E2025", "24 March 2025"
EU = "EU AI Act", "Regulation (EU) 2024/1689", "13 June 2024"
CONTROLS = (
    (
        AISVS,
        "11.2.2",
        "rate limits of each client and of all, sized by what an extraction needs",
        "limits",
    ),
    (AISVS, "11.3.3", "a mark or fingerprint by which a copy can be recognised", "copies"),
    (AISVS, "12.2.4", "alarms of an extraction that say which queries raised them", "alarms"),
    (ATLAS, "AML.M0002", "answers that tell no more of the model than users need", "labels"),
    (ATLAS, "AML.M0004", "a limit on the number of queries", "quotas"),
    (ATLAS, "AML.M0024", "records of queries and answers that can be watched", "alarms"),
    (NIST, "model extraction", "to know this attack, and the limits of what mitigates it", "price"),
    (
        EU,
        "art. 15(5)",
        "of high-risk systems: to prevent, detect and answer attacks on secrecy",
        "price",
    ),
)
"""Source (name, version, date), control, what it asks in our words, and the figure beside it."""
Figure = tuple[str, str | None] | None  # a sentence, and the name of the cell that it comes from


def controls(audit: Entry) -> list[Entry]:
    """A row per control; ``figure`` and ``dir``, a cell's directory, are None where nothing was
    measured.
    """
    head = audit["headline"]
    places = {cell["name"]: cell["dir"] for cell in audit["cells"]}
    found = {"quotas": _quotas(audit), "alarms": _alarms(audit), "copies": _copies(audit)}
    found["price"] = _price(audit, head["mode"], head["attacker"], 0)
    found["labels"] = _price(audit, "label", (head["labels"] or {"attacker": None})["attacker"], -1)
    found["limits"] = found["quotas"] or found["price"]
    rows = []
    for (source, version, date), control, asks, of in CONTROLS:
        figure, name = found.get(of) or (None, None)
        rows.append(
            {
                "source": source,
                "version": version,
                "date": date,
                "control": control,
                "asks": asks,
                "figure": figure,
                "dir": places.get(name or ""),
            }
        )
    return rows


def _price(audit: Entry, mode: str, attacker: str | None, sentence: int) -> Figure:
    """A sentence of the headline, and a cell of its attacker."""
    lines = (
        line["cells"] for line in audit["price"] if (line["row"], line["mode"]) == (attacker, mode)
    )
    cells = next(lines, None)
    return cells and (audit["headline"]["sentences"][sentence], cells[0])


def _quotas(audit: Entry) -> Figure:
    """The rate-limit sheet, else the quota that was tried as a defence."""
    if (sheet := audit["quota"]) is not None:
        return " ".join(sheet["text"][:2]), (sheet["checked"] or sheet)["cell"]
    for line in audit["defences"]:
        if line["defence"].startswith("quota") and line["best_score"]:
            best = next(each for each in line["attackers"] if each["answers"] == line["best"])
            text = (
                f"With {line['defence']} the best copy agrees on {line['best_score']['mean']:.1%}"
            )
            constant = audit["games"]["constant"]
            text += "." if constant is None else f" (one constant answer: {constant:.1%})."
            return text, next(iter(best["cells"]), None)
    return None


def _copies(audit: Entry) -> Figure:
    """The number of copies that the test of ``run.py verify`` calls more alike than every
    reference.
    """
    rows = (audit["recognition"] or {"rows": ()})["rows"]
    known = [pair for row in rows for pair in zip(row["recognised"], row["cells"], strict=True)]
    called = [name for sure, name in known if sure]
    text = f"The test of run.py verify recognises {len(called)} of {len(known)} copies."
    return (text, next(iter(called), known[0][1])) if known else None


def _alarms(audit: Entry) -> Figure:
    """How many attacks on the model as deployed raised an alarm."""
    own = audit["target"]["label_mode"], NO_DEFENCE
    watched = (audit["detection"] or {"attacks": ()})["attacks"]
    attacks = [each for each in watched if (each["mode"], each["defence"]) == own]
    seen = dict.fromkeys(each["cell"] for each in attacks)
    raised = dict.fromkeys(each["cell"] for each in attacks if each["first_alarm"] is not None)
    text = f"{len(raised)} of {len(seen)} attacks raised an alarm of at least one detector."
    return (text, next(iter(raised or seen))) if seen else None
