"""What cells cost is measured on cells that can be run outside of the matrix as well."""

from __future__ import annotations

import pytest

from faultline import bench, catalogue


@pytest.mark.parametrize("strategy", bench.STRATEGIES)
def test_the_cells_that_are_timed_train_and_save_nothing(strategy):
    """Breaks when a cell is timed that asks for a folder which only the matrix gives: torchrun's ranks end at once."""
    cells = bench.healthy(strategy)
    assert len(cells) == bench.REPEATS == len({*cells})
    for cell in cells:
        assert not hasattr(catalogue.load_module(catalogue.REPROS / cell.failure), "save")
        assert not catalogue.failures()[cell.failure].variant(cell.variant).trainer
