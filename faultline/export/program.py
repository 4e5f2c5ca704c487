"""The definitions that one file is made of: gathered from modules of ours, and put together as one text."""

import ast
from dataclasses import dataclass, field

import libcst as cst

from faultline.base.errors import NotExportable
from faultline.export.names import code, outside, tree
from faultline.export.parse import MAIN, Sources, ours

CONSTANT, DEFINITION, ALIAS = range(3)


@dataclass
class Program:
    """All definitions of a file by their names, in their order, and what else is known of names in them.

    `main` are the names of the part that uses all others. `imports` has the module and attribute of what isn't ours,
    `known` the values of constants.
    """

    main: frozenset[str]
    definitions: dict[str, cst.CSTNode] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    known: dict[str, object] = field(default_factory=dict)

    def prune(self) -> None:
        """Leave away what nothing uses any more."""
        used = list(self.main)
        for name in used:
            used += [each for each in outside(self.definitions[name]) if each in self.definitions and each not in used]
        self.definitions = {name: node for name, node in self.definitions.items() if name in used}

    def import_lines(self) -> set[str]:
        names = {name for node in self.definitions.values() for name in outside(node)}
        return {_line(name, *self.imports[name]) for name in names & self.imports.keys()}

    def text(self) -> str:
        """The definitions: constants, which need only each other, are first, other names of functions last."""
        parts: dict[int, list[str]] = {CONSTANT: [], DEFINITION: [], ALIAS: []}
        for node in self.definitions.values():
            parts[_kind(node)].append(code(node).strip("\n"))
        return "\n\n".join(["\n".join(parts[CONSTANT]), *parts[DEFINITION], *parts[ALIAS]])


def gather(sources: Sources, main: str) -> Program:
    """What a main part uses, by module, and modules that use others behind them, with itself at the end.

    Raises NotExportable if two things would have one name.
    """
    sources.add_main(main)
    program = Program(frozenset(sources[MAIN].definitions))
    places: dict[str, str] = {}  # of each definition
    order: dict[str, None] = {}

    def need(place: str, name: str) -> None:
        module = sources[place]
        if name not in module.definitions:
            origin = module.imports.get(name, ("", ""))
            if ours(origin[0]):
                need(*origin)
            elif name in module.imports and program.imports.setdefault(name, origin) != origin:
                raise NotExportable(f"two things in it are named {name}")
        elif name not in places:
            places[name] = place
            others = outside(sources.definition(place, name))
            constants = sources.constants(place) if place != MAIN else {}
            program.known |= {other: constants[other] for other in others if other in constants}
            for other in sorted(others, key=module.definitions.__contains__):  # behind what is imported
                need(place, other)
            order.setdefault(place)
        elif places[name] != place:
            raise NotExportable(f"two things in it are named {name}")

    for name in sources[MAIN].definitions:
        need(MAIN, name)
    for place in sorted(order, key=MAIN.__eq__):
        of_place = {name: node for name, node in sources[place].definitions.items() if places.get(name) == place}
        program.definitions |= of_place
    return program


def _kind(node: cst.CSTNode) -> int:
    if not isinstance(node, cst.SimpleStatementLine):
        return DEFINITION
    value = getattr(node.body[0], "value", None)
    if isinstance(value, cst.Name) and value.value.islower():
        return ALIAS
    calls = any(isinstance(each, ast.Call) and isinstance(each.func, ast.Name) for each in ast.walk(tree(node)))
    return DEFINITION if calls else CONSTANT


def _line(local: str, module: str, attribute: str) -> str:
    if attribute == "import":
        return f"import {module}"
    if not attribute:
        return f"import {module} as {local}"
    return f"from {module} import {attribute}" + (f" as {local}" if local != attribute else "")
