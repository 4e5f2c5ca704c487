"""Cells of several models, checked one after the other on one rank server."""

import tempfile
from pathlib import Path

from faultline.base.packages import TODAY
from faultline.cells.cell import Cell
from faultline.check import beside, target
from faultline.check.result import CheckResult
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from faultline.stacks import environments


class Series:
    """A rank server of this process's stack, and the reference of each model, which is made once; `close` it."""

    def __init__(self) -> None:
        """Raises UsageError where a library under test is not installed."""
        self._server = RankServer(environments.chosen(TODAY, "").python)
        self._references: dict[str, References] = {}

    def check(self, written: str, cell: Cell) -> CheckResult:
        """Check a function, as `target.written` names it, in one cell; raises TargetFailed and NeverReady."""
        model = target.parse(written, "", target.search_path())
        if written not in self._references:
            # In the server's folder: if this process is killed, the server removes it.
            folder = tempfile.mkdtemp(dir=self._server.folder, prefix="references-")
            self._references[written] = References(Path(folder))
        entry = beside.run(model, self._server, self._references[written], cell)
        return CheckResult(written, (), (entry,))

    def close(self) -> None:
        self._server.close()
