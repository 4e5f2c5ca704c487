"""What several tests of findings need."""

import pytest

from lab.explore import overview
from lab.explore.case import Runner


@pytest.fixture
def run(shared_server, references):
    """Run a case in ranks; gives its result."""
    runner = Runner()
    return lambda case: runner(shared_server, references, runner.add(case))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """An empty page of findings, in the place of that of those that are kept."""
    file = tmp_path / overview.README
    file.write_text("# Findings\n\n<!-- measured: begin -->\n<!-- measured: end -->\n")
    monkeypatch.setattr(overview, "PAGE", file)
    return file
