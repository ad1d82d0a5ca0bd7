"""The orderings that hold among defences and attackers, on the tables recorded in docs/results, each within one sd."""

from __future__ import annotations

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
DEFENCES = (
    *("lattice:n=10", "temperature:t=2", WEAK, STRONG, MAD, "mad:vertices=extreme", W, "modelguard_s", "grad2"),
    *("grad2:keep_top=true", "misinform:gate=softmax:key_env=DFME_KEY", "noise:key_env=DFME_KEY"),
)


class Table:
    """A recorded table of defences; agreement in shares as (mean, sd) over seeds."""

    def __init__(self, content: dict[str, Any]) -> None:
        modes = {table["label_mode"]: table["defences"] for table in content["tables"]}
        (lines,) = modes.values()
        self.lines = {line["defence"]: line for line in lines}

    def of(self, defence: str, answers: str) -> tuple[float, float]:
        """What an attacker got of a defence."""
        (one,) = (one for one in self.lines[defence]["attackers"] if one["answers"] == answers)
        return one["score"]["mean"], one["score"]["sd"]

    def best(self, defence: str) -> tuple[float, float]:
        return self.of(defence, self.lines[defence]["best"])

    def l1(self, defence: str) -> float:
        """Mean L1 change of an answer, on held-out images."""
        return float(self.lines[defence]["bill"]["held_out"]["l1_mean"])


def above(more: tuple[float, float], less: tuple[float, float], by: float = 0.0) -> bool:
    """Whether one mean lies above another by so much, or fails to by no more than the larger sd."""
    return more[0] - less[0] > by - max(more[1], less[1])


def largest(*several: tuple[float, float]) -> tuple[float, float]:
    return max(several)


Holds = Callable[[Table], bool]
ORDERINGS: dict[str, Holds] = {
    "undefended scores > label": lambda t: above(t.of("none", "scores"), t.of("none", "label")),
    "undefended scores > ten steps > label": lambda t: (
        above(t.of("none", "scores"), t.best("lattice:n=10")) and above(t.best("lattice:n=10"), t.of("none", "label"))
    ),
    **{f"undefended >= {name}": lambda t, name=name: above(t.best("none"), t.best(name)) for name in DEFENCES},  # type: ignore[misc]
    **{
        f"labels of {name} as without it": lambda t, name=name: above(t.of(name, "label"), t.of("none", "label"))  # type: ignore[misc]
        for name in (WEAK, STRONG)
    },
    **{
        f"L1 < KL < table or label on {name}": lambda t, name=name: (  # type: ignore[misc]
            above(t.of(name, "kl"), t.of(name, "scores"))
            and above(largest(t.of(name, "table"), t.of(name, "label")), t.of(name, "kl"))
        )
        for name in (WEAK, STRONG, MAD, W)
    },
    **{
        f"table gains 10 points over KL on {name}": lambda t, name=name: (  # type: ignore[misc]
            above(t.of(name, "table"), t.of(name, "kl"), 0.1)
        )
        for name in (WEAK, STRONG)
    },
    "a stronger reverse sigmoid leaves a naive attacker no more": lambda t: above(
        t.of(WEAK, "scores"), t.of(STRONG, "scores")
    ),
    "a stronger reverse sigmoid costs more": lambda t: t.l1(STRONG) > t.l1(WEAK),
    "ModelGuard-S costs honest users below .1": lambda t: t.l1("modelguard_s") < 0.1,
    "ModelGuard-W costs its radius": lambda t: abs(t.l1(W) - 1.0) < 0.01,
}


@cache
def recorded(task: str) -> Table | None:
    path = RESULTS / f"compare_defences_{task}.json"
    return Table(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("task", TASKS)
def test_the_ordering_holds_on_the_recorded_table(task: str, ordering: str) -> None:
    table = recorded(task)
    if table is None:
        pytest.skip(f"docs/results/compare_defences_{task}.json is not recorded")
    try:
        holds = ORDERINGS[ordering](table)
    except KeyError as error:
        pytest.skip(f"the recorded table has no line {error}")
    if (task, ordering) in KNOWN:
        assert not holds, f"it holds now; leave it out of KNOWN: {KNOWN[task, ordering]}"
    else:
        assert holds
