"""A run as one HTML page that needs nothing else: its data is embedded, and a script makes tables of it."""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from faultline.base.axes import CHECKPOINTING
from faultline.base.packages import stack_name
from faultline.base.text import one_line, plain
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import words
from faultline.report import claims, on_gpus
from faultline.report import run as report_run
from faultline.report.run import SYMBOLS
from faultline.runs.results import Result, as_expected, outcomes
from faultline.runs.storage import RunInfo

# What could end the script element that holds the data, or begin a comment in it.
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def write(file: Path, results: Collection[Result], info: RunInfo) -> None:
    """Write the page of a run."""
    run = file.resolve().parent.name
    embedded = Markup(embed(tidy(data(run, results, info))))
    page = template(Path(__file__).with_name("page.html.j2"))
    file.write_text(page.render(title=title(run, results), run=run, data=embedded), encoding="utf-8")


def title(run: str, results: Collection[Result]) -> str:
    """What the page is, in a line: the run's size, how much of it was not as expected, and its date."""
    day = re.match(r"\d{4}-\d\d-\d\d", run)
    unexpected = sum(not as_expected(result) for result in results)
    cells = "1 cell" if len(results) == 1 else f"{len(results):,} cells"
    return f"Faultline run: {cells}, {unexpected:,} unexpected, {day[0] if day else run}"


def template(file: Path) -> Template:
    """A page's template, which escapes all that it is given, and leaves escape sequences out."""
    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(value),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(file.name)


def embed(value: object) -> str:
    """JSON that can stand in a script element: plain ASCII without a sign that HTML knows."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def tidy(value: object) -> object:
    """A value that JSON can hold and a page can show: no NaN, no infinity, no escape sequences."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(key): tidy(entry) for key, entry in value.items()}
    return [tidy(entry) for entry in value] if isinstance(value, list | tuple) else value


def data(run: str, results: Collection[Result], info: RunInfo) -> dict[str, object]:
    """All that the page's script needs to know."""
    common: dict[str, int] = {}  # the number of each value that many cells have in common

    def shared(value: object) -> int:
        return common.setdefault(json.dumps(value), len(common))

    cells: list[dict[str, object]] = []
    sections = []
    for table in report_run.tables(results):
        rows = []
        for row in table.rows:
            numbers = []
            for place in ((strategy, mode) for strategy in table.strategies for mode in CHECKPOINTING):
                there = row.cells.get(place)
                numbers.append(len(cells) if there else -1)
                if there:
                    cells.append(_cell(there, shared, info.asked))
            rows.append({"label": row.label, "extra": row.extra, "cells": numbers})
        sections.append({**_section(table.failure, results), "strategies": table.strategies, "rows": rows})
    missing = {*info.cells} - {result.cell.id for result in results}
    compared = on_gpus.compared(results)
    return {
        "run": run,
        "gpus": on_gpus.page(compared, info, missing) if compared else None,
        "stacks": sorted({one_line(stack_name(result.stack)) for result in results if result.stack}),
        "asked": len(info.cells or results),
        "finished": info.finished,
        "modes": CHECKPOINTING,
        "symbols": SYMBOLS,
        "sections": sections,
        "cells": cells,
        "shared": [json.loads(value) for value in common],
    }


def _section(name: str, results: Collection[Result]) -> dict[str, object]:
    """What the catalogue says of a failure, and what became of its claims."""
    failure = failures().get(name)
    if not failure:
        return {"name": name, "title": name, "first_seen": "", "records": [], "since": "", "until": "", "claims": []}
    return {
        "name": name,
        "title": failure.title,
        "first_seen": failure.first_seen,
        "records": failure.records,
        "since": failure.since,
        "until": failure.until,
        "claims": [
            {
                "key": key,
                "text": judged.verdict.claim.text,
                "word": judged.verdict.word,
                "for": len(judged.verdict.supporting),
                "against": len(judged.verdict.against),
                "where": [*judged.where, *(f"on {stack}" for stack in judged.stacks)],
            }
            for key, judged in claims.judge_in_run(failure, outcomes(results)).items()
        ],
    }


def _cell(result: Result, shared: Callable[[object], int], stack: str) -> dict[str, object]:
    """One cell, with numbers for what it may share with others; `stack` as it was asked for."""
    expected = result.expected
    return {
        "id": result.cell.id,
        "run": words.command(result.cell.id, stack),
        "at": [result.cell.strategy, result.cell.checkpointing],
        "outcome": result.outcome,
        "signature": result.signature,
        "ok": as_expected(result),
        "verdict": result.verdict,
        "expected": outcome_text(expected.outcome, *expected.signatures),
        "record": expected.record,
        "seconds": _number(result.seconds),
        "detail": shared(result.detail),
        "worst": shared(result.worst_parameter),
        "off": "" if result.relative_error is None else _number(result.relative_error),
        "evidence": shared(result.evidence),
        "errors": shared(
            [[shared(name), kind, step, rank, _number(off)] for name, kind, step, rank, off in result.errors]
        ),
        "ranks": [
            [
                rank.rank,
                rank.exit,
                shared(asdict(rank.error) if rank.error else None),
                shared(rank.stack),
                shared(rank.log),
                [_number(loss, 6) for loss in rank.losses],
                rank.steps,
                rank.bad,
            ]
            for rank in result.ranks
        ],
    }


def _number(value: object, digits: int = 3) -> str:
    """A number as it is shown; results may hold NaN, which JSON can't."""
    return f"{value:.{digits}g}" if isinstance(value, int | float) else str(value)
