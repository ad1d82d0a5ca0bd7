"""Half of the small comparison, of its first seed: the ordering that docs/results/comparison.md
claims.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from handmade import cells_here

from dfme.cli.main import main
from dfme.run.job import PROJECT

BUDGET = 4_000


def by_mode(out: Path) -> dict[str, dict[str, Any]]:
    """The rows of each label mode's table."""
    return {
        table["label_mode"]: {row["row"]: row for row in table["rows"]}
        for table in json.loads((out / "comparison.json").read_text(encoding="utf-8"))["tables"]
    }


def price(row: dict[str, Any]) -> float:
    """Queries to 90 % of the teacher's accuracy; where it was not reached, the budget, which is
    less.
    """
    to = row["queries_to"]["teacher"]
    return float(to["spread"]["mean"]) if to["reached"] else BUDGET


@pytest.mark.exhaustive
def test_the_small_comparison_shows_the_ordering_that_is_claimed(tmp_path: Path) -> None:
    words = (
        f"compare --config {PROJECT}/configs/compare_small.yaml --seeds 0 --budgets {BUDGET}"
        " --methods procedural,disguide,frugal --out"
    )
    with cells_here():
        assert main([*words.split(), str(tmp_path / "small")]) == 0
    rows = by_mode(tmp_path / "small")
    soft, hard = rows["probabilities"], rows["label"]
    # Scores: a program's images are worth more than those of a generator that is trained from
    # nothing.
    assert price(soft["procedural"]) < price(soft["disguide"])
    # Ours needs a fraction of DisGUIDE's queries: 867 of 4,885 at 8k, seeds 0 to 2. With half of
    # 8k, here, DisGUIDE does not get there.
    assert price(soft["frugal"]) < price(soft["disguide"]) / 3
    # Labels: children of what was paid for are worth more than both.
    accuracy = {name: row["accuracy"]["mean"] for name, row in hard.items()}
    assert accuracy["frugal"] > max(accuracy["procedural"], accuracy["disguide"]) + 0.03, accuracy
