"""Problems of the L1 ball, and what a linear-programming library says of them: tests/answers/lp_optima.json.

python tests/support/record_lp.py    (needs SciPy, which nothing else here does; 1.17.1, HiGHS, was used)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "answers/lp_optima.json"
GROUPS, ROWS = 72, 18
MARGINS = (None, 0.0, 1e-4, 0.05)
RADII = (0.0, 1e-4, 0.05, 0.4, 1.0, 2.0)
Array = NDArray[np.float64]


class Problems(NamedTuple):
    cost_BK: Array
    p_BK: Array
    epsilon: float
    margin: float | None


def problems() -> Iterator[Problems]:
    """The same on every machine: a stream of numbers that NumPy has frozen."""
    draw = np.random.RandomState(16)
    for group in range(GROUPS):
        classes = draw.randint(2, 27)
        p_BK = draw.dirichlet(np.full(classes, 0.3), ROWS)
        confident_BK = np.exp(draw.normal(size=(ROWS, classes)) * 5)
        even_BK = 1 + 1e-3 * draw.normal(size=(ROWS, classes))
        kinds = draw.randint(3, size=(ROWS, 1))
        p_BK = np.where(kinds == 0, p_BK, np.where(kinds == 1, confident_BK, even_BK))
        p_BK /= p_BK.sum(-1, keepdims=True)
        q_BK = draw.dirichlet(np.ones(classes), ROWS)
        costs = (np.log(p_BK + 1e-6), p_BK - q_BK, draw.normal(size=p_BK.shape), p_BK.round(1))  # the last has ties
        radius = RADII[draw.randint(len(RADII))] if draw.rand() < 0.7 else 2 * draw.rand()
        yield Problems(costs[draw.randint(len(costs))], p_BK, float(radius), MARGINS[group % len(MARGINS)])


def optima(cost_K: Array, p_K: Array, epsilon: float, margin: float | None) -> tuple[float | None, float | None]:
    """The least cost, None where the ball holds no such answer; and the largest margin that it holds."""
    from scipy.optimize import linprog

    classes, top = len(p_K), int(p_K.argmax())
    # Unknown: what is added to each class, what is taken from it (at most p), and a margin.
    eye, ones = np.eye(classes), np.ones(classes)
    rows, limits = [np.hstack([ones, ones, 0.0])[None]], [np.array([epsilon])]
    if margin is not None:
        behind = np.delete(eye - eye[top], top, axis=0)
        rows.append(np.hstack([behind, -behind, np.ones((classes - 1, 1))]))
        limits.append(-behind @ p_K)
    balance = np.hstack([ones, -ones, 0.0])[None]

    def solve(goal: Array, least: tuple[float | None, float | None]) -> float | None:
        ranges = [(0, None)] * classes + [(0, p) for p in p_K] + [least]
        exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        found = linprog(
            goal, np.vstack(rows), np.concatenate(limits), balance, [0.0], ranges, "highs-ds", options=exact
        )
        assert found.status in (0, 2), found.message
        return None if found.status == 2 else float(found.fun)

    value = solve(np.hstack([cost_K, -cost_K, 0.0]), (margin, margin))
    value = None if value is None else value + float(cost_K @ p_K)
    if margin is None:
        return value, None
    largest = solve(np.hstack([0 * ones, 0 * ones, -1.0]), (None, None))
    assert largest is not None
    return value, -largest


if __name__ == "__main__":
    found = [optima(c, p, group.epsilon, group.margin) for group in problems() for c, p in zip(*group[:2], strict=True)]
    FILE.write_text(json.dumps([[round(n, 12) if n is not None else None for n in pair] for pair in found]) + "\n")
    print(f"{len(found)} problems, {sum(value is None for value, _ in found)} without an answer")
