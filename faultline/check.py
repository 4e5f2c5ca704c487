"""Somebody's own model under the strategies of the matrix, held against one process."""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from faultline import (
    blame,
    commands,
    environments,
    expectations,
    matrix,
    oracle,
    problems,
    results,
    runner,
    runs,
    stacks,
)
from faultline.catalogue import Failure, Variant
from faultline.errors import EXIT_AS_EXPECTED, EXIT_INTERRUPTED, EXIT_UNEXPECTED, EXIT_USAGE, UsageError
from faultline.expectations import Expectation
from faultline.matrix import Cell
from faultline.ranks import Ended, RankServer
from faultline.report import checked, one_line, plain, terminal
from faultline.results import Result
from faultline.runner import References

NAME = "check"  # where a cell's id has its failure
CHECKED = Failure("", (), "", "", {}, (Variant("model"),), {}, name=NAME)
LACKS = "this stack lacks it: "  # what `scenario.building` makes of a failed import
WITHIN = 0.1  # how far from the world size a factor may be that is taken for it
CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"


@dataclass(frozen=True)
class Target:
    """What is checked: a function of a Python file, or a config (`function` is empty), with an adapter or without."""

    file: Path
    function: str
    lora: Mapping[str, Any]

    def job(self, world_size: int) -> dict[str, Any]:
        """As `targets.Module` takes it."""
        adapter = {"lora": dict(self.lora), "cwd": str(Path.cwd())}
        return {"file": str(self.file), "function": self.function, **adapter, "world_size": world_size}


