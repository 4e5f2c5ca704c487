"""What of a release its cells execute: how much a verdict covers, and which cells run first."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from faultline import strategies
from faultline.base.packages import NEEDED, STACK
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.observations.measured import pinned
from faultline.releases import code_changes
from faultline.releases.code_changes import Unit
from faultline.runs import executed
from faultline.runs.executed import Ran
from faultline.stacks.environments import Environment

SEVERAL = 40  # cells of a candidate that are recorded
SEEN = frozenset(STACK) - {"torch"}  # all that they do is seen: functions of Python, in files under the package's name
ENGINES = frozenset(("accelerate", "deepspeed", "torch"))  # their releases may change one strategy of an engine alone
LISTED = 5  # functions that aren't reached and are named in a line


@dataclass(frozen=True)
class Covered:
    """Of a package, how many functions and module bodies changed, how many of these cells execute, and the rest."""

    functions: tuple[int, int]
    bodies: tuple[int, int]
    missed: Sequence[Unit]


@dataclass(frozen=True)
class Reach:
    """The functions and module bodies that differ, which of them each cell executes, and how many count for it.

    `executes` is of the baseline, and orders the cells; `later` is what they execute of the candidate alone. `touched`
    has the number of those that make a cell affected (see `touches`), `near` the cells that may execute on the
    candidate what none does on the baseline, such as a new function; `unread` are packages that differ and that nobody
    looked into. `apart` are cells that execute nothing of any package that differs, and so do the same on both. `alike`
    are others that execute nothing that changed, or what one of `plainest` does.
    """

    changed: frozenset[Unit] = frozenset()
    executes: Mapping[Cell, frozenset[Unit]] = field(default_factory=dict)
    touched: Mapping[Cell, int] = field(default_factory=dict)
    unread: Sequence[str] = ()
    near: Sequence[Cell] = ()
    apart: frozenset[Cell] = frozenset()
    alike: frozenset[Cell] = frozenset()
    later: Mapping[Cell, frozenset[Unit]] = field(default_factory=dict)

    @property
    def reached(self) -> frozenset[Unit]:
        return frozenset().union(*{*self.executes.values(), *self.later.values()})

    def by_package(self) -> dict[str, Covered]:
        """What of each package that differs the cells execute."""
        reached, packages = self.reached, {}
        for package in sorted({unit.package for unit in self.changed}):
            units = {unit for unit in self.changed if unit.package == package}
            bodies = {unit for unit in units if unit.body}
            of_functions, of_bodies = ((len(some), len(some & reached)) for some in (units - bodies, bodies))
            packages[package] = Covered(of_functions, of_bodies, sorted(units - reached))
        return packages

    def within(self, cells: Collection[Cell]) -> "Reach":
        """What these cells reach, of which others may have run."""
        ran = {*cells}
        executes = {cell: names for cell, names in self.executes.items() if cell in ran}
        return replace(self, executes=executes, near=[cell for cell in self.near if cell in ran])

    def on(self, candidate: Environment, workers: int) -> "Reach":
        """With what its `near` cells execute on the candidate, of which a few are recorded: the answer waits for it,
        the order of cells doesn't."""
        ran = executed.of(candidate, self.near[:SEVERAL], _folders(self.changed), workers) if self.near else {}
        return replace(self, later={cell: _among(self.changed, names) for cell, names in ran.items()})

    @property
    def missed(self) -> list[Unit]:
        return sorted(self.changed - self.reached)

    def affected(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that execute what changed; all of them where it isn't known of any."""
        return [cell for cell in cells if self.touched.get(cell)] if self.touched else [*cells]

    def in_order(self, cells: Sequence[Cell]) -> list[Cell]:
        """First the few cells that together execute all that changed, those ahead that execute the rarest of it; then
        those that execute most of it, but one of each failure and family before the next of one."""
        first = dict.fromkeys(self._covering(cells))
        return [*first, *self._in_turns([cell for cell in cells if cell not in first])]

    def _covering(self, cells: Sequence[Cell]) -> list[Cell]:
        """Each next one executes what the fewest cells do of what none before it has."""
        had: set[Unit] = set()
        often = Counter(unit for cell in cells for unit in self.executes.get(cell, ()))
        covering: list[Cell] = []
        by_rarest = sorted(
            (cell for cell in cells if self.executes.get(cell)),
            key=lambda cell: (min(often[unit] for unit in self.executes[cell]), -len(self.executes[cell])),
        )
        for cell in by_rarest:
            if not self.executes[cell] <= had:
                had |= self.executes[cell]
                covering.append(cell)
        return covering

    def _in_turns(self, cells: Sequence[Cell]) -> list[Cell]:
        turns: Counter[tuple[str, str]] = Counter()
        turn: dict[Cell, int] = {}
        for cell in sorted(cells, key=lambda each: -self.touched.get(each, 0)):
            kind = cell.failure, strategies.family_name(cell.strategy)
            turn[cell] = turns[kind]
            turns[kind] += 1
        return sorted(cells, key=lambda each: (not self.touched.get(each), turn[each], -self.touched.get(each, 0)))

    def lines(self) -> list[str]:
        """What of each changed package the cells execute, in lines; which functions they don't, in another."""
        if not self.changed:
            return []
        lines = []
        for package, covered in self.by_package().items():
            named = (("changed function", covered.functions), ("changed module body", covered.bodies))
            parts = [
                f"{ran} of {count(every, what)}".replace("bodys", "bodies") for what, (every, ran) in named if every
            ]
            lines.append(f"the cells execute {' and '.join(parts)} of {package}")
        missed = [f"{unit.file}:{unit.name}" for unit in self.missed if not unit.body]
        if missed:
            more = f" and {len(missed) - LISTED} more" if len(missed) > LISTED else ""
            lines.append(f"not reached: {', '.join(missed[:LISTED])}{more}")
        if self.unread:
            lines.append(f"packages that differ and were not looked into: {', '.join(self.unread)}")
        return lines


def measure_coverage(
    both: tuple[Environment, Environment],
    packages: Collection[str],
    cells: Sequence[Cell],
    plain: Collection[Cell],
    workers: int,
) -> Reach:
    """What of the packages that differ cells execute on the baseline, the first of both; `plain` are the plainest."""
    folders = [code_changes.packages_of(each.python) for each in both]
    looked = [name for name in packages if name in NEEDED]
    unread = tuple(name for name in packages if name not in NEEDED)
    if not (folders[0] and folders[1] and looked):
        return Reach(unread=unread)
    changed = code_changes.changed_units(folders[0], folders[1], looked)
    if not changed:
        return Reach(unread=unread)
    chosen = executed.representatives(both[0], cells)
    before = executed.of(both[0], {*chosen.values()}, {*packages} | _folders(changed), workers)
    # A cell of which nothing is known, such as one that hangs, may well be affected.
    by_recorded = {cell: touches(changed, ran) for cell, ran in before.items()}
    touched = {cell: by_recorded.get(chosen[cell], 1) for cell in cells}
    by_chosen = {cell: _among(changed, ran) for cell, ran in before.items()}
    executes = {cell: by_chosen[chosen[cell]] for cell in cells if chosen[cell] in by_chosen}
    covers = Reach(changed, executes, touched, unread)
    files = {unit.file for unit in covers.missed}
    near = [cell for cell, ran in before.items() if any(file in files and name for file, name in ran)]
    covers = replace(covers, near=covers.in_order(near))
    if not {*packages} <= SEEN:
        return covers
    alone = {recorded for recorded, ran in before.items() if _executes_nothing(packages, ran)}
    apart = frozenset(cell for cell in cells if chosen[cell] in alone)
    alike = frozenset(cell for cell in cells if cell not in plain or not touched[cell]) - apart
    return replace(covers, apart=apart, alike=alike)


def plainest(cells: Iterable[Cell], packages: Collection[str]) -> frozenset[Cell]:
    """The plainest one each of the cells that differ in precision or world size only.

    If none of the packages has an engine, they may differ in its settings too: `zero3-small` is `zero3`, where both are
    expected to do the same.
    """

    def alike(cell: Cell) -> tuple[object, ...]:
        if not ENGINES.isdisjoint(packages):
            return (*executed.kind_of(cell), cell.strategy)
        does = expected.ruled(expected.rules(failures()[cell.failure]), cell, pinned())
        return (*executed.kind_of(cell), strategies.engine(cell.strategy), does.outcome, does.signatures)

    return frozenset(group[0] for group in executed.grouped(cells, alike).values())


def touches(changed: Collection[Unit], ran: Ran) -> int:
    """How many changed functions a cell executes; the changed body of a module counts if a function of it runs."""
    files = {file for file, name in ran if name}
    return sum(unit.file in files if unit.body else (unit.file, unit.name) in ran for unit in changed)


def _executes_nothing(packages: Collection[str], ran: Ran) -> bool:
    """Whether what ran is no function of any of these packages."""
    return not any(name and file.partition("/")[0] in packages for file, name in ran)


def _folders(changed: Collection[Unit]) -> set[str]:
    """Where packages are installed: pillow is in PIL."""
    return {unit.file.partition("/")[0] for unit in changed}


def _among(changed: Collection[Unit], ran: Ran) -> frozenset[Unit]:
    return frozenset(unit for unit in changed if (unit.file, unit.name) in ran)
