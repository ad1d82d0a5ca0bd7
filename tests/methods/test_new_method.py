"""A new line in METHODS needs no line in any table of the tests: it is covered by what it declares."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_every_method
import test_every_size
import test_methods_resume
from tiers import exhaustive

from dfme.methods import METHODS


@pytest.mark.parametrize("like", ["static", *exhaustive("maze", "disguide")])  # three tests in one: near a second
def test_a_new_entry_is_enough(like: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "another", METHODS[like])
    test_every_size.test_a_run_of_every_size(tmp_path / "size", "another", test_every_size.ROWS[0], hard=False)
    test_methods_resume.interrupted_twice(test_methods_resume.cloning("another"), tmp_path)
    test_every_method.test_finish_spends_exactly_what_is_left("another", 9)
