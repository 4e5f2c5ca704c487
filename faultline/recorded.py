"""What runs did, recorded under fixtures/: the errors that `diagnose` is tested on, and each stack's outcomes."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from faultline import known, stacks, timeline
from faultline.catalogue import Failure, failures
from faultline.errors import EXIT_AS_EXPECTED, UsageError
from faultline.matching import mechanism
from faultline.matrix import Cell
from faultline.report import plain
from faultline.results import Result, RunFolder
from faultline.stacks import TODAY
from faultline.timeline import NOT_RUN, Moment, Timeline
from faultline.wording import normalised

KEPT = 60  # last lines of a traceback
FIRST = 60  # and its first ones, where there are more
QUIET = ("trains", "diverges", "misplaced")  # outcomes without an error

_PATHS = (
    (re.compile(r"(?:/[\w.+@-]+)*/(site-packages|python3\.\d{1,2})/"), r"\1/"),
    # The suite's own files are a user's script: their names would give the answer away.
    (re.compile(r"(?:/[\w.+@-]+)*/(?:faultline|repros|tiny_models|ds_configs)/[\w/.-]*"), "train.py"),
    (re.compile(r"(?<![\w.])/(?:root|home|work|tmp|var)/[\w./+@-]*"), "<path>"),
)

Entry = dict[str, Any]
"""One error: failure, signature, outcome, error, traceback, and the cells that showed it on each stack."""


def command(args: argparse.Namespace) -> int:
    """Add the errors of runs to fixtures/errors/errors.jsonl, and what broken cells did on stacks/ to ran.json."""
    before, told = list(known.recorded()), list(results(map(Path, args.runs)))
    found = merged(before, told)
    known.ERRORS.parent.mkdir(parents=True, exist_ok=True)
    known.ERRORS.write_text("".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in found), encoding="utf-8")
    known.recorded.cache_clear()
    timeline.write(known.RAN, ran(known.ran(), told))
    known.ran.cache_clear()
    of = {stack for entry in found for stack in entry["stacks"]}
    print(f"{len(found)} errors on {len(of)} stacks, {len(found) - len(before)} of them new")
    return EXIT_AS_EXPECTED


def results(folders: Iterable[Path]) -> Iterator[Result]:
    """Every result in the folders and those within them, without runs whose ranks were killed on purpose."""
    files = [file for folder in folders for file in sorted(folder.resolve().rglob("cells.jsonl"))]
    if not files:
        raise UsageError("there are no results in that: name folders of results/")
    for file in files:
        run = RunFolder(file.parent)
        if run.facts().get("kind") != "chaos":
            yield from run.read()[0]


def merged(entries: Iterable[Entry], found: Iterable[Result]) -> list[Entry]:
    """Entries with the errors of results added: one for each failure, signature, outcome and normalised text.

    A cell that ended without one on a stack isn't named any more beside what it ended with there before.
    """
    found = list(found)
    last = {(result["stack"], result["id"]): result["outcome"] for result in found}
    quiet = {place for place, outcome in last.items() if outcome in QUIET}
    told: dict[tuple[str, ...], Entry] = {}
    for entry in (*map(_named, entries), *filter(None, map(recorded, found))):
        key = (entry["failure"], entry["signature"], entry["outcome"], normalised(entry["error"]))
        have = told.setdefault(key, entry)
        names = sorted({*entry["stacks"], *have["stacks"]})
        cells = {name: {*entry["stacks"].get(name, ()), *have["stacks"].get(name, ())} for name in names}
        left = {name: sorted(cell for cell in own if (name, cell) not in quiet) for name, own in cells.items()}
        told[key] = have | {"stacks": {name: own for name, own in left.items() if own}}
    return [told[key] for key in sorted(told) if told[key]["stacks"]]


def ran(before: Timeline, found: Iterable[Result]) -> Timeline:
    """What broken cells did on each stack of stacks/ but today's, which rules tell.

    The last run of a cell counts. Cells that there are no more are left out, and stacks whose versions have changed.
    """
    cells = {cell.id for failure in failures().values() for cell in known.outcomes(failure)}
    did = {
        (moment.date, cell): told
        for cell, line in before.cells.items()
        for moment, told in zip(before.moments, line, strict=True)
        if told != NOT_RUN and stacks.named().get(moment.date) and known.pins(moment.date) == moment.versions
    }
    for result in found:
        stack, cell = known.stack_of(result["stack"]), Cell.parse(result["id"])
        if stack not in ("", TODAY) and cell.broken:
            did[stack, cell.id] = f"{result['outcome']} {result['signature']}".strip()
    names = sorted({stack for stack, _ in did})
    rows = sorted({cell for _, cell in did} & cells)
    return Timeline(
        [Moment(name, known.pins(name)) for name in names],
        {cell: [did.get((name, cell), NOT_RUN) for name in names] for cell in rows},
    )


def _named(entry: Entry) -> Entry:
    """An entry with the signature that the catalogue gives it by now."""
    failure = failures().get(entry["failure"])
    if failure is None or entry["outcome"] != "raises":
        return entry
    return entry | {"signature": failure.signature(entry["error"])}


def recorded(result: Result) -> Entry | None:
    """The entry of one result, if it ended with an error, a death or a hang."""
    failure = failures().get(result["failure"])
    if failure is None or result["outcome"] not in ("raises", "crashes", "hangs") or not result["stack"]:
        return None
    raises = result["outcome"] == "raises"
    own = next((r for r in result["ranks"] if r["rank"] == result["rank"]), None)
    told = own["error"]["traceback"] if raises and own and own["error"] else ""
    if not raises:
        told = "\n".join(rank["stack"] or rank["log"] for rank in result["ranks"])
    error = shortened(result["detail"])
    return {
        "failure": failure.name,
        "signature": failure.signature(error) if raises else result["signature"],
        "outcome": result["outcome"],
        "error": error,
        "traceback": excerpt(shortened(told)),
        "stacks": {result["stack"]: [result["id"]]},
    }


def shortened(text: str) -> str:
    """A text whose paths say nothing of the machine that it comes from."""
    text = plain(text)
    for pattern, short in _PATHS:
        text = pattern.sub(short, text)
    return text


def excerpt(traceback: str) -> str:
    """The first and last lines of a traceback, without the marks below its source lines."""
    lines = [line for line in traceback.splitlines() if set(line.strip()) - set("^~")]
    return "\n".join(lines if len(lines) <= FIRST + KEPT else [*lines[:FIRST], "  ...", *lines[-KEPT:]])


def answer(failure: Failure, signature: str, text: str) -> tuple[str, bool]:
    """The failure that `diagnose` has to name for a recorded error, and whether for no more than its mechanism; nothing
    where the catalogue has no words for it.

    Words that are another failure's are the one's of several whose context is in the error's traceback.
    """
    if signature not in failure.signatures:
        return "", False
    if signature not in failure.elsewhere:
        return failure.name, False
    owners = [f for f in failures().values() if signature in f.signatures and signature not in f.elsewhere]
    fitting = [f.name for f in owners if re.search(f.context.get(signature, ""), text)]
    if fitting:
        return fitting[0], False
    same = (f for f in owners if (found := mechanism(f, signature)) and re.search(found.context, text))
    return next(((f.name, True) for f in same), ("", False))
