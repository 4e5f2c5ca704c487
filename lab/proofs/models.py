"""`prove models`: `check` for the tiny form of many model types of transformers, with and without an adapter."""

import functools
import json
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import tomlkit

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable, TargetFailed, UsageError, unknown
from faultline.base.packages import TODAY
from faultline.base.paths import ROOT
from faultline.base.text import count
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
from lab.programs import sampling
from lab.proofs import models_page, models_record
from lab.proofs.models_record import Architecture

NAME = "models"  # where a cell's id has its failure
LISTED = ROOT / "fixtures" / "models.toml"
LORA = {"r": 8, "lora_alpha": 16.0, "lora_dropout": 0.0, "target_modules": "all-linear"}
ADAPTED = "+lora"  # behind a model type, in the place of a variant


@dataclass(frozen=True)
class Request:
    """Which model types (all of fixtures/models.toml if empty), where, and on which stack."""

    models: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    stack: str = TODAY
    workers: int = 1
    resume: bool = False


def architectures() -> dict[str, Architecture]:
    """The model types of fixtures/models.toml, in its order."""
    kinds = tomlkit.parse(LISTED.read_text(encoding="utf-8")).unwrap()
    return {name: Architecture(name, cls, kind) for kind, entries in kinds.items() for name, cls in entries.items()}


def run(request: Request) -> int:
    """Check every model type, print what differs, and write it down; exit code 1 if a difference has no known failure.

    A model type that no batch can be made for, or that one process can't train, is listed with the reason.
    """
    cells = cells_of(request)
    environment = environments.chosen(request.stack, "")
    asked = "" if request.stack == TODAY else request.stack
    models = {"models": request.models}
    folder, known = storage.begun(NAME, cells, environment.versions, models, asked, request.resume)
    missing = measurement.without(cells, known)
    with tempfile.TemporaryDirectory(prefix="faultline-models-") as configs:
        checking = functools.partial(run_cell, targets(Path(configs)))
        batch = Batch(missing, environment, folder, known, run=checking)
        measurement.measure([batch], request.workers, wrong=UNLIKE_ALONE)
    folder.describe(finished=True)
    return finish(folder)


def finish(folder: RunFolder) -> int:
    """Record a run and print its answer."""
    entries = folder.results()
    rows = [models_record.summary(architecture, lora, cells) for architecture, lora, cells in by_model(entries)]
    for row in models_record.record(rows, folder.info().asked or TODAY, [*architectures()]):
        print(f"{row.name}: not recorded, as its record has more cells")
    if not folder.info().asked:
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
        models = targets(Path(configs))
        for file, entry in ((file, by_id[name]) for file, name in wanted.items() if name in by_id):
            file.parent.mkdir(exist_ok=True)
            try:
                file.write_text(script.write(models[entry.cell.variant], entry, file, sys.executable), encoding="utf-8")
            except NotExportable as error:
                print(error)
    for file in models_page.SCRIPTS.glob("*.py"):
        if file not in wanted:
            file.unlink()


def by_model(entries: Collection[Result]) -> list[tuple[Architecture, bool, list[Result]]]:
    """Results by model type and adapter, in the order of the list."""
    every = architectures()
    cells: dict[tuple[str, bool], list[Result]] = {}
    for entry in entries:
        name = entry.cell.variant.removesuffix(ADAPTED)
        cells.setdefault((name, entry.cell.variant.endswith(ADAPTED)), []).append(entry)
    return [(every[name], lora, cells[name, lora]) for name in every for lora in (False, True) if (name, lora) in cells]


def cells_of(request: Request) -> list[Cell]:
    """The cells of a request; raises UsageError for a model type that the list doesn't have."""
    every = architectures()
    for name in request.models:
        if name not in every:
            raise unknown("model", name, [*every])
    names = request.models or tuple(every)
    selection = replace(request.selection, strategy=request.selection.strategy or sampling.under())
    variants = tuple(Variant(f"{name}{adapter}") for name in names for adapter in ("", ADAPTED))
    cells = select({NAME: Failure("", "", "", {}, variants, {}, name=NAME)}, selection)
    if not cells:
        raise UsageError("no cell matches all of these options")
    return cells


def targets(folder: Path) -> dict[str, CheckTarget]:
    """What `check` is given for each model type, with and without an adapter: a config that names type and class.

    The rest of it is what the type's config has by default.
    """
    made = {}
    for each in architectures().values():
        file = folder / each.model_type / "config.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"model_type": each.model_type, "architectures": [each.model_class]}))
        made[each.model_type] = CheckTarget(file, "", {})
        made[each.model_type + ADAPTED] = CheckTarget(file, "", LORA)
    return made


def run_cell(models: Mapping[str, CheckTarget], server: RankServer, references: References, cell: Cell) -> Result:
    """One cell of one model type; what one process can't build or train is `impossible`, with the reason."""
    try:
        return checked_cell.run(models[cell.variant], server, references, cell)
    except TargetFailed as failed:
        judged = oracle.Judgement(Outcome.IMPOSSIBLE, models_record.REFUSED, str(failed))
        return results.result(cell, judged, Ended([]), server.versions, Expectation(Outcome.TRAINS), "expected")
