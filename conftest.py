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
from faultline.observations import measured
from faultline.runs import engines, gpus, runner
from faultline.runs.supervisor import RankServer
from tests.support import night

RANKS = pytest.StashKey()
CHANGED = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("faultline")
    group.addoption("--device", default="cpu", help="cpu (default) or cuda")
    group.addoption("--since", default="", help="all cells by day of failures whose folders differ from this revision")


def pytest_configure(config):
    config.pluginmanager.register(night)
    device = config.getoption("--device")
    try:
        selecting.check(loading.failures(), Selection(device=device))
        engines.check_device(device)
        revision = config.getoption("--since")
        config.stash[CHANGED] = night.changed_failures(revision) if revision else set()
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
        by_day = night.cells_by_day(cells, measured.pinned())
        for cell in cells:
            item = CellItem.from_parent(self, name=cell.name, cell=cell)
            if cell not in by_day and failure.name not in self.config.stash[CHANGED]:
                item.add_marker("nightly")
            yield item


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
        self.add_marker("slow")
        self.add_marker("trainer" if failure.variant(cell.variant).trainer else "scenario")

    def runtest(self):
        self.user_properties.append(("failure", self.cell.failure))
        server, references = ranks(self.config, self.cell.device)
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


def ranks(config, device="cpu"):
    """This process's rank server for a device and its references, which go with it; it starts when it is first used."""
    servers = config.stash.setdefault(RANKS, {})
    if device not in servers:
        server = RankServer(sys.executable, device=device, cores=cores() if device == "cpu" else frozenset())
        servers[device] = server, runner.References(server.folder)
    return servers[device]


@pytest.fixture(scope="session")
def shared_server(pytestconfig):
    """A rank server for whatever only runs cells; it starts with the first of them, which takes 15 seconds."""
    return ranks(pytestconfig)[0]


@pytest.fixture(scope="session")
def references(pytestconfig):
    """References of the catalogue's cells, on the server that tests and cells share."""
    return ranks(pytestconfig)[1]


def pytest_unconfigure(config):
    for server, _ in config.stash.get(RANKS, {}).values():
        server.close()
