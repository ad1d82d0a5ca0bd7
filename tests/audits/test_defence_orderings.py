"""The orderings that hold among defences and attackers, on the tables recorded in docs/results."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"

KNOWN: dict[tuple[str, str], str] = {
    ("shapes", "L1 < KL < table or label on modelguard_w"): "KL learns little there, undefended too: 21.9 %"
}
"""(task, ordering) of those that do not hold, and why: a finding, not a fault of the code."""

WEAK, STRONG = "reverse_sigmoid:beta=0.21", "reverse_sigmoid:beta=0.7"
MAD, W = "mad:vertices=argmax", "modelguard_w"
DEFENCES = f"""lattice:n=10 temperature:t=2 {WEAK} {STRONG} {MAD} mad:vertices=extreme {W} modelguard_s grad2
    grad2:keep_top=true misinform:gate=softmax:key_env=DFME_KEY noise:key_env=DFME_KEY""".split()
TASKS = {"digits": {"none", *DEFENCES}, "shapes": {"none", STRONG, MAD, W, "modelguard_s"}}
"""What was run of each."""

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


@cache
def recorded(task: str) -> dict[str, Any]:
    """The lines of the recorded table, by defence."""
    content = json.loads((RESULTS / f"compare_defences_{task}.json").read_text(encoding="utf-8"))
    (lines,) = (table["defences"] for table in content["tables"])
    return {line["defence"]: line for line in lines}


def agreement(task: str, defence: str, *answers: str) -> tuple[float, float]:
    """Mean and sd over seeds of the best of these attackers of a defence."""
    line = recorded(task)[defence]
    named = answers or (line["best"],)
    scores = [one["score"] for one in line["attackers"] if one["answers"] in named]
    assert len(scores) == len(named)
    return max((score["mean"], score["sd"]) for score in scores)


@pytest.mark.parametrize(
    ("task", "ordering"),
    [
        (task, ordering)
        for task, run in TASKS.items()
        for ordering, pairs in ORDERINGS.items()
        if run >= {side[0] for more, less, _ in pairs for side in (more, less)}
    ],
)
def test_the_ordering_holds_on_the_recorded_table(task: str, ordering: str) -> None:
    """Each mean lies above the other by so much, or fails to by no more than the larger sd."""
    pairs = [(agreement(task, *more), agreement(task, *less), by) for more, less, by in ORDERINGS[ordering]]
    holds = all(more[0] - less[0] > by - max(more[1], less[1]) for more, less, by in pairs)
    assert holds != ((task, ordering) in KNOWN), KNOWN.get((task, ordering))


@pytest.mark.parametrize("task", TASKS)
def test_the_recorded_prices_for_honest_users(task: str) -> None:
    l1 = {name: line["bill"]["held_out"]["l1_mean"] for name, line in recorded(task).items()}
    assert l1.keys() == TASKS[task]
    assert l1["modelguard_s"] < 0.1
    assert l1[W] == pytest.approx(1.0, abs=0.01), "its radius"
    assert WEAK not in l1 or l1[STRONG] > l1[WEAK]
