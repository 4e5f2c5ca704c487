"""What a check found in one cell as one file, which builds the model again and needs nothing of this repository."""

import json
import re
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faultline import strategies
from faultline.base.errors import NotExportable, UsageError
from faultline.base.interpreters import ask, command
from faultline.base.packages import stack_name
from faultline.base.paths import PACKAGE
from faultline.base.text import one_line, plain, statements
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import FLOOR, STEPS, TOLERANCE, Cell
from faultline.check.findings import groups
from faultline.check.known import fine
from faultline.check.next_steps import modules
from faultline.check.target import CheckTarget
from faultline.ranks import preload, start
from faultline.ranks.job import Written, importable
from faultline.runs.results import Result
from faultline.runs.supervisor import inherited
from faultline.strategies import Setup

SHOWN = (Outcome.DIVERGES, Outcome.RAISES, Outcome.HANGS, Outcome.CRASHES)  # the silent one first
DEADLINE = 120  # seconds that ranks which hang may take
BEGINNING = 70  # characters of an error by which it is known again
TEMPLATES = Environment(
    loader=FileSystemLoader([PACKAGE / "check", PACKAGE / "strategies", PACKAGE / "export" / "templates"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # it is Python
)
TEMPLATES.globals |= {"statements": statements}
TEMPLATES.filters["tojson"] = json.dumps


def _file(cell: Cell) -> SimpleNamespace:
    """What the templates of strategies read of a file that compares a cell with one process."""
    return SimpleNamespace(
        cell=cell,
        compared=True,
        cuda=False,
        resumed=False,
        bf16=cell.precision == "bf16",
        options=strategies.options(cell.strategy),
        family=strategies.family(cell.strategy),
        setup=Setup(0, cell.world_size, cell.checkpointing, cell.precision, None, "", {}, strategy=cell.strategy),
        built=SimpleNamespace(deepspeed={}, parts={}, statements=""),
    )


def pick_result(results: Collection[Result]) -> Result:
    """The cell to show: the first that is silently wrong, else one that raises, hangs or crashes. Raises UsageError if
    there is none.

    One that no script can show is chosen only if there is no other.
    """
    wrong = [result for group in groups(results) for result in group.results if not fine(result)]
    wrong = [result for result in wrong if exportable(result)] or wrong
    for outcome in SHOWN:
        if there := [result for result in wrong if result.outcome == outcome]:
            return there[0]
    raise UsageError("there is nothing to export: no cell trains wrongly, raises an error, hangs or crashes")


def exportable(result: Result) -> bool:
    """Whether a script can show a cell: in one life, on the CPU, and not what a lack of memory may have ended, or what
    depends on random numbers."""
    cell = result.cell
    ends = result.outcome in SHOWN and result.signature not in ("SIGKILL", Signature.SILENT_EXIT)
    ends = ends and not (result.outcome == "diverges" and result.checked.facts.draws)
    return ends and cell.device == "cpu" and cell.life == "straight" and _template(cell).exists()


def _template(cell: Cell) -> Path:
    return strategies.family(cell.strategy).template


def write(target: CheckTarget, result: Result, file: Path, python: str) -> str:
    """The source of a file for a cell of a target; raises NotExportable for what a script can't show."""
    cell = result.cell
    if not exportable(result):
        raise NotExportable(
            "a script shows what happens on the CPU and in one go: no resumed life, and no rank that was killed",
            cell.id,
        )
    written = _describe(target, cell, python)
    if written.refused:
        raise NotExportable(written.refused, cell.id)
    module, folders = importable(target.file, target.path)
    of = _file(cell)
    text = TEMPLATES.get_template("script.py.j2").render(
        template=_template(cell).name,
        file=of,
        cell=cell,
        name=file.name,
        function=target.function,
        path=str(target.file),
        module=module,
        folders=folders,
        cwd=str(Path.cwd()),
        lora=dict(target.lora),
        written=written,
        bf16=of.bf16,
        autocast=of.bf16 and not strategies.family(cell.strategy).casts,
        title=_in_docstring(f"{result.checked.facts.model} trains otherwise than in one process."),
        detail=_in_docstring(result.detail),
        only=" ".join(f"`--only {name}`" for name in modules([result])),
        versions=stack_name(result.stack),
        wanted=beginning(result) if result.outcome == Outcome.RAISES else "",
        ends={Outcome.HANGS: "hangs", Outcome.CRASHES: result.signature}.get(Outcome(result.outcome), ""),
        DEADLINE=DEADLINE,
        STEPS=STEPS,
        TOLERANCE=TOLERANCE[cell.precision],
        FLOOR=FLOOR[cell.precision],
    )
    return text.lstrip("\n")


def beginning(result: Result) -> str:
    """How a cell's error begins, with each number as 0: rows and ranks differ in them."""
    error = result.error
    text = f"{error.type.rpartition('.')[2]}: {error.message}" if error else result.detail
    return re.sub(r"\d+", "0", text)[:BEGINNING]


def _in_docstring(text: str) -> str:
    return plain(one_line(text)).replace("\\", "/").replace('"', "'")


def _describe(target: CheckTarget, cell: Cell, python: str) -> Written:
    """What the interpreter of the stack says of a target."""
    done = ask(
        command(python, start.__file__, "faultline.ranks.own_model.description"),
        json.dumps(asdict(target.for_ranks(cell))),
        inherited(python) | preload.environment(cell.device) | {start.IN_RANKS: "1"},
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise NotExportable(one_line((done.stderr.splitlines() or ["it gave no answer"])[-1]), cell.id)
    return msgspec.convert(json.loads(lines[-1]), Written)
