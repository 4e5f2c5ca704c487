"""`prove models`: `check` for the tiny form of many model types of transformers, with and without an adapter."""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tomlkit

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable, TargetFailed, UsageError, unknown
from faultline.base.interpreters import ask, command
from faultline.base.packages import TODAY
from faultline.base.paths import ROOT
from faultline.base.text import count, matches, one_line
from faultline.catalogue import Failure, Variant
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.cells.selection import Selection, select
from faultline.check import cell as checked_cell
from faultline.check import script
from faultline.check.target import CheckTarget
from faultline.runs import measurement, oracle, results, storage
from faultline.runs.driver import Batch
from faultline.runs.nodes import Ended
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.storage import RunFolder
from faultline.runs.supervisor import RankServer
from faultline.stacks import environments
from faultline.stacks.environments import Environment
from faultline.strategies import native
from lab.programs import sampling
from lab.proofs import models_page, models_record, plans
from lab.proofs.models_record import ACCUMULATING, ADAPTED, Architecture

NAME = "models"  # where a cell's id has its failure
LISTED = ROOT / "fixtures" / "models.toml"
LORA = {"r": 8, "lora_alpha": 16.0, "lora_dropout": 0.0, "target_modules": "all-linear"}
PLANNED = "other types with a plan of parallelism"  # the kind of those that fixtures/models.toml lacks
PATIENCE = 3600.0  # seconds for reading every plan
MICRO_BATCHES = 2  # a step, of a model that accumulates

Plans = Mapping[str, tuple[str, Collection[str]]]
"""The class and the kinds of plans of a model type."""


@dataclass(frozen=True)
class Request:
    """Which model types (all if empty), where, and on which stack."""

    models: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    stack: str = TODAY
    workers: int = 1
    resume: bool = False


def architectures(planned: Plans | None = None) -> dict[str, Architecture]:
    """The model types of fixtures/models.toml, in its order, then those that have a plan."""
    kinds = tomlkit.parse(LISTED.read_text(encoding="utf-8")).unwrap()
    listed = {name: Architecture(name, cls, kind) for kind, entries in kinds.items() for name, cls in entries.items()}
    return {name: Architecture(name, cls, PLANNED) for name, (cls, _) in (planned or {}).items()} | listed


def of_release(environment: Environment, selection: Selection) -> Plans:
    """What transformers has plans for, if strategies of its own are asked for: that takes its import, of seconds."""
    if not any(matches(name, selection.strategy) for name in native.STRATEGIES):
        return {}
    return dict(json.loads(printed(environment, "plans")))


def printed(environment: Environment, module: str, *words: str) -> str:
    """What a module beside this one prints in an environment that has transformers."""
    program = command(environment.python, "-m", f"lab.proofs.{module}", *words)
    asked = ask(program, env={**os.environ, "PYTHONPATH": str(ROOT)}, patience=PATIENCE)
    if asked.returncode:
        raise UsageError(f"the plans of transformers can't be read: {one_line(asked.stderr[-300:])}")
    return asked.stdout


def lint(names: Sequence[str], stack: str) -> int:
    """Print what reads wrong in plans of tensor parallelism, and what the record has of these model types."""
    measured = models_record.outcomes_under("tp")
    for line in printed(environments.chosen(stack, ""), "plan_lint", *names).splitlines():
        name, _, candidate = line.partition(": ")
        print(f"{name} ({', '.join(measured.get(name, ('not run',)))}): {candidate}")
    return EXIT_AS_EXPECTED


def run(request: Request) -> int:
    """Check every model type, print what differs, and write it down; exit code 1 if a difference has no known failure.

    A model type that no batch can be made for, or that one process can't train, is listed with the reason.
    """
    environment = environments.chosen(request.stack, "")
    planned = of_release(environment, request.selection)
    every, cells = architectures(planned), cells_of(request, planned)
    asked = "" if request.stack == TODAY else request.stack
    models = {"models": request.models}
    folder, known = storage.begun(NAME, cells, environment.versions, models, asked, request.resume)
    missing = measurement.without(cells, known)
    with tempfile.TemporaryDirectory(prefix="faultline-models-") as configs:
        checking = functools.partial(run_cell, targets(Path(configs), every.values()))
        batch = Batch(missing, environment, folder, known, run=checking)
        measurement.measure([batch], request.workers, wrong=UNLIKE_ALONE)
    folder.describe(finished=True)
    return finish(folder, every)


