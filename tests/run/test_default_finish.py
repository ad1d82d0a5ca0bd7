"""A method with a step of its own is told what the default finish pays for, before the first query."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from small_runs import Metered, clone
from test_own_parts import Mine
from torch import Tensor


@pytest.fixture(autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


class Asking(Mine):
    """Pays for images of its own choice in its step alone."""

    def step(self) -> Any:
        x = torch.full((self.cost, 1, 8, 8), 0.5)
        return self.learn(x, self.oracle(x, "student"))


class Whole(Asking):
    def query_images(self, count: int) -> Tensor:
        return torch.full((count, 1, 8, 8), 0.5)


@pytest.mark.parametrize(
    ("method", "budget", "left"),
    [(Asking, 432, 32), (Asking, 400, 0), (Whole, 432, 0), (Mine, 432, 0), ("dfme", 432, 0)],
)
def test_a_step_without_its_finish_is_told_what_the_default_pays_for(
    method: Any,
    budget: int,
    left: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher, heard = Metered(), list[tuple[int, str]]()
    caplog.set_level(logging.INFO, "dfme")
    monkeypatch.setattr(caplog.handler, "emit", lambda record: heard.append((teacher.served, record.getMessage())))
    clone(tmp_path / "run", teacher, budget, method=method)
    told = [(served, line) for served, line in heard if "the default finish" in line]
    assert len(told) == bool(left)
    for served, line in told:
        assert served == 0, "before the first query"
        assert line.startswith(f"the last {left} of {budget} images are too few for a step of")
        assert "default query_images" in line
