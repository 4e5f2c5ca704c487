"""The pytest plugin: a function with the mark `faultline` becomes an item for each cell in which it is checked.

docs/pytest.md says how it is used. Nothing but pytest is imported before such a function is met.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os

    from faultline.cells.cell import Cell
    from faultline.cells.selection import Selection
    from faultline.check.command import CheckResult, CheckSession

MARK = "faultline"
AXES = ("strategies", "checkpointing", "precision", "world")
ABOUT = f"{MARK}({', '.join(AXES)}): train the model that this function returns, and compare with a single process"
CALLED = "it is called in the ranks, where pytest isn't: build everything in it"
SERIES = pytest.StashKey["CheckSession"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", ABOUT)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> list[CellItem] | None:
    """The items of a marked function; those of another object are left to pytest."""
    marks = [mark for mark in marks_of(obj) if mark.name == MARK]
    if not marks and isinstance(obj, FunctionType) and collector.istestfunction(obj, name):
        marks = [*collector.iter_markers(MARK)][:1]
    if not marks:
        return None
    from faultline.base.errors import UsageError

    try:
        return items(collector, name, obj, marks)
    except UsageError as error:
        raise collector.CollectError(f"{name}: {error}") from None  # which pytest shows as it is


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let `xfail` expect a cell that differs, and nothing else: what could not be checked was not confirmed."""
    report = yield
    differs = not call.excinfo or isinstance(call.excinfo.value, Differs)
    if isinstance(item, CellItem) and not differs and hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
    return report


def marks_of(obj: object) -> list[pytest.Mark]:
    """The marks of a function or a class; none of anything else, whose attributes may be anything."""
    if not issubclass(type(obj), FunctionType | type):
        return []
    marks = vars(obj).get("pytestmark", [])
    return marks if isinstance(marks, list) else [marks]


def items(collector: pytest.Module | pytest.Class, name: str, obj: Any, marks: Sequence[pytest.Mark]) -> list[CellItem]:
    """An item for each cell that the marks of a function name; raises UsageError for what can't be checked."""
    from faultline.base.errors import UsageError
    from faultline.check import command, target

    fixtures = target.needs(obj)
    if isinstance(collector, pytest.Class) and "self" in fixtures:
        raise UsageError("it is a method, which needs an instance; put the function at the top level of its module")
    if fixtures:
        raise UsageError(f"it takes no fixtures, and asks for {', '.join(fixtures)}; {CALLED}")
    for mark in marks_of(obj):
        if mark.name in ("parametrize", "usefixtures"):
            raise UsageError(f"it can't have the mark {mark.name}; {CALLED}")
    written = target.target_name(obj)
    cells = dict.fromkeys(cell for mark in marks for cell in command.selected(selection(mark)))
    return [
        CellItem.from_parent(
            collector,
            name=f"{name}[{cell.strategy}-{cell.checkpointing}-{cell.precision}-{cell.world_size}]",
            obj=obj,
            written=written,
            cell=cell,
        )
        for cell in cells
    ]


def selection(mark: pytest.Mark) -> Selection:
    """The cells that a mark names; raises UsageError for an argument that it doesn't take."""
    from faultline import api
    from faultline.base.errors import UsageError, unknown

    if mark.args:
        raise UsageError(f'name what the mark is given: pytest.mark.{MARK}(strategies="ddp,zero3")')
    for name in mark.kwargs:
        if name not in AXES:
            raise unknown("argument", name, AXES)
    return api.selection(**mark.kwargs)


class Differs(AssertionError):
    """A cell doesn't do what a single process does; has the result of its check, and names it as its answer does."""

    def __init__(self, result: CheckResult) -> None:
        from faultline.catalogue.outcomes import outcome_text

        [entry] = result.cells
        signatures = [form.signature for group in result.problems for form in group.forms if form.signature]
        matches = [group.match for group in result.problems if group.match]
        self.signature = signatures[0] if signatures else entry.signature
        known = ", ".join(f"{match.sure} {match.failure.name}" for match in matches)
        super().__init__(f"{outcome_text(entry.outcome, self.signature)}: {known or 'no known failure'}")
        self.result = result


class CellItem(pytest.Item):
    """One cell; it passes if the model trains as in a single process, and is skipped if the cell can't exist."""

    def __init__(self, *, obj: Any, written: str, cell: Cell, **others: Any) -> None:
        super().__init__(**others)
        self.obj = obj
        self.written = written
        self.cell = cell
        self.own_markers.extend(marks_of(obj))
        self.keywords.update((mark.name, mark) for mark in self.own_markers)

    def runtest(self) -> None:
        from faultline.base.text import one_line
        from faultline.check.known import fine

        result = series(self.config).check(self.written, self.cell)
        [entry] = result.cells
        differs = Differs(result) if result.ran and not fine(entry) else None
        signature = differs.signature if differs else entry.signature
        self.user_properties += [("outcome", entry.outcome), ("signature", signature)]
        if not result.ran:
            pytest.skip(f"{self.name}: {one_line(entry.detail)}")  # the place that pytest shows is this line
        if differs:
            raise differs
        if result.problems:
            self.warn(pytest.PytestWarning(result.verdict))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from faultline.base.console import unheard
        from faultline.base.errors import TargetFailed, Unavailable, UsageError
        from faultline.base.text import plain

        error = excinfo.value
        if isinstance(error, Differs):
            text = f"{error}\n{error.result}"
        elif isinstance(error, TargetFailed):
            text = f"{self.written}: {error}\n{error.traceback}".strip()
        elif isinstance(error, UsageError):
            text = str(error)
        elif isinstance(error, Unavailable):
            text = f"{error.what}{error}"
        else:
            return super().repr_failure(excinfo, style)
        return unheard(plain(text))

    def reportinfo(self) -> tuple[os.PathLike[str], int, str]:
        return self.path, self.obj.__code__.co_firstlineno - 1, self.name


def series(config: pytest.Config) -> CheckSession:
    """The rank server of this pytest process, which ends with the session."""
    if SERIES not in config.stash:
        from faultline.check.command import CheckSession

        config.stash[SERIES] = CheckSession()
        config.add_cleanup(config.stash[SERIES].close)
    return config.stash[SERIES]
