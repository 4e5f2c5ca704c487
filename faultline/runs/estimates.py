"""How long cells take, by a committed file of what each kind of them took before."""

import functools
import json
import statistics
from collections.abc import Collection, Iterable
from pathlib import Path

from faultline import strategies
from faultline.base.paths import ROOT
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell, reference
from faultline.runs.results import Result

DURATIONS = ROOT / "fixtures" / "durations.json"
UNKNOWN = 1.0  # seconds assumed for a cell that nothing is recorded of
START = 6.0  # seconds until a rank server has imported the libraries, on two idle cores
SLOWEST = 5  # times as long as START the start may take on a busy machine


def kind(cell: Cell) -> str:
    """What the duration of a cell mostly depends on."""
    failure = failures().get(cell.failure)
    trainer = next((v.trainer for v in failure.variants if v.name == cell.variant), "") if failure else ""
    return f"{cell.failure}/{trainer or 'scenario'}/{cell.strategy}/w{cell.world_size}"


def recorded(file: Path = DURATIONS) -> dict[str, float]:
    """The mean seconds of each kind of cell."""
    return json.loads(file.read_text()) if file.exists() else {}


def record(entries: Iterable[Result], file: Path = DURATIONS) -> None:
    """Write the mean seconds of each kind of cell, for later splits and estimates."""
    times: dict[str, list[float]] = {}
    for entry in entries:
        times.setdefault(kind(entry.cell), []).append(entry.seconds)
    means = {name: round(sum(values) / len(values), 2) for name, values in sorted(times.items())}
    file.write_text(json.dumps(means, indent=1) + "\n")


def seconds_of(cells: Iterable[Cell]) -> list[float]:
    """The seconds of each cell: those of its kind, or else the median of its strategy's family."""
    seconds, medians = recorded(), _medians()
    return [seconds.get(kind(cell), medians.get(_family(cell.strategy), UNKNOWN)) for cell in cells]


@functools.cache
def _medians() -> dict[str, float]:
    by_family: dict[str, list[float]] = {}
    for name, seconds in recorded().items():
        by_family.setdefault(_family(name.split("/")[2]), []).append(seconds)
    return {name: statistics.median(values) for name, values in by_family.items()}


def _family(strategy: str) -> str:
    """The name of a strategy's family; empty for one that there is no more."""
    return strategies.family_name(strategy) if strategy in strategies.names() else ""


def wall_seconds(cells: Collection[Cell], workers: int) -> float:
    """Seconds that a run of cells takes on so many workers, with the start of its servers and its references, each of
    which is made twice."""
    if not cells:
        return 0.0
    references = {reference(cell) for cell in cells}
    seconds = seconds_of([*cells, *references, *references])
    return START + max(sum(seconds) / min(workers, len(cells)), *seconds)


def estimate(cells: Collection[Cell], workers: int, runs: int = 1) -> str:
    """How many cells run and how long that takes, in words: ``432 cells in 2 runs, about 5 min with 2 workers``."""
    number = f"{count(len(cells), 'cell')} in {runs} runs" if runs > 1 else count(len(cells), "cell")
    return f"{number}, {about(runs * wall_seconds(cells, workers))} with {count(workers, 'worker')}"


def about(seconds: float) -> str:
    """A time as people say it: ``about 3 min``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return "less than a minute"
    return f"about {minutes // 60} h {minutes % 60} min" if minutes > 90 else f"about {minutes} min"


class Remaining:
    """How long the rest of a run takes: what is recorded of its cells, times how long those that ran took of it."""

    def __init__(self, cells: Collection[Cell], workers: int) -> None:
        seconds = seconds_of(cells)
        self._by_cell = dict(zip(cells, seconds, strict=True))  # of several stacks, a cell takes as long on each
        self._whole = self._left = sum(seconds) or 1.0
        self._all = self.seconds = wall_seconds(cells, workers)

    def without(self, cell: Cell, elapsed: float) -> None:
        """One cell less, so many seconds after the start."""
        self._left -= self._by_cell.get(cell, 0.0)
        share = min(max(0.0, self._left / self._whole), 1 - 1e-9)
        pace = elapsed / (START + (self._all - START) * (1 - share))
        # No machine is slower than that: what takes longer are the cells, whatever is recorded of them.
        self.seconds = (elapsed - START * min(pace, SLOWEST)) * share / (1 - share)