class TargetFailed(Exception):
    """The target can't be trained in one process; has the traceback of its own code, if it came so far."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


def command(args: argparse.Namespace) -> int:
    """Check a model: exit code 0 if it trains alike everywhere, 1 if not."""
    target = parse(args.target, args.lora)
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {args.workers}")
    cells = matrix.select({NAME: CHECKED}, commands.selection(args))
    if not cells:
        raise UsageError("no cell is all of that")
    environment = environments.existing(args.python) if args.python else environments.ready(stacks.parse(args.stack))
    python = environment.python
    commands.check_device(cells[0].device, python)
    folder = results.new_run(kind=NAME)
    folder.describe(target=args.target, lora=args.lora, python=python, cells=[cell.id for cell in cells])
    try:
        run = functools.partial(run_one, target)
        runs.measure(cells, args.workers, folder, python=python, run=run, wrong=terminal.UNLIKE_ALONE)
    except TargetFailed as failed:
        print(f"faultline: {plain(args.target)}: {plain(failed)}", file=sys.stderr)
        if failed.traceback:
            print(plain(failed.traceback), end="", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        had = f"{len(folder.results())} of {len(cells)} cells, which are in {folder.shown}/cells.jsonl"
        print(f"faultline: interrupted after {had}", file=sys.stderr)
        return EXIT_INTERRUPTED
    folder.describe(finished=True)
    by_id = {entry["id"]: entry for entry in folder.results()}
    found = [by_id[cell.id] for cell in cells]
    if args.json:
        print(json.dumps(results.finite(checked.as_json(found)), indent=2))
    else:
        checked.show(Console(), args.target, options(args), found)
        print(f"results: {folder.shown}/cells.jsonl")
    if not problems.ran(found):
        return EXIT_USAGE
    return EXIT_AS_EXPECTED if problems.agrees(found) else EXIT_UNEXPECTED


def options(args: argparse.Namespace) -> list[str]:
    """The options that make a target what it is, beside the cells that are asked for."""
    given = {"--lora": args.lora, "--stack": "" if args.stack == stacks.TODAY else args.stack, "--python": args.python}
    return [word for name, value in given.items() if value for word in (name, value)]


def run_one(target: Target, server: RankServer, references: References, cell: Cell) -> Result:
    """One cell's result, with `first` (where it first differs, if it diverges), `raised_in` (the module whose forward
    pass ended in its error), `at` (the lines of its files that the error came through), `apart` (weights that were
    tied), `shows` (see `shows`) and `facts` (what was seen in one process, on the rows of as many ranks).

    Raises TargetFailed where one process can't train the target.
    """
    job, facts = target.job(cell.world_size), {}

    def go() -> tuple[Ended, oracle.Judgement]:
        path, problem = references.file(server, cell, job)
        if problem:
            raise TargetFailed(*told(problem, target.file.parent))
        facts.update(json.loads(path.with_suffix(".facts").read_text()))
        if facts["noise"] != facts["noise"]:
            raise TargetFailed("gradients are not numbers in one process already, so there is nothing to compare")
        # So much between two runs in one process would be taken for rounding, and hide faults of that size.
        if facts["noise"] > matrix.TOLERANCE[cell.precision]:
            raise TargetFailed(
                f"two runs in one process differ by {facts['noise']:.2g} of their gradients: the model draws random"
                " numbers of its own (dropout by function?); switch that off, or nothing can be compared"
            )
        ended = server.run({"cell": cell.id, "reference": str(path), "target": job}, cell.world_size)
        # A model that checkpoints by itself does so where nothing was asked for, in one process too.
        as_is = replace(cell, checkpointing=facts["checkpointing"]) if cell.checkpointing == "off" else cell
        return ended, oracle.judge(as_is, CHECKED, ended)

    ended, judged = runner.surviving(server, go)
    versions = results.stack_name(server.greeting.get("versions", {}))
    expected = Expectation(oracle.Outcome.TRAINS)
    verdict = expectations.verdict(expected, judged.outcome, judged.signature)
    if judged.outcome == oracle.Outcome.IMPOSSIBLE:
        verdict = "expected"
    entry = results.result(cell, judged, ended, versions, expected, verdict)
    # What a rank that raised had computed until then differs for no other reason.
    differs = first(ended, facts.get("order", ())) if judged.outcome == oracle.Outcome.DIVERGES else {}
    raised = raised_in(ended, judged) if judged.outcome == oracle.Outcome.RAISES else None
    own = raised_at(ended, judged, target.file.parent) if judged.outcome == oracle.Outcome.RAISES else []
    more = {"raised_in": raised, "at": own, "apart": apart(ended), "shows": shows(ended), "facts": facts}
    return entry | {"first": differs, **more}


def first(ended: Ended, order: Sequence[str]) -> dict[str, Any]:
    """Where the ranks first differ from the reference: step, phase, module and relative error; empty if nowhere.

    In time: outputs of modules in a step's forward pass, then gradients from the last module to the first, then what
    the optimizer made of them.
    """
    places: list[tuple[int, int, int, dict[str, Any]]] = []
    at = {name: index for index, name in enumerate(order)}
    for end in ended.ranks:
        for number, step in enumerate((end.report or {}).get("steps", [])):
            here = {"step": number + 1, "rank": (end.report or {})["rank"]}
            for name, error in step.get("outputs", {}).items():
                module = name.partition(" ")[2].rpartition("#")[0]
                place = here | {"phase": "forward", "module": module, "error": error}
                places.append((number, 0, at.get(module, -1), place))
            for name in (*step["bad"], *step["nan"]):
                kind, _, parameter = name.partition(":")
                module = parameter.rpartition(".")[0]
                phase = "backward" if kind == "gradients" else "update"
                error = step.get(kind, {}).get(parameter)
                place = here | {"phase": phase, "module": module, "parameter": parameter, "error": error}
                places.append((number, 1 if kind == "gradients" else 2, -at.get(module, -1), place))
    return min(places, key=lambda place: place[:3], default=(0, 0, 0, {}))[3]


def raised_in(ended: Ended, judged: oracle.Judgement) -> str | None:
    """The innermost module that was in its forward pass at a cell's error: empty for the model itself, else None."""
    report = ended.ranks[judged.rank or 0].report or {}
    inside: str | None = report.get("facts", {}).get("inside")
    return inside


def shows(ended: Ended) -> list[str]:
    """Which of problems.COMPARED the ranks of a cell show beside the reference."""
    reports = [end.report for end in ended.ranks if end.report]
    found = []
    factors = [report["steps"][0].get("factor") for report in reports if report.get("steps")]
    world = len(ended.ranks)
    if world > 1 and len(factors) == world and all(f and abs(f * world - 1) < WITHIN for f in factors):
        found.append("over_ranks")
    entered = [report["facts"]["entered"] for report in reports if report.get("facts")]
    wrappers = [report["evidence"].get("wrapper", "") for report in reports if report.get("facts")]
    if any(names and wrapper not in names for names, wrapper in zip(entered, wrappers, strict=True)):
        found.append("bypassed")
    return found


def raised_at(ended: Ended, judged: oracle.Judgement, folder: Path) -> list[str]:
    """The lines of the target's own files that a cell's error came through, the outermost first."""
    error = (ended.ranks[judged.rank or 0].report or {}).get("error") or {}
    return blame.places(error.get("traceback", ""), folder)


def apart(ended: Ended) -> list[list[str]]:
    """Tied weights that some rank has in several tensors after training."""
    found = [names for end in ended.ranks for names in (end.report or {}).get("facts", {}).get("apart", ())]
    return [list(names) for names in dict.fromkeys(map(tuple, found))]


