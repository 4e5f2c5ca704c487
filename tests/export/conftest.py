"""Issues whose file is not in question."""

import pytest

from faultline.export import issue


@pytest.fixture
def no_file(monkeypatch):
    """Issues without the file in them, for tests of what is around it."""
    monkeypatch.setattr(issue, "write", lambda place: "# dependencies = []\n")
