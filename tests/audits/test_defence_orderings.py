"""The orderings that hold among defences and attackers, on the tables recorded in docs/results."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
TASKS = ("digits", "shapes")

KNOWN: dict[tuple[str, str], str] = {
    ("shapes", "L1 < KL < table or label on modelguard_w"): "KL learns little there, undefended too: 21.9 %"
}
"""(task, ordering) of those that do not hold, and why: a finding, not a fault of the code."""

WEAK, STRONG = "reverse_sigmoid:beta=0.21", "reverse_sigmoid:beta=0.7"
MAD, W = "mad:vertices=argmax", "modelguard_w"
DEFENCES = f"""lattice:n=10 temperature:t=2 {WEAK} {STRONG} {MAD} mad:vertices=extreme {W} modelguard_s grad2
    grad2:keep_top=true misinform:gate=softmax:key_env=DFME_KEY noise:key_env=DFME_KEY""".split()

Side = tuple[str, ...]
"""A defence, and the attackers of which the best counts; without any, all that were run."""
ORDERINGS: dict[str, list[tuple[Side, Side, float]]] = {
    "undefended scores > label": [(("none", "scores"), ("none", "label"), 0)],
    "undefended scores > ten steps > label": [
        (("none", "scores"), ("lattice:n=10",), 0),
        (("lattice:n=10",), ("none", "label"), 0),
    ],
    "a stronger reverse sigmoid leaves a naive attacker no more": [((WEAK, "scores"), (STRONG, "scores"), 0)],
}
ORDERINGS |= {f"undefended >= {name}": [(("none",), (name,), 0)] for name in DEFENCES}
for _name in (WEAK, STRONG):
    ORDERINGS[f"labels of {_name} as without it"] = [((_name, "label"), ("none", "label"), 0)]
    ORDERINGS[f"table gains 10 points over KL on {_name}"] = [((_name, "table"), (_name, "kl"), 0.1)]
for _name in (WEAK, STRONG, MAD, W):
    ORDERINGS[f"L1 < KL < table or label on {_name}"] = [
        ((_name, "kl"), (_name, "scores"), 0),
        ((_name, "table", "label"), (_name, "kl"), 0),
    ]
PRICES: dict[str, Callable[[dict[str, float]], bool]] = {
    "a stronger reverse sigmoid costs more": lambda l1: l1[STRONG] > l1[WEAK],
    "ModelGuard-S costs honest users below .1": lambda l1: l1["modelguard_s"] < 0.1,
    "ModelGuard-W costs its radius": lambda l1: abs(l1[W] - 1.0) < 0.01,
}


class Table:
    """A recorded table of defences; agreement in shares as (mean, sd) over seeds."""

    def __init__(self, content: dict[str, Any]) -> None:
        (lines,) = (table["defences"] for table in content["tables"])
        self.lines = {line["defence"]: line for line in lines}
        bills = {name: line["bill"] for name, line in self.lines.items() if line["bill"]}
        self.l1 = {name: float(bill["held_out"]["l1_mean"]) for name, bill in bills.items()}

    def of(self, defence: str, *answers: str) -> tuple[float, float]:
        """Agreement of the best of these attackers of a defence."""
        line = self.lines[defence]
        named = answers or (line["best"],)
        scores = {one["answers"]: one["score"] for one in line["attackers"] if one["answers"] in named}
        return max((scores[name]["mean"], scores[name]["sd"]) for name in named)

    def holds(self, ordering: str) -> bool:
        """True if each mean lies above the other by so much, or fails to by no more than the larger sd."""
        if ordering in PRICES:
            return PRICES[ordering](self.l1)
        pairs = [(self.of(*more), self.of(*less), by) for more, less, by in ORDERINGS[ordering]]
        return all(more[0] - less[0] > by - max(more[1], less[1]) for more, less, by in pairs)


@cache
def recorded(task: str) -> Table | None:
    path = RESULTS / f"compare_defences_{task}.json"
    return Table(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


@pytest.mark.parametrize("ordering", [*ORDERINGS, *PRICES])
@pytest.mark.parametrize("task", TASKS)
def test_the_ordering_holds_on_the_recorded_table(task: str, ordering: str) -> None:
    table = recorded(task)
    if table is None:
        pytest.skip(f"docs/results/compare_defences_{task}.json is not recorded")
    try:
        holds = table.holds(ordering)
    except KeyError as error:
        pytest.skip(f"the recorded table has no line {error}")
    if (task, ordering) in KNOWN:
        assert not holds, f"it holds now; leave it out of KNOWN: {KNOWN[task, ordering]}"
    else:
        assert holds
