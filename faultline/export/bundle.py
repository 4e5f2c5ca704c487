"""One file from several modules: what a main part uses of them, in their order, and nothing else."""

import ast
from collections.abc import Iterable

import libcst as cst

from faultline.base.errors import UsageError
from faultline.export.fold import fold
from faultline.export.names import code, outside, tree
from faultline.export.parse import Module, Sources, ours, read
from faultline.export.specialise_calls import Placed, fit, without_idle_methods

CONSTANT, DEFINITION, ALIAS = range(3)


def bundle(sources: Sources, main: str, trainer: bool) -> tuple[set[str], str]:
    """The lines that import what isn't ours, and all definitions that `main` uses, with itself at the end.

    A trainer may call any method of a model. Raises UsageError if two things would have one name.
    """
    start = read(main)
    folded: set[tuple[str, str]] = set()
    while True:
        order = reachable(sources, start)
        new = [(place, module, name) for place, module, name in order if (place, name) not in folded]
        for place, module, name in new:
            folded.add((place, name))
            node = module.definitions[name]
            if isinstance(node, cst.FunctionDef):
                module.definitions[name] = fold(
                    node, sources.constants(place), sources.tables(place), sources.numbers(place)
                )
        if not new and not fit(order, start, sources) and (trainer or not without_idle_methods(order, start)):
            break
    nodes = [(module, module.definitions[name]) for _, module, name in order]
    nodes += [(start, node) for node in start.definitions.values()]
    imports: dict[str, tuple[str, str]] = {}
    for module, node in nodes:
        for name in outside(node):
            origin = module.imports.get(name)
            if origin and not ours(origin[0]) and imports.setdefault(name, origin) != origin:
                raise UsageError(f"this cell can't be exported: two things in it are named {name}")
    parts = sorted(((_place(node), code(node).strip("\n")) for _, node in nodes), key=lambda part: part[0])
    constants = "\n".join(text for place, text in parts if place == CONSTANT)
    others = [text for place, text in parts if place != CONSTANT]
    return {line(name, *origin) for name, origin in imports.items()}, "\n\n".join([constants, *others])


def _place(node: cst.CSTNode) -> int:
    """Where a definition stands: constants, which need only each other, are first, other names of functions last."""
    if not isinstance(node, cst.SimpleStatementLine):
        return DEFINITION
    value = getattr(node.body[0], "value", None)
    if isinstance(value, cst.Name) and value.value.islower():
        return ALIAS
    calls = any(isinstance(each, ast.Call) and isinstance(each.func, ast.Name) for each in ast.walk(tree(node)))
    return DEFINITION if calls else CONSTANT


def line(local: str, module: str, attribute: str) -> str:
    if attribute == "import":
        return f"import {module}"
    if not attribute:
        return f"import {module} as {local}"
    return f"from {module} import {attribute}" + (f" as {local}" if local != attribute else "")


def reachable(sources: Sources, start: Module) -> list[Placed]:
    """The definitions that a main part uses, by module, and those that use others behind them."""
    needed: dict[str, set[str]] = {}
    owners: dict[str, str] = {}
    done: list[str] = []

    def follow(module: Module, names: Iterable[str]) -> None:
        for name in names:
            place, attribute = module.imports.get(name, ("", ""))
            if place and ours(place) and name not in module.definitions:
                need(place, attribute)

    def need(place: str, name: str) -> None:
        module = sources[place]
        if name not in module.definitions:
            return follow(module, [name])
        if owners.setdefault(name, place) != place or name in start.definitions:
            raise UsageError(f"this cell can't be exported: two things in it are named {name}")
        if name in needed.setdefault(place, set()):
            return None
        needed[place].add(name)
        used_here = outside(module.definitions[name])
        follow(module, used_here)
        for other in used_here:
            if other in module.definitions:
                need(place, other)
        if place not in done:
            done.append(place)
        return None

    for node in start.definitions.values():
        follow(start, outside(node))
    return [
        (place, sources[place], name) for place in done for name in sources[place].definitions if name in needed[place]
    ]
