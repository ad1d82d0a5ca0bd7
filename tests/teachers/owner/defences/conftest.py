"""The key that the defences of these tests draw by."""

import pytest
from defended import KEY


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", KEY)
