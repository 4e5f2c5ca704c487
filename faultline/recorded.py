"""What runs on other stacks did, recorded under fixtures/: the errors `diagnose` is tested on, and what trained."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from faultline import history, known
from faultline.catalogue import Failure, failures
from faultline.errors import EXIT_AS_EXPECTED, UsageError
from faultline.matching import mechanism
from faultline.matrix import Cell
from faultline.report import plain
from faultline.results import Result, RunFolder
from faultline.wording import normalised

KEPT = 60  # last lines of a traceback
FIRST = 60  # and its first ones, where there are more
ENDED = ("trains", "diverges", "misplaced")  # without an error to record

_PATHS = (
    (re.compile(r"(?:/[\w.+@-]+)*/(site-packages|python3\.\d{1,2})/"), r"\1/"),
    # The suite's own files are a user's script: their names would give the answer away.
    (re.compile(r"(?:/[\w.+@-]+)*/(?:faultline|repros|tiny_models|ds_configs)/[\w/.-]*"), "train.py"),
    (re.compile(r"(?<![\w.])/(?:root|home|work|tmp|var)/[\w./+@-]*"), "<path>"),
)

Entry = dict[str, Any]
"""One error: failure, signature, outcome, error, traceback, and the cells that showed it on each stack."""


def command(args: argparse.Namespace) -> int:
    """Add the errors of runs to fixtures/errors/errors.jsonl, and what ended without one to otherwise.json."""
    before, ran = list(known.recorded()), list(results(map(Path, args.runs)))
    found = merged(before, ran)
    known.ERRORS.parent.mkdir(parents=True, exist_ok=True)
    known.ERRORS.write_text("".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in found), encoding="utf-8")
    known.recorded.cache_clear()
    kept = otherwise(known.otherwise(), ran, found)
    known.OTHERWISE.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")
    known.otherwise.cache_clear()
    stacks = {stack for entry in found for stack in entry["stacks"]}
    print(f"{len(found)} errors on {len(stacks)} stacks, {len(found) - len(before)} of them new")
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
    """Entries with the errors of results added: one for each failure, signature, outcome and normalised text."""
    told: dict[tuple[str, ...], Entry] = {}
    for entry in (*map(_named, entries), *filter(None, map(recorded, found))):
        key = (entry["failure"], entry["signature"], entry["outcome"], normalised(entry["error"]))
        have = told.setdefault(key, entry)
        names = sorted({*entry["stacks"], *have["stacks"]})
        cells = {name: {*entry["stacks"].get(name, ()), *have["stacks"].get(name, ())} for name in names}
        told[key] = have | {"stacks": {name: sorted(own) for name, own in cells.items()}}
    return [told[key] for key in sorted(told)]


def otherwise(
    kept: Mapping[str, Mapping[str, Iterable[str]]], ran: Iterable[Result], errors: Iterable[Entry]
) -> dict[str, dict[str, list[str]]]:
    """By stack and outcome, the cells that ended without an error, where some stack showed their failure and some, or
    today's, didn't.

    A cell that ran again counts as it did last; of a cell in another precision its twin in fp32 tells the past.
    """
    did = {(stack, cell): told for stack, by in kept.items() for told, cells in by.items() for cell in cells}
    for result in ran:
        did.pop((result["stack"], result["id"]), None)
        if result["stack"] and result["outcome"] in ENDED and Cell.parse(result["id"]).precision == "fp32":
            did[result["stack"], result["id"]] = f"{result['outcome']} {result['signature']}".strip()
    raised = (
        (cell, f"{entry['outcome']} {entry['signature']}")
        for entry in errors
        for cells in entry["stacks"].values()
        for cell in cells
    )
    shown: dict[str, set[bool | None]] = {}
    for cell, told in {*raised, *((cell, told) for (_, cell), told in did.items())}:
        shown.setdefault(cell, set()).update((_shows(cell), _shows(cell, told)))
    found: dict[str, dict[str, list[str]]] = {}
    for (stack, cell), told in sorted(did.items(), key=lambda entry: (entry[0][0], entry[1], entry[0][1])):
        if shown[cell] >= {True, False}:
            found.setdefault(stack, {}).setdefault(told, []).append(cell)
    return found


@functools.cache
def _shows(name: str, told: str = "") -> bool | None:
    """Whether a broken cell shows its failure with an outcome, or with today's; None where that can't be told."""
    cell = Cell.parse(name)
    failure = failures().get(cell.failure)
    today = known.outcomes(failure).get(cell) if failure else None
    if failure is None or today is None or not cell.broken:
        return None
    outcome, _, signature = told.partition(" ")
    return history.shows(failure, *((outcome, signature) if told else today))


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
