"""Each room says what it is for, and which of its modules others may use; the code holds to it."""

import ast
from collections import defaultdict

from faultline.base.paths import ROOT

HOUSES = ("faultline", "lab", "website")  # of which the last has no rooms
ROOMS = sorted(f"{house}.{file.parent.name}" for house in HOUSES for file in (ROOT / house).glob("*/__init__.py"))


def imported(file):
    """Our own modules that a file names in its imports, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in HOUSES:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def entrances():
    """For each room, its modules that files outside of it import."""
    used = defaultdict(set)
    for file in (file for house in HOUSES for file in (ROOT / house).rglob("*.py")):
        here = ".".join(file.relative_to(ROOT).parts[:2])
        for name in imported(file):
            house, room, module = [*name.split("."), "", ""][:3]
            if (room := f"{house}.{room}") in ROOMS and room != here and module_of(room, module):
                used[room].add(module)
    return used


def folder(room):
    return ROOT / room.replace(".", "/")


def module_of(room, name):
    return bool(name) and any((folder(room) / file).exists() for file in (f"{name}.py", f"{name}/__init__.py"))


def test_a_room_names_its_entrances():
    """Breaks when a room is used through a module that its first lines don't name, or names one that nobody uses."""
    used, named = entrances(), {}
    for room in ROOMS:
        text = ast.get_docstring(ast.parse((folder(room) / "__init__.py").read_text())) or ""
        purpose, _, modules = text.partition("For others: ")
        assert purpose.strip().endswith("."), f"what is {room} for?"
        named[room] = {name for each in modules.partition("\n\n")[0].split(",") if (name := each.strip(" `\n."))}
    assert named == {room: used[room] for room in ROOMS}
