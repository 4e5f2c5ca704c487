"""Results on disk: a folder for each run, one JSON line for each finished cell, written at once."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.catalogue import ROOT
from faultline.errors import UsageError
from faultline.expectations import Expectation
from faultline.matrix import AXES, Cell
from faultline.oracle import Judgement
from faultline.ranks import Ended

RESULTS = ROOT / "results"
WORST = 10  # errors of gradients, and as many of weights, that are kept for each cell

Result = dict[str, Any]
"""One line of cells.jsonl; README.md has the table of its keys."""

# What a line must have to be a result: all that reports, rules and READMEs are made from.
KEYS = {
    *("id", *AXES, "stack", "outcome", "signature", "detail", "worst_parameter", "relative_error"),
    *("expected", "verdict", "seconds", "evidence", "compared", "errors", "rounding", "ranks"),
}


def stack_name(versions: Mapping[str, str]) -> str:
    """The stack in one line, local build tags left out: ``accelerate 1.15.0, deepspeed 0.19.8, ...``."""
    return ", ".join(f"{name} {version}" for name, version in untagged(versions).items())


def untagged(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions by the packages' names in their order, without local build tags."""
    return {name: version.split("+")[0] for name, version in sorted(versions.items())}


def result(cell: Cell, judged: Judgement, ended: Ended, stack: str, expected: Expectation, verdict: str) -> Result:
    reports = [end.report or {} for end in ended.ranks]
    return {
        "id": cell.id,
        **vars(cell),
        "stack": stack,
        "outcome": str(judged.outcome),
        "signature": judged.signature,
        "detail": judged.detail,
        "rank": judged.rank,
        "worst_parameter": judged.worst_parameter,
        "relative_error": judged.relative_error,
        "expected": {"outcome": expected.outcome, "signatures": list(expected.signatures), "record": expected.record},
        "verdict": verdict,
        "seconds": round(ended.seconds, 3),
        "evidence": ended.ranks[0].evidence if ended.ranks else {},
        "compared": next((report["compared"] for report in reports if "compared" in report), []),
        "errors": worst_errors(reports),
        "rounding": excused(reports),
        "ranks": [
            {
                "rank": rank,
                "exit": end.exit,
                "error": {k: v for k, v in report["error"].items() if k != "at"} if report.get("error") else None,
                "evidence": end.evidence,
                "losses": report.get("losses", []),
                "steps": len(report.get("steps", [])),
                "bad": sum(len(step["bad"]) for step in report.get("steps", [])),
                "digests": report.get("digests", []),
                "stack": end.stack,
                "log": end.log[-4000:] if judged.outcome not in ("trains", "raises") else "",
            }
            for rank, (end, report) in enumerate(zip(ended.ranks, reports, strict=True))
        ],
    }


