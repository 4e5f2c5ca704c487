"""Cells of the catalogue on real ranks."""

import pytest

from faultline.runs import runner
from lab.proofs import planting


@pytest.fixture
def run(shared_server, references):
    """Run a cell with a change to it that `planting` names, and give back its result."""

    def run(cell, change=""):
        return runner.run_cell(shared_server, references, cell, planting.FAULTS[change].injection if change else "")

    return run
