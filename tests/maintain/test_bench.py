"""What cells cost is measured on cells that can be run outside of the matrix as well."""

import pytest

from faultline.base.paths import REPROS
from faultline.catalogue import loading
from faultline.cells.cell import Cell
from faultline.maintain import bench
from faultline.ranks.job import Job


@pytest.mark.slow
def test_the_cells_that_are_timed_save_nothing_and_can_run_in_ranks_that_have_run_them(shared_server, references):
    """Breaks when a cell is timed that asks for a folder which only the matrix gives: torchrun's ranks end at once; or
    when `make bench` ends in an error, or times a second run under another strategy than the first."""
    for strategy in bench.STRATEGIES:
        cells = bench.healthy(strategy)
        assert len(cells) == bench.REPEATS == len({*cells})
        for cell in cells:
            assert not hasattr(loading.load_module(REPROS / cell.failure), "save")
            assert not loading.failures()[cell.failure].variant(cell.variant).trainer
        cell = Cell("fsdp_reference_model", "helper", strategy)
        reference = references.file(shared_server, cell)
        assert not reference.problem
        jobs = [Job(cell.id, 2, reference=str(reference.file), times=times) for times in (1, 2)]
        once, again = ([end.report for end in shared_server.run(job).ranks] for job in jobs)
        assert [report.error for report in again] == [None, None]
        for key in ("digests", "evidence"):
            assert [getattr(report, key) for report in again] == [getattr(report, key) for report in once], key