def worst_errors(reports: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """The largest errors of each kind as [parameter, kind, step, rank, relative error], without those of rounding."""
    rows: dict[str, list[list[Any]]] = {"gradients": [], "weights": []}
    for place, error, noise in _errors(reports):
        if error and noise is None:
            rows[place[1]].append([*place, error])
    worst = [row for own in rows.values() for row in sorted(own, key=_size)[:WORST]]
    return sorted(worst, key=_size)


def excused(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The errors above the tolerance that rounding explains: how many, the largest, the most times the noise."""
    rows = [([*place, error], noise) for place, error, noise in _errors(reports) if noise is not None]
    return {
        "count": len(rows),
        "largest": min((row for row, _ in rows), key=_size, default=None),
        "times_noise": max((noise for _, noise in rows), default=None),
    }


def _errors(reports: Iterable[Mapping[str, Any]]) -> Iterator[tuple[list[Any], float, float | None]]:
    """Each error with its place, [parameter, kind, step, rank]; with how many times the noise, if that excuses it."""
    for report in reports:
        for number, step in enumerate(report.get("steps", [])):
            for kind in ("gradients", "weights"):
                for name, error in step.get(kind, {}).items():
                    yield [name, kind, number + 1, report["rank"]], error, step["rounding"].get(f"{kind}:{name}")


def _size(row: list[Any]) -> float:
    return -row[-1]


def finite(value: Any) -> Any:
    """A value as JSON can hold it: what is not a finite number becomes the text ``nan``, ``inf`` or ``-inf``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: run.json says what was asked, cells.jsonl what came of it."""

    path: Path

    @property
    def cells(self) -> Path:
        return self.path / "cells.jsonl"

    def describe(self, **facts: Any) -> None:
        """Merge facts into run.json."""
        file = self.path / "run.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(known | facts, indent=2) + "\n")
        partial.replace(file)

    def facts(self) -> dict[str, Any]:
        try:
            facts = json.loads((self.path / "run.json").read_text())
            return {**facts}
        except (OSError, ValueError, TypeError):
            raise UsageError(f"{self.path} is not the results folder of a run: it has no readable run.json") from None

    def read(self) -> tuple[list[Result], int]:
        """The result of every cell, and how many lines are none: cut short by an interruption, or foreign."""
        found: dict[str, Result] = {}
        others = 0
        lines = self.cells.read_text(errors="replace").splitlines() if self.cells.exists() else []
        for line in filter(str.strip, lines):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if is_result(entry):
                found[entry["id"]] = entry
            else:
                others += 1
        return list(found.values()), others

    def results(self) -> list[Result]:
        return self.read()[0]

    @property
    def shown(self) -> str:
        """The folder as the person at the terminal would name it."""
        return str(self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path)


def is_result(entry: Any) -> bool:
    """Whether a line of cells.jsonl has a result's keys, and an id that says the same as its axes."""
    if not isinstance(entry, dict) or not entry.keys() >= KEYS or not isinstance(entry["id"], str):
        return False
    try:
        return vars(Cell.parse(entry["id"])).items() <= entry.items()
    except UsageError:
        return False


class Writer:
    """Appends results as they come, from any thread; each is on disk when `add` returns."""

    def __init__(self, folder: RunFolder) -> None:
        self._lock = threading.Lock()
        torn = folder.cells.exists() and not folder.cells.read_bytes().endswith(b"\n") and folder.cells.stat().st_size
        self._file = open(folder.cells, "a")  # noqa: SIM115 - kept open for the whole run
        if torn:
            self._file.write("\n")

    def add(self, entry: Result) -> None:
        with self._lock:
            self._file.write(json.dumps(finite(entry), allow_nan=False) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def new_run(root: Path = RESULTS, *, kind: str = "run") -> RunFolder:
    """A fresh folder named after the time; results/latest points to it.

    Another kind of run, ``repeat``, ``chaos`` or ``stack``, has it in its name
    and in run.json, and leaves results/latest alone.
    """
    root.mkdir(exist_ok=True, parents=True)
    while True:
        path = root / time.strftime("%Y-%m-%dT%H-%M-%S" if kind == "run" else f"{kind}-%Y-%m-%dT%H-%M-%S")
        try:
            path.mkdir()
            break
        except FileExistsError:
            time.sleep(0.2)
    folder = RunFolder(path)
    folder.describe(kind=kind)
    if kind == "run":
        partial = root / f".latest-{os.getpid()}"
        partial.symlink_to(path.name)
        partial.replace(root / "latest")
    return folder


def runs(root: Path = RESULTS, *, kind: str = "run") -> Iterator[RunFolder]:
    """All runs of a kind, the newest first."""
    for file in sorted(root.glob("2*/run.json" if kind == "run" else f"{kind}-*/run.json"), reverse=True):
        yield RunFolder(file.parent)


def latest_run(root: Path = RESULTS, *, kind: str = "run") -> RunFolder:
    """The newest run of a kind; raises UsageError where there is none."""
    if kind != "run":
        folder = next(runs(root, kind=kind), None)
        if not folder:
            raise UsageError(f"there is no {kind} run yet that could go on")
        return folder
    if not (root / "latest").exists():
        raise UsageError("there is no run yet: start one with `make test-matrix`")
    return RunFolder((root / "latest").resolve())
