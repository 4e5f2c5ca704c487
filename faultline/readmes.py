"""The measured part of a failure's README: where it happens, and what became of each claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from faultline import report, strategies
from faultline.catalogue import ROOT, Failure
from faultline.claims import Verdict
from faultline.errors import UsageError
from faultline.matrix import CHECKPOINTING, Cell, default_world
from faultline.report import one_line, ordered
from faultline.results import Result

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

Outcomes = Mapping[Cell, tuple[str, str]]


def rewrite(file: Path, failure: Failure, results: Iterable[Result]) -> str:
    """Put a run's results between the two markers, and say whether that changed the file."""
    name = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(f"{name} must have the lines {BEGIN} and {END}, once each, around its measured part")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n{measured(failure, results)}\n{END}{after}"
    if new == text:
        return f"{name}: unchanged"
    file.write_text(new, encoding="utf-8")
    return f"{name}: rewritten"


def measured(failure: Failure, results: Iterable[Result]) -> str:
    """The Markdown of one failure, the same for the same results in whatever order."""
    known = {variant.name for variant in failure.variants}
    own = sorted((r for r in results if r["failure"] == failure.name and r["variant"] in known), key=lambda r: r["id"])
    observed = report.outcomes(own)
    main = {cell: told for cell, told in observed.items() if cell == _usual(cell)}
    stacks = sorted({one_line(result["stack"]) for result in own if result["stack"]})
    devices = sorted({"CPU (gloo)" if cell.device == "cpu" else "GPU (nccl)" for cell in observed})
    parts = [
        f"Measured with {'; '.join(stacks) or 'an unknown stack'} on the {' and the '.join(devices)},"
        " in fp32 on 2 ranks (`single`: one process).",
        "\n".join(happens(failure, main)),
        elsewhere(observed, main),
        "\n".join(fates(failure, own)),
    ]
    return "\n\n".join(filter(None, parts))


def happens(failure: Failure, main: Outcomes) -> list[str]:
    """The table of broken variants: strategies and modes with the same outcome share a line."""
    lines = []
    for variant in (v.name for v in failure.variants if v.remedy == "broken"):
        cells = {cell: told for cell, told in main.items() if cell.variant == variant}
        everywhere = {cell.strategy for cell in cells}
        modes: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for mode in CHECKPOINTING:
            told = {cell.strategy: _outcome(*told) for cell, told in cells.items() if cell.checkpointing == mode}
            by_outcome: dict[str, list[str]] = {}
            for strategy in ordered(told, strategies.names()):
                by_outcome.setdefault(told[strategy], []).append(strategy)
            rows = tuple((report.grouped(names, everywhere), outcome) for outcome, names in by_outcome.items())
            modes.setdefault(rows, []).append(mode)
        for rows, same in modes.items():
            lines += [_row(f"`{variant}`", ", ".join(same), names, outcome) for names, outcome in rows]
    return _headed(("variant", "checkpointing", "strategies", "outcome"), lines)


def elsewhere(observed: Outcomes, main: Outcomes) -> str:
    """One line on bf16 and other world sizes: how broken variants differ there from the main table."""
    others = [
        cell for cell in observed if cell.variant.endswith("broken") and _usual(cell) in main and cell not in main
    ]
    changes: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(others, key=lambda cell: cell.id):
        now, usual = observed[cell], main[_usual(cell)]
        if now != usual:
            changes.setdefault((_place(cell), f"{_outcome(*now)} rather than {_outcome(*usual)}"), []).append(cell)
    texts = []
    for (place, change), cells in sorted(changes.items()):
        among = [_usual(cell) for cell in others if _place(cell) == place]
        where = ", ".join(report.places([_usual(cell) for cell in cells], among))
        texts.append(f"{place}: {where} {change}")
    if texts:
        return f"Different from fp32 on 2 ranks: {'; '.join(texts)}."
    run = " and ".join(sorted({_place(cell) for cell in others}))
    return f"The same with {run}, wherever broken variants were run so." if run else ""


def _usual(cell: Cell) -> Cell:
    """The same cell in the main table."""
    return replace(cell, precision="fp32", world_size=default_world(cell))


def _place(cell: Cell) -> str:
    """How a cell differs from the main table's."""
    ranks = "" if cell == replace(cell, world_size=default_world(cell)) else f"{cell.world_size} ranks"
    return " on ".join(filter(None, (cell.precision if cell.precision != "fp32" else "", ranks))).replace(
        "1 ranks", "1 rank"
    )


def fates(failure: Failure, results: Collection[Result]) -> list[str]:
    """The table of claims with their verdicts."""
    verdicts = report.verdicts(failure, results)
    rows = [
        _row(key, verdict.claim.text, verdict.word, _count(failure, verdict, results))
        for key, verdict in verdicts.items()
    ]
    return _headed(("", "claim", "verdict", "cells"), rows)


def _count(failure: Failure, verdict: Verdict, results: Collection[Result]) -> str:
    """How many cells speak for a claim, and what happens in those that don't."""
    if verdict.word == "untested":
        return "none was run"
    agreeing, all_cells = len(verdict.speaks_for), len(verdict.speaks_for) + len(verdict.against)
    count = f"{agreeing} of {all_cells} cells"
    told = report.where(failure, verdict, results)
    if not told or verdict.word == "verified":
        return count
    return f"{count}; {'only ' if verdict.claim.kind == 'changes' else 'not '}{'; '.join(told)}"


def _outcome(outcome: str, signature: str) -> str:
    return one_line(f"{outcome} `{signature}`" if signature else outcome)


def _headed(names: Iterable[str], rows: Iterable[str]) -> list[str]:
    names = tuple(names)
    return [_row(*names), _row(*["---"] * len(names)), *rows]


def _row(*columns: str) -> str:
    return "| " + " | ".join(one_line(column).replace("|", r"\|") for column in columns) + " |"
