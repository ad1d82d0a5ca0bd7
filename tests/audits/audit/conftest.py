"""What the audit's tests share."""

import pytest
from audit_pages import Page, audit, page_of

from dfme.audits.audit import page as page_module


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the pictures, which take a second."""
    monkeypatch.setattr(page_module, "curves", lambda audit, modes=None, alarms=False: [])
    monkeypatch.setattr(page_module, "pareto", lambda audit: None)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of the whole sample; for reading only."""
    return page_of(audit(), tmp_path_factory.mktemp("page"))
