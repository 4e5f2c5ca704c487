"""Exports, each written once for all workers: one takes seconds."""

import pytest
from filelock import FileLock

from faultline.export import cell as cells
from faultline.export import emit, issue


@pytest.fixture(autouse=True)
def _written_once(tmp_path_factory, worker_id, monkeypatch):
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

    for module in (emit, issue):
        monkeypatch.setattr(module, "write", once)


@pytest.fixture
def no_file(monkeypatch):
    """Issues without the file in them, for tests of what is around it."""
    monkeypatch.setattr(issue, "write", lambda place: "# dependencies = []\n")
