"""The definitions that one file is made of: gathered from modules of ours, and put together as one text."""

import ast
from dataclasses import dataclass, field

import libcst as cst

from faultline.base.errors import NotExportable
from faultline.export.names import code, outside, tree
from faultline.export.parse import MAIN, Sources, ours


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
        """The definitions, with constants, which need only each other, in front of the others."""
        texts: dict[bool, list[str]] = {True: [], False: []}
        for node in self.definitions.values():
            texts[_constant(node)].append(code(node).strip("\n"))
        return "\n\n".join(["\n".join(texts[True]), *texts[False]])


def gather(sources: Sources, main: str) -> Program:
    """What a main part uses, each definition behind those that it uses itself, and the main part at the end.

    Raises NotExportable if two things would have one name.
    """
    sources.add_main(main)
    of_main = sources[MAIN].definitions
    program = Program(frozenset(of_main))
    places: dict[str, str] = {}  # of each definition

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
            node = sources.definition(place, name)
            others = outside(node)
            program.known |= {other: value for other, value in sources.constants(place).items() if other in others}
            for other in others:
                need(place, other)
            program.definitions[name] = node
        elif places[name] != place:
            raise NotExportable(f"two things in it are named {name}")

    for name in of_main:
        need(MAIN, name)
    others = {name: node for name, node in program.definitions.items() if name not in of_main}
    program.definitions = others | of_main
    return program


def _constant(node: cst.CSTNode) -> bool:
    """Whether a definition needs no function, of which it would be a value or another name."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    value = getattr(node.body[0], "value", None)
    alias = isinstance(value, cst.Name) and value.value.islower()
    calls = any(isinstance(each, ast.Call) and isinstance(each.func, ast.Name) for each in ast.walk(tree(node)))
    return not alias and not calls


def _line(local: str, module: str, attribute: str) -> str:
    if attribute == "import":
        return f"import {module}"
    if not attribute:
        return f"import {module} as {local}"
    return f"from {module} import {attribute}" + (f" as {local}" if local != attribute else "")
