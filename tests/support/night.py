"""What runs by day, so that `make test` ends soon, and what of it is said at the end; the night runs everything."""

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping

import pytest

from faultline import strategies
from faultline.base.axes import NAMES
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Rule

LONG = 5  # seconds of an item that should be marked `slow`
SPREAD = NAMES[2:]  # the axes whose values take turns


def sampled(cases: Iterable[object], every: int, kind: Callable[..., Hashable] = lambda *values: None) -> list[object]:
    """The cases as parameters, of which the first of each kind and one of so many others run by day."""
    given, seen = [], Counter[Hashable]()
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        by_day = not seen[kind(*values)] or not number % every
        seen[kind(*values)] += 1
        given.append(pytest.param(*values, marks=[] if by_day else [pytest.mark.nightly]))
    return given


def deciding_rule(cell: Cell, versions: Mapping[str, str]) -> Rule | None:
    """The rule of expected.toml that says what a cell does; none where it trains."""
    return expected.first_rule(expected.rules(failures()[cell.failure]), cell, versions)


def cells_by_day(cells: Iterable[Cell], versions: Mapping[str, str]) -> set[Cell]:
    """One cell of each failure, variant, engine family and rule that decides it with these versions.

    Within a failure, the strategies and the values of the other axes take turns: of each group, the cell whose values
    were taken least.
    """
    groups = defaultdict(list)
    for cell in cells:
        family = strategies.family_name(cell.strategy)
        groups[cell.failure, cell.variant, family, deciding_rule(cell, versions)].append(cell)
    taken: Counter[tuple[str, str, object]] = Counter()
    chosen = set()
    for group in groups.values():
        cell = min(group, key=lambda cell: sum(taken[value] for value in _values(cell)))
        taken.update(_values(cell))
        chosen.add(cell)
    return chosen


def _values(cell: Cell) -> list[tuple[str, str, object]]:
    return [(cell.failure, axis, getattr(cell, axis)) for axis in SPREAD]


def changed_failures(revision: str) -> set[str]:
    """The failures whose folders differ from a revision, in what isn't committed, too."""
    files = []
    for asked in (
        ["diff", "--name-only", "--end-of-options", revision],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(["git", *asked, "--", "repros"], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"--since {revision}: {done.stderr.strip()}")
        files += done.stdout.splitlines()
    return {file.split("/")[1] for file in files}


# ------------------------------------------------------------------------------------------- what a run ends with


LEFT = pytest.StashKey[Counter]()


def pytest_deselected(items):
    config = items[0].config
    left = config.stash.setdefault(LEFT, Counter())
    left.update("cell" if item.nodeid.startswith("repros/") else "test" for item in items)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist, which each have the same
        session.config.workeroutput["left"] = dict(session.config.stash.get(LEFT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    if left := getattr(node, "workeroutput", {}).get("left"):
        node.config.stash[LEFT] = Counter(left)


def pytest_terminal_summary(terminalreporter, config):
    """Name the items that take long and don't say so, and what was left to the night."""
    seconds: Counter[str] = Counter()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if hasattr(report, "duration") and "slow" not in report.keywords:
            seconds[report.nodeid] += report.duration
    if long := [(name, taken) for name, taken in seconds.most_common() if taken > LONG]:
        terminalreporter.section(f"not marked `slow`, and longer than {LONG} s", "-")
        for name, taken in long:
            terminalreporter.write_line(f"{taken:.1f} s {name}")
    if left := config.stash.get(LEFT, None):
        number = " and ".join(f"{number:,} {kind}{'s' * (number > 1)}" for kind, number in sorted(left.items()))
        commands = "make test-matrix runs all cells, make test-fleet what needs Ray, make test-nightly everything"
        terminalreporter.write_line(f"left out here: {number}; {commands}")
