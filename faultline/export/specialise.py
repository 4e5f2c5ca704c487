"""A failure's own function, made into the one that its cell runs."""

import ast
import importlib.util
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst

from faultline import strategies
from faultline.base.errors import NotConstant, NotExportable
from faultline.catalogue import Variant
from faultline.cells.cell import Cell
from faultline.export.cell import COMPARED, ExportedCell
from faultline.export.evaluate import evaluate
from faultline.export.names import Change, code, only_result, pruned, used, visited
from faultline.export.parse import Sources
from faultline.export.special_cases import CHANGED_CONFIG, COMPARABLE, FROM_TRL, SIMPLER
from faultline.strategies import ROWS

# What a scenario builds, in the order of its fields, and what else it says, which has to be constant.
PARTS = ("model", "loss", "batch", "check", "checkpoint", "around", "second", "by_hand", "optimizer", "before_step")
HALVES = ("keep", "resume")  # what it builds for a life in two halves
CONSTANTS = ("deepspeed", "accelerate", "micro_batches")


@dataclass(frozen=True)
class Built:
    """What is left of a failure's function: its statements, and the expression of each part that it returns.

    `deepspeed` is what it changes in the strategy's config; `setup` says whether it reads anything of its setup.
    `accelerate` and `micro_batches` are as the scenario has them.
    """

    statements: str
    parts: Mapping[str, str]
    setup: bool
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    accelerate: bool = False
    micro_batches: int = 1


def specialised(place: ExportedCell) -> tuple[Sources, str, Built]:
    """The modules that a file is made of, what it looks for, and its failure's function for its variant."""
    cell, variant, kind = place.cell, place.variant, place.kind
    compared = kind in COMPARED
    # What goes wrong at once needs no other rows at later steps, though a trainer may need two micro-batches of them.
    rows = 10**6 if compared else ROWS * 2 if variant.trainer else ROWS
    sources = Sources(place.folder, rows)
    for module, name, simpler in SIMPLER if not compared else () if variant.trainer else COMPARABLE:
        definitions = sources[module].definitions
        definitions[name] = definitions[simpler].with_changes(name=cst.Name(name))
    if variant.trainer:
        built = trainer(sources, cell, variant, None if compared else strategies.family(cell.strategy).argument_names)
    else:
        function = _folded(sources, "scenario", {"remedy": variant.remedy, "setup": _setup(cell, compared)})
        known = sources.constants("failure")
        if kind == "trains" and "second" in parts(function, PARTS, known).parts:
            kind = "misplaced"
        whole = {*PARTS, *HALVES} if cell.life == "resumed" else {*PARTS}
        wanted = {"model", "second", "checkpoint"} if kind == "misplaced" else whole
        built = parts(function, wanted - ({"checkpoint"} if cell.checkpointing == "off" else set()), known)
    for name in ("save", "load") if place.saves else ():
        decided = _folded(sources, name, {"variant": variant})
        sources["failure"].definitions[name] = pruned(decided, ["variant"])
    return sources, kind, built


def parts(function: cst.FunctionDef, wanted: Collection[str], known: Mapping[str, Any]) -> Built:
    """What a scenario builds, as far as it is wanted and there; `known` are its module's constants."""
    call = result(function)
    if not isinstance(call, cst.Call) or code(call.func) != "Scenario":
        raise NotExportable("its scenario doesn't end with return Scenario(...)")
    given = {a.keyword.value if a.keyword else PARTS[i]: a.value for i, a in enumerate(call.args)}
    others = {name: evaluate(given[name], known) for name in CONSTANTS if name in given}
    chosen = {n: given[n] for n in (*PARTS, *HALVES) if n in wanted and n in given and code(given[n]) != "None"}
    returned = cst.SimpleStatementLine([cst.Return(cst.Tuple([cst.Element(value) for value in chosen.values()]))])
    body = function.body.with_changes(body=[*function.body.body[:-1], returned])
    function = pruned(function.with_changes(body=body))
    values = {name: code(value) for name, value in chosen.items()}
    return Built(_statements(function), values, used(function, "setup"), **others)


def gives_back(source: str, name: str) -> bool:
    """Whether the function of that name in a source may return something."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name]
    returns = [each for node in functions for each in ast.walk(node) if isinstance(each, ast.Return)]
    return any(each.value is not None and ast.unparse(each.value) != "None" for each in returns)


def trainer(sources: Sources, cell: Cell, variant: Variant, arguments: tuple[str, ...] | None) -> Built:
    """The failure's `trainer` for one variant, with TRL's classes imported from where they are.

    `arguments` are the names of those that the strategy gives; None if the file also trains without it.
    """
    known: dict[str, object] = {"variant": variant, "setup": _setup(cell, arguments is None)}
    if arguments is not None:
        known["arguments"] = frozenset(arguments)  # a dictionary of which only the keys are known
    function = _folded(sources, "trainer", known)
    helpers = TrainerHelpers(sources)
    function = pruned(visited(function, helpers))
    return Built(_statements(function), {"built": code(result(function))}, used(function, "setup"), helpers.deepspeed)


def _setup(cell: Cell, compared: bool) -> SimpleNamespace:
    """What is known of where a rank finds itself: how many there are only where there is no other run."""
    world = (
        {}
        if compared
        else {
            "world_size": cell.world_size,
            "data_world": strategies.data_world(cell.strategy, cell.world_size),
        }
    )
    return SimpleNamespace(checkpointing=cell.checkpointing, precision=cell.precision, **world)


def _folded(sources: Sources, name: str, known: Mapping[str, Any]) -> cst.FunctionDef:
    function = sources["failure"].definitions.get(name)
    if not isinstance(function, cst.FunctionDef):
        raise NotExportable(f"its failure.py has no function {name}")
    return sources.fold("failure", function, known)


def _statements(function: cst.FunctionDef) -> str:
    """What a function does before it returns, as source without indentation."""
    first = 0 if function.get_docstring() is None else 1
    return textwrap.dedent("".join(code(statement) for statement in function.body.body[first:-1])).strip("\n")


def result(function: cst.FunctionDef) -> cst.BaseExpression:
    """What a function returns at its end, and nowhere else."""
    if (value := only_result(function)) is None:
        raise NotExportable(f"its {function.name.value} doesn't end with one return")
    return value


class TrainerHelpers(Change):
    """Puts the class in the place of `from_trl`, and collects what `changed_config` changes; see `special_cases`."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self.imports = sources["failure"].imports
        self.known = sources.constants("failure")
        self.deepspeed: dict[str, object] = {}

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if code(updated.func) == CHANGED_CONFIG:
            try:
                self.deepspeed |= evaluate(updated.args[1].value, self.known)
            except NotConstant as why:
                reason = f"what its trainer changes in the DeepSpeed config is known only when it runs ({why})"
                raise NotExportable(reason) from None
            return updated.args[0].value
        if code(updated.func) != FROM_TRL:
            return updated
        try:
            package, name = (ast.literal_eval(code(argument.value)) for argument in updated.args)
        except ValueError:
            raise NotExportable("its trainer's class has no constant name") from None
        self.imports[name] = (home(package, name), name)
        return cst.Name(name)


def home(package: str, name: str) -> str:
    """The module of the installed TRL that has a class, found without importing it."""
    spec = importlib.util.find_spec("trl")
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return "trl" if f'"{name}"' in (folder / "__init__.py").read_text() else f"trl.experimental.{package}"
