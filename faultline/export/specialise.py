"""A failure's own function, made into the one that its cell runs."""

import ast
import contextlib
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from faultline import strategies
from faultline.base.errors import NotConstant, NotExportable
from faultline.export.cell import COMPARED, ExportedCell
from faultline.export.decide import without_unused
from faultline.export.modules import Sources
from faultline.export.names import code, evaluate, loads, only_result, statements
from faultline.export.program import without
from faultline.strategies import ROWS

# What a scenario builds, in the order of its fields, and what else it says, which has to be constant.
PARTS = "model loss batch check checkpoint around second by_hand optimizer scheduler before_step".split()
HALVES = ("keep", "resume")  # what it builds for a life in two halves
CONSTANTS = ("deepspeed", "accelerate", "micro_batches", "last_window")
# Functions with a simpler twin, by module: for scenarios that compare numbers, and for files that need not.
COMPARABLE = (("tiny_models.data", "text_rows", "uneven_rows"),)
SIMPLER = (
    ("tiny_models.data", "text_rows", "random_rows"),
    ("tiny_models.data", "sliced_image_batch", "random_slices"),
    ("faultline.scenario", "token_batch", "random_batch"),
)


@dataclass(frozen=True)
class Built:
    """What is left of a failure's function: its statements, and the expression of each part that it returns.

    `deepspeed` is what it changes in the strategy's config; `setup` says whether it reads anything of its setup.
    `accelerate`, `micro_batches` and `last_window` are as the scenario has them on several ranks.
    """

    statements: str
    parts: Mapping[str, str]
    setup: bool
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    accelerate: bool = False
    micro_batches: int = 1
    last_window: int = 0


def specialise(place: ExportedCell) -> tuple[Sources, str, Built]:
    """The modules that a file is made of, what it looks for, and its failure's function for its variant."""
    cell, variant, kind = place.cell, place.variant, place.kind
    compared = kind in COMPARED
    # What goes wrong at once needs no other rows at later steps, though a trainer may need two micro-batches of them.
    rows = 10**6 if compared else ROWS * 2 if variant.trainer else ROWS
    sources = Sources(place.folder, rows)
    for module, name, simpler in SIMPLER if not compared else () if variant.trainer else COMPARABLE:
        twin = deepcopy(sources[module].definitions[simpler])
        sources[module].definitions[name], twin.name = twin, name
    # How many ranks there are is known only where there is no other run.
    world = {"world_size": cell.world_size, "data_world": strategies.data_world(cell.strategy, cell.world_size)}
    alone = {} if compared else {**world, "reference": False}
    setup = SimpleNamespace(checkpointing=cell.checkpointing, precision=cell.precision, **alone)
    known = {"variant": variant, "remedy": variant.remedy, "setup": setup}
    constants = sources.constants("failure")
    if variant.trainer:
        # Of the arguments, the names that the strategy gives; none are known if the file trains without it too.
        given = strategies.family(cell.strategy).argument_names
        names = {} if compared else {"arguments": frozenset(given)}
        built = trainer(decide_function(sources, "trainer", known | names), constants)
    else:
        function = decide_function(sources, "scenario", known)
        if kind == "trains" and "second" in scenario(function, PARTS, constants).parts:
            kind = "misplaced"
        whole = {*PARTS, *HALVES} if cell.life == "resumed" else {*PARTS}
        wanted = {"model", "second", "checkpoint"} if kind == "misplaced" else whole
        built = scenario(function, wanted - ({"checkpoint"} if cell.checkpointing == "off" else set()), constants)
    for name in ("save", "load") if place.saves else ():
        function = sources["failure"].definitions[name] = decide_function(sources, name, known)
        without(function.args, "variant")
    return sources, kind, built


def decide_function(sources: Sources, name: str, known: Mapping[str, Any]) -> ast.FunctionDef:
    """A function of the failure, with what is known of its parameters decided."""
    function = sources["failure"].definitions.get(name)
    if not isinstance(function, ast.FunctionDef):
        raise NotExportable(f"its failure.py has no function {name}")
    parameters = [each.arg for each in function.args.args]
    decided: ast.FunctionDef = sources.decide("failure", function, {n: v for n, v in known.items() if n in parameters})
    return decided


def scenario(function: ast.FunctionDef, wanted: Collection[str], known: Mapping[str, Any]) -> Built:
    """What a scenario builds, as far as it is wanted and there; `known` are its module's constants."""
    function = deepcopy(function)
    call = result(function)
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Scenario":
        raise NotExportable("its scenario doesn't end with return Scenario(...)")
    assigned = {ast.unparse(e.targets[0]): e.value for e in ast.walk(function) if isinstance(e, ast.Assign)}
    given = dict(zip(PARTS, call.args, strict=False))
    for each in call.keywords:
        value = assigned.get(ast.unparse(each.value), each.value)
        pairs = zip(value.keys, value.values, strict=True) if not each.arg and isinstance(value, ast.Dict) else ()
        given |= {str(each.arg): each.value, **{key.value: item for key, item in pairs}}  # type: ignore[union-attr]
    for name, value in assigned.items():
        with contextlib.suppress(NotConstant):
            known = {**known, name: evaluate(value, known)}
    given = {n: v for n, v in given.items() if ast.unparse(assigned.get(ast.unparse(v), v)) not in ("None", "{}")}
    if beyond := given.keys() - {*PARTS, *HALVES, *CONSTANTS, "same_rows"}:
        raise NotExportable(f"a file by itself has no {' and no '.join(sorted(beyond))} of a scenario")
    aside = {**known, "setup": SimpleNamespace(reference=False)}  # only ranks train through accelerate
    places = {name: aside if name == "accelerate" else known for name in CONSTANTS if name in given}
    others = {name: evaluate(given[name], place) for name, place in places.items()}
    chosen = {name: given[name] for name in (*PARTS, *HALVES) if name in wanted and name in given}
    function.body[-1] = ast.Return(ast.Tuple([*chosen.values()], ast.Load()))
    without_unused(function, {name for name in loads(call) if isinstance(assigned.get(name), ast.Dict)})
    parts = {name: code(value) for name, value in chosen.items()}
    return Built(code(*statements(function)[:-1]), parts, bool(loads(function)["setup"]), **others)


class Changes(ast.NodeTransformer):
    """Takes away the calls of `changed_config`, and collects what they change: a part of the file's own config."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known, self.deepspeed = known, dict[str, Any]()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "changed_config":
            return node
        try:
            self.deepspeed |= evaluate(node.args[1], self.known)
        except NotConstant as why:
            reason = f"what its trainer changes in the DeepSpeed config is known only when it runs ({why})"
            raise NotExportable(reason) from None
        return node.args[0]


def trainer(function: ast.FunctionDef, known: Mapping[str, Any]) -> Built:
    """What is left of the failure's `trainer` for one variant."""
    changes = Changes(known)
    changes.visit(function)
    without_unused(function, set())
    parts = {"built": code(result(function))}
    return Built(code(*statements(function)[:-1]), parts, bool(loads(function)["setup"]), changes.deepspeed)


def gives_back(source: str, name: str) -> bool:
    """Whether the function of that name in a source may return something."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name]
    returns = [each for node in functions for each in ast.walk(node) if isinstance(each, ast.Return)]
    return any(each.value is not None and ast.unparse(each.value) != "None" for each in returns)


def result(function: ast.FunctionDef) -> ast.expr:
    """What a function returns at its end, and nowhere else."""
    if (value := only_result(function)) is None:
        raise NotExportable(f"its {function.name} doesn't end with one return")
    return value