def told(problem: str, folder: Path) -> tuple[str, str]:
    """A message and the target's own traceback, from what is known of a reference that could not be made."""
    refused = re.search(r"^faultline\.\w+\.(?:Refused|NoBatch|Impossible|Died|Own): ((?s:.*))", problem, re.MULTILINE)
    # An error's message may have several lines, of which the first stands behind the last frame.
    error = re.findall(r"^Traceback \(most recent call last\):\n(?:[ ].*\n|\n)*(.+)", problem, re.MULTILINE)
    last = error[-1] if error else problem.strip().splitlines()[-1]
    told = one_line(refused[1] if refused else last)
    own, other = frames(problem, folder), "--stack makes an environment that has it, --python names one"
    if own and told.startswith(f"{LACKS}No module named"):
        missing = told.removeprefix(LACKS)
        told = f"{missing}: if that is a file of yours, put its folder on PYTHONPATH; if a package, {other}"
    elif told.startswith(LACKS):
        told += f"; {other}"
    return told, own


def frames(traceback: str, folder: Path) -> str:
    """A traceback without this suite's frames, and without causes that have none of a folder; empty if none has."""
    told = [_foreign(part, folder) for part in traceback.split(CAUSE)]
    told = [part for part in told if f'\n  File "{folder}' in part]
    return CAUSE.join(part.strip("\n") for part in told) + "\n" if told else ""


def _foreign(traceback: str, folder: Path) -> str:
    """A traceback without this suite's frames; where it ends in this suite's own refusal, the last is of the folder."""
    kept: list[str] = []
    ours, end = False, 0
    for line in traceback.splitlines(keepends=True):
        if named := re.match(r'  File "([^"]+)"', line):
            # Each call of a module has three of torch's own, which say nothing.
            ours = named[1].startswith((str(blame.FOLDER), "<")) or named[1].endswith("/torch/nn/modules/module.py")
            own = folder in Path(named[1]).parents and "site-packages" not in Path(named[1]).parts
        elif not line.startswith("    "):
            ours, own = line.startswith("faultline."), False
            if ours:
                kept = kept[:end]
        if not ours:
            kept.append(line)
            end = len(kept) if own else end
    return "".join(kept)


def parse(text: str, lora: str) -> Target:
    """Read TARGET and --lora; raises UsageError for what can't be one."""
    name, _, function = text.partition(":")
    path = Path(name).expanduser().resolve()
    if path.is_dir():
        inside = path / "config.json"
        if not inside.exists():
            raise UsageError(
                f"{plain(name)} has no config.json: give a model's folder, its config.json, or train.py:build"
            )
        path = inside
    if not path.exists():
        raise UsageError(
            f"there is no {plain(name)}; nothing is downloaded: give a local config.json, folder or train.py:build"
        )
    if path.suffix == ".py":
        return Target(path, _function(path, name, function), adapter(lora))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(content["model_type"], str)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UsageError(f"{plain(name)} is neither a Python file nor a config.json of transformers with a model_type")
    if function:
        raise UsageError(f"{plain(name)} is a config, which has no function {plain(function)!r}")
    return Target(path, "", adapter(lora))


def _function(path: Path, name: str, function: str) -> str:
    """The function of a file that is meant: there has to be one, and it must be able to run without arguments."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
    except SyntaxError as error:
        raise UsageError(f"{plain(name)}:{error.lineno}: {one_line(error.msg)}") from None
    except ValueError as error:
        raise UsageError(f"{plain(name)}: {one_line(error)}") from None
    known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not function:
        raise UsageError(f"name the function that builds the model, as {plain(name)}:{known[0] if known else 'build'}")
    return function


def adapter(text: str) -> dict[str, Any]:
    """Keywords for PEFT's LoraConfig from ``r=8,target=all-linear``; several targets have a + between them."""
    if not text:
        return {}
    words = dict(pair.partition("=")[::2] for pair in text.split(","))
    unknown = set(words) - {"r", "alpha", "dropout", "target"}
    try:
        rank = int(words.get("r") or "8")
        found: dict[str, Any] = {"r": rank, "lora_alpha": float(words.get("alpha") or 2 * rank)}
        found["lora_dropout"] = float(words.get("dropout") or "0")
    except ValueError:
        unknown = unknown or {text}
    if unknown or rank < 1:
        raise UsageError(
            f"--lora {plain(text)!r}: write r=8,target=all-linear, with alpha=16, dropout=0.05, target=q_proj+v_proj"
        )
    target = words.get("target") or "all-linear"
    found["target_modules"] = target if target == "all-linear" else target.split("+")
    return found
