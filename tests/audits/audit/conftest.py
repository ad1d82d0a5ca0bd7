"""What the audit's tests share."""

import pytest

from dfme.audits.audit import page as page_module


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the pictures, which take a second."""
    monkeypatch.setattr(page_module, "curves", lambda audit, modes=None, alarms=False: [])
    monkeypatch.setattr(page_module, "pareto", lambda audit: None)
