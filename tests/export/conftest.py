"""Exports, each written once for all workers: one takes seconds."""

import pytest
from filelock import FileLock

from faultline.cells.cell import Cell
from faultline.export import cell as cells
from faultline.export import emit, issue


@pytest.fixture(scope="package", autouse=True)
def _written_once(tmp_path_factory, worker_id):
    """Whoever asks for the file of a cell on today's stack gets the one that was written first."""
    alone = tmp_path_factory.getbasetemp()
    folder = (alone if worker_id == "master" else alone.parent) / "exports"
    folder.mkdir(exist_ok=True)
    write = emit.write

    def once(place):
        if place != cells.place(place.cell):
            return write(place)
        file = folder / f"{place.cell.id.replace('/', '~')}.py"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                file.write_text(write(place), encoding="utf-8")
        return file.read_text(encoding="utf-8")

    with pytest.MonkeyPatch.context() as patch:
        for module in (emit, issue):
            patch.setattr(module, "write", once)
        yield


@pytest.fixture
def one_file(monkeypatch):
    """Every issue has the same file in it, for tests of what is around it."""
    text = issue.write(cells.place(Cell.parse("zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu")))
    monkeypatch.setattr(issue, "write", lambda where: text)
