"""Each room says what it is for, and which of its modules others may use; the code holds to it."""

import ast
from collections import defaultdict

from faultline.base.paths import ROOT

PACKAGE = ROOT / "faultline"
ROOMS = sorted(folder.parent.name for folder in PACKAGE.glob("*/__init__.py"))


def imported(file):
    """The modules of Faultline that a file names in its imports, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("faultline"):
            yield from (f"{node.module}.{each.name}" for each in node.names)


def entrances():
    """For each room, its modules that files outside of it import."""
    used = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        here = file.relative_to(PACKAGE).parts[0]
        for name in imported(file):
            room, module = [*name.split("."), "", ""][1:3]
            if room in ROOMS and room != here and module_of(room, module):
                used[room].add(module)
    return used


def module_of(room, name):
    return bool(name) and any((PACKAGE / room / file).exists() for file in (f"{name}.py", f"{name}/__init__.py"))


def test_a_room_names_its_entrances():
    """Breaks when a room is used through a module that its first lines don't name, or names one that nobody uses."""
    used, named = entrances(), {}
    for room in ROOMS:
        text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
        purpose, _, modules = text.partition("For others: ")
        assert purpose.strip().endswith("."), f"what is {room} for?"
        named[room] = {name for each in modules.partition("\n\n")[0].split(",") if (name := each.strip(" `\n."))}
    assert named == {room: used[room] for room in ROOMS}