def finish(folder: RunFolder, every: Mapping[str, Architecture]) -> int:
    """Record a run and print its answer."""
    entries = folder.results()
    rows = [models_record.summary(architecture, cells) for architecture, cells in by_model(entries, every)]
    for row in models_record.record(rows, folder.info().asked or TODAY, [*architectures()]):
        print(f"{row.name}: not recorded, as its record has more cells, of another release")
    if not folder.info().asked and not all(row.native for row in rows):
        write_scripts(entries)
    print(models_page.rewrite())
    trained = [row for row in rows if not row.refused]
    new = [row for row in trained if any(not each.failure for each in row.differences)]
    print(
        f"{count(len(trained), 'model')} trained in {count(sum(len(row.outcomes) for row in trained), 'cell')},"
        f" {len(rows) - len(trained)} refused; {len(new)} with a difference that is no known failure"
    )
    for row in new:
        print(f"  {row.name}")
    print(f"results: {folder.shown}/cells.jsonl")
    return EXIT_UNEXPECTED if new else EXIT_AS_EXPECTED


def write_scripts(entries: Collection[Result]) -> None:
    """Write the files that the page links to, as far as these results show what they show, and remove all others."""
    examples = models_page.first_of_each(models_record.of_today())
    wanted = {models_page.script(*pair): pair[1].example for pair in examples.values() if pair[1].new}
    by_id = {entry.cell.id: entry for entry in entries}
    with tempfile.TemporaryDirectory(prefix="faultline-models-") as configs:
        models = targets(Path(configs), architectures().values())
        for file, entry in ((file, by_id[name]) for file, name in wanted.items() if name in by_id):
            file.parent.mkdir(exist_ok=True)
            try:
                file.write_text(script.write(models[entry.cell.variant], entry, file, sys.executable), encoding="utf-8")
            except NotExportable as error:
                print(error)
    for file in models_page.SCRIPTS.glob("*.py"):
        if file not in wanted:
            file.unlink()


def by_model(entries: Collection[Result], every: Mapping[str, Architecture]) -> list[tuple[Architecture, list[Result]]]:
    """Results by what is trained: a model type, with an adapter or without, under whose parallelism."""
    cells: dict[tuple[str, bool, bool], list[Result]] = {}
    for entry in entries:
        cells.setdefault(models_record.trained(entry.cell), []).append(entry)
    return [(every[key[0]], group) for key, group in cells.items()]


def cells_of(request: Request, planned: Plans) -> list[Cell]:
    """The cells of a request; raises UsageError for a model type that neither the list nor the release has."""
    listed, every = architectures(), architectures(planned)
    for name in request.models:
        if name not in every:
            raise unknown("model", name, [*every])
    names = request.models or tuple(every)
    selection = replace(request.selection, strategy=request.selection.strategy or sampling.under())
    variants = tuple(Variant(f"{name}{adapter}") for name in names for adapter in ("", ADAPTED, ACCUMULATING))
    cells = [
        cell
        for cell in select({NAME: Failure("", "", "", {}, variants, {}, name=NAME)}, selection)
        if is_run(cell, listed, planned)
    ]
    if not cells:
        raise UsageError("no cell matches all of these options")
    return cells


def is_run(cell: Cell, listed: Collection[str], planned: Plans) -> bool:
    """Whether a cell says something new.

    Under transformers' own parallelism those types are run that have the plan, also with several micro-batches; an
    adapter is a known failure there.
    """
    name = cell.variant.partition("+")[0]
    options = native.STRATEGIES.get(cell.strategy)
    if not options:
        return name in listed and not cell.variant.endswith(ACCUMULATING)
    needs = {kind for kind in plans.KINDS if getattr(options, kind)}
    return not cell.variant.endswith(ADAPTED) and needs <= {*planned.get(name, ("", ()))[1]}


def targets(folder: Path, every: Collection[Architecture]) -> dict[str, CheckTarget]:
    """What `check` is given for each model type, however it is trained: a config that names type and class.

    The rest of it is what the type's config has by default.
    """
    made = {}
    for each in every:
        file = folder / each.model_type / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"model_type": each.model_type, "architectures": [each.model_class]}))
        made[each.model_type] = CheckTarget(file, "", {})
        made[each.model_type + ADAPTED] = CheckTarget(file, "", LORA)
        made[each.model_type + ACCUMULATING] = CheckTarget(file, "", {}, micro_batches=MICRO_BATCHES)
    return made


def run_cell(models: Mapping[str, CheckTarget], server: RankServer, references: References, cell: Cell) -> Result:
    """One cell of one model type; what one process can't build or train is `impossible`, with the reason."""
    try:
        return checked_cell.run(models[cell.variant], server, references, cell)
    except TargetFailed as failed:
        judged = oracle.Judgement(Outcome.IMPOSSIBLE, models_record.REFUSED, str(failed))
        return results.result(cell, judged, Ended([]), server.versions, Expectation(Outcome.TRAINS), "expected")
