"""A run split over machines: shards are stateless and balanced by recorded durations."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.cells.cell import Cell
from faultline.runs import storage
from faultline.runs.durations import UNKNOWN, kind, recorded
from faultline.runs.folders import entries
from faultline.runs.storage import RunFolder


def part(cells: Sequence[Cell], text: str) -> list[Cell]:
    """One shard of the cells, from ``i/n``: every machine computes the same split from the same cells."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard takes I/N with 1 <= I <= N, for instance 1/4, not {text!r}")
    return split(cells, count, recorded())[number - 1]


def split(cells: Sequence[Cell], count: int, seconds: Mapping[str, float]) -> list[list[Cell]]:
    """Longest first, each to the shard with the least work so far; every shard keeps the cells' order."""
    loads = [0.0] * count
    chosen: list[set[Cell]] = [set() for _ in range(count)]
    for cell in sorted(cells, key=lambda cell: (-seconds.get(kind(cell), UNKNOWN), cell.id)):
        lightest = loads.index(min(loads))
        loads[lightest] += seconds.get(kind(cell), UNKNOWN)
        chosen[lightest].add(cell)
    return [[cell for cell in cells if cell in shard] for shard in chosen]


def merge(folders: Sequence[RunFolder], into: Path | None = None) -> tuple[RunFolder, list[str]]:
    """A new results folder with every shard's cells, and the cells that none of the shards given has.

    `into` names another folder, whose earlier merge is replaced. Refuses shards of different stacks or of different
    cells.
    """
    infos = [folder.info() for folder in folders]
    stacks = sorted({info.stack for info in infos if info.stack})
    if len(stacks) > 1:
        raise UsageError(f"the runs are of different stacks: {' / '.join(stacks)}")
    asked = {info.whole or info.cells for info in infos}
    if len(asked) > 1:
        raise UsageError("the runs were asked for different cells; only shards of the same cells can be merged")
    [whole] = asked
    results = {entry.cell.id: entry for folder in folders for entry in entries(folder)}
    missing = [cell for cell in whole if cell not in results]
    if into:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
    merged = RunFolder(into) if into else storage.new_run()
    merged.describe(request=infos[0].request, cells=whole, stack="".join(stacks), finished=not missing)
    machines = {info.machine for info in infos}
    merged.describe(machine=machines.pop() if len(machines) == 1 else storage.Machine())
    writer = storage.Writer(merged)
    for entry in results.values():
        writer.add(entry)
    writer.close()
    return merged, missing
