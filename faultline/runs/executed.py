"""What cells execute: recorded once for each stack, in a pass of its own, and cached like results."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from rich.console import Console

from faultline import strategies
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell, default_world
from faultline.cells.expected import Expectation
from faultline.runs import cache, measurement, results, runner
from faultline.runs.cache import Cache
from faultline.runs.driver import Batch
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.progress import progress
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from faultline.stacks.environments import Environment

Ran = frozenset[tuple[str, str]]
"""Files of installed packages and names of functions in them that ran; an empty name is the body of the file."""
WHAT = "executed"
NOTHING = "{}"  # of a cell whose ranks can report nothing
# Ranks that end so report nothing the next time either; a hang may have been chance.
SAY_NOTHING = (Outcome.IMPOSSIBLE, Outcome.CRASHES)


def of(environment: Environment, cells: Collection[Cell], folders: Collection[str], workers: int) -> dict[Cell, Ran]:
    """What cells execute on a stack below some folders of its packages; those of which nothing is known run.

    A cell executes thousands of functions, and hardly any of them is in a package that somebody asks about.
    """
    store = cache.of(environment, next(iter(cells)).device)
    texts = {cell: store.read(cell, WHAT) for cell in cells}
    if missing := [cell for cell, text in texts.items() if not text and _recordable(cell)]:
        print(f"recording what {len(missing)} of the cells execute, once for each stack", file=sys.stderr, flush=True)
        texts |= _recorded(environment, missing, workers, store)
    inside = {*folders}
    return {cell: _ran(text, inside) for cell, text in texts.items() if text not in ("", NOTHING)}


def lacking(environment: Environment, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that `of` would run for all of these and a stack, if each stands for those that are much like it."""
    store = cache.of(environment, cells[0].device)
    chosen = dict.fromkeys(representatives(environment, cells).values())
    return [cell for cell in chosen if _recordable(cell) and not store.has(cell, WHAT)]


def _recordable(cell: Cell) -> bool:
    """A life in two halves is two runs, of which the second loads: nothing is known of it."""
    return cell.life == "straight"


def representatives(environment: Environment, cells: Sequence[Cell]) -> dict[Cell, Cell]:
    """For each cell one that executes much the same: of its variant, family of strategies, mode and life.

    One that is recorded already goes before the plainest one.
    """
    store = cache.of(environment, cells[0].device)
    groups = grouped(cells, kind_of)
    chosen = {kind: next((c for c in alike if store.has(c, WHAT)), alike[0]) for kind, alike in groups.items()}
    return {cell: chosen[kind_of(cell)] for cell in cells}


def grouped(cells: Iterable[Cell], key: Callable[[Cell], tuple[object, ...]]) -> Mapping[object, Sequence[Cell]]:
    """Cells by what they have in common, the plainest of each group first."""
    groups: dict[object, list[Cell]] = {}
    for cell in sorted(cells, key=_plainness):
        groups.setdefault(key(cell), []).append(cell)
    return groups


def kind_of(cell: Cell) -> tuple[str, ...]:
    """What cells have in common that execute much the same: variant, family of strategies, mode and life."""
    return cell.failure, cell.variant, strategies.family_name(cell.strategy), cell.checkpointing, *cell.extras


def _plainness(cell: Cell) -> tuple[object, ...]:
    return cell.precision != "fp32", cell.world_size != default_world(cell), cell.strategy, cell.id


def _recorded(environment: Environment, cells: Sequence[Cell], workers: int, store: Cache) -> Mapping[Cell, str]:
    texts: dict[Cell, str] = {}

    def run(server: RankServer, references: References, cell: Cell) -> Result:
        by_file: dict[str, set[str]] = {}

        def go() -> tuple[Ended, Judgement]:
            ended, loaded, judged = runner.trained(server, references, cell, executed=True)
            for report in (rank.report for part in (ended, loaded) if part for rank in part.ranks if rank.report):
                for file, names in report.executed.items():
                    by_file.setdefault(file, set()).update(names)
            return ended, judged

        ended, judged = runner.surviving(server, go)
        if by_file or judged.outcome in SAY_NOTHING:
            texts[cell] = json.dumps({file: sorted(names) for file, names in sorted(by_file.items())})
            store.write(cell, texts[cell], WHAT)
        return results.result(cell, judged, ended, server.versions, Expectation())

    store.begin(cells)
    with progress(Console(stderr=True), cells, (), workers) as advance:
        batch = Batch(cells, environment, run=run)
        measurement.run_batches([batch], workers, on_result=lambda _, entry: advance(entry))
    return texts


def _ran(text: str, folders: Collection[str]) -> Ran:
    by_file = msgspec.json.decode(text, type=dict[str, list[str]])
    inside = ((file, names) for file, names in by_file.items() if file.partition("/")[0] in folders)
    return frozenset((file, name) for file, names in inside for name in names)
