"""Every cell is a pytest item; -k, -m, -n, -x and --junitxml work as people know them."""

import os
import sys

import pytest

from faultline.base import machine
from faultline.base.errors import NotAsExpected, UsageError
from faultline.base.paths import REPROS
from faultline.base.text import plain
from faultline.catalogue import loading
from faultline.cells import expected
from faultline.cells import selection as selecting
from faultline.cells.selection import Selection
from faultline.runs import devices, gpus, runner
from faultline.runs.supervisor import RankServer


def pytest_addoption(parser):
    group = parser.getgroup("faultline")
    group.addoption("--device", default="cpu", help="cpu (default) or cuda")


def pytest_configure(config):
    device = config.getoption("--device")
    try:
        selecting.check(loading.failures(), Selection(device=device))
        devices.check_device(device)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    for name in loading.failures():
        config.addinivalue_line("markers", f"{name}: cells of this failure")
    config.addinivalue_line("markers", "trainer: cells that run a real trainer")
    config.addinivalue_line("markers", "scenario: cells that run a bare model and loss")


def pytest_collect_file(file_path, parent):
    if file_path.name == "failure.py" and file_path.parent.parent == REPROS:
        return Cells.from_parent(parent, path=file_path)
    return None


class Cells(pytest.File):
    """One failure's part of the default matrix."""

    def collect(self):
        failure = loading.failures()[self.path.parent.name]
        selection = Selection(failure=(failure.name,), device=self.config.getoption("--device"))
        try:
            expected.rules(failure)
            cells = selecting.select(loading.failures(), selection)
        except UsageError as error:
            raise self.CollectError(str(error)) from None  # which pytest shows as it is
        for cell in cells:
            yield CellItem.from_parent(self, name=cell.name, cell=cell)


def cores():
    """The processors of this worker of pytest-xdist: each has its part of them, as in `faultline run`."""
    name, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return machine.shares(workers)[int(name.removeprefix("gw")) % workers]


class CellItem(pytest.Item):
    """One cell; it passes when it does what expected.toml says."""

    def __init__(self, *, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell
        failure = loading.failures()[cell.failure]
        self.add_marker(cell.failure)
        self.add_marker("trainer" if failure.variant(cell.variant).trainer else "scenario")

    def runtest(self):
        self.user_properties.append(("failure", self.cell.failure))
        server, references = self.config.stash.get(RANKS, None) or start(self.config)
        with gpus.lent(self.cell) as server.gpus:
            entry = runner.run_cell(server, references, self.cell)
        self.user_properties += [(key, getattr(entry, key)) for key in ("outcome", "signature", "verdict")]
        if entry.verdict != "expected":
            raise NotAsExpected(entry)

    def repr_failure(self, excinfo, style=None):
        if not isinstance(excinfo.value, NotAsExpected):
            return super().repr_failure(excinfo)
        entry = excinfo.value.args[0]
        wanted = entry.expected
        lines = [
            f"{entry.verdict}: {entry.outcome} {entry.signature}".rstrip(),
            f"expected: {wanted.outcome} {' or '.join(wanted.signatures)}".rstrip(),
            entry.detail,
            f"again: make test-matrix CELL={entry.cell.id}",
        ]
        errors = [rank.error.traceback for rank in entry.ranks if rank.error]
        return plain("\n".join([*lines, *errors[:1]]))

    def reportinfo(self):
        return self.path, None, self.cell.id


RANKS = pytest.StashKey()


def start(config):
    """One rank server for each pytest process, with references of its own; all of it goes with the server."""
    device = config.getoption("--device")
    server = RankServer(sys.executable, device=device, cores=cores() if device == "cpu" else frozenset())
    config.stash[RANKS] = server, runner.References(server.folder)
    return config.stash[RANKS]


def pytest_unconfigure(config):
    ranks = config.stash.get(RANKS, None)
    if ranks:
        ranks[0].close()
