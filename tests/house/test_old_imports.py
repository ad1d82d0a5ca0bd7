"""Imports of 0.4.0 that users may have: they go on to work, and those that moved say where to."""

from __future__ import annotations

import importlib
import sys

import pytest

import dfme
from dfme import estimators
from dfme.estimators import upstream
from dfme.spec import RequestPolicy


def test_what_moved_is_found_with_a_warning_that_names_its_new_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for old, new in (("dfme.seam", "dfme.estimators.upstream"), ("dfme.wire", "dfme.spec")):
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {new}"):
            importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match=r"Composed is now Objective\(query, value\)"):
        assert estimators.Composed is estimators.Objective
    monkeypatch.delitem(sys.modules, "dfme.seam")
    monkeypatch.delattr(dfme, "seam", raising=False)
    with pytest.warns(DeprecationWarning, match="dfme.seam has moved"):
        from dfme import seam
    assert seam.backward is upstream.backward


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_the_same_under_its_old_name() -> None:
    from dfme.wire import Wire

    assert Wire is RequestPolicy


def test_what_stayed_is_where_it_was() -> None:
    assert callable(dfme.extract)
    assert callable(dfme.load_student)
    assert issubclass(importlib.import_module("dfme.errors").SeamError, Exception)
    for name in ("FiniteDifference", "make_estimator", "Estimate", "Estimator", "BeforeSquash", "AfterSquash"):
        assert hasattr(estimators, name)


def test_what_never_was_is_an_attribute_error() -> None:
    for module in (dfme, estimators):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            module.nothing  # noqa: B018 (looking is what is tested)
