"""What a program sets itself, after its arguments were read or in place of their defaults."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from faultline.audit.engines import IN_CODE, NORM, SHARDED, UNNAMED, Statement
from faultline.projects.documents import Document, Place

# Attributes and fields of arguments, and what they decide.
DECIDES = {"gradient_checkpointing_kwargs": UNNAMED, "max_grad_norm": NORM}
# Methods, and what they decide, the first if they are given anything.
METHODS = {"gradient_checkpointing_enable": UNNAMED, "set_state_dict_type": SHARDED}
ARGUMENTS = re.compile(r"(?:TrainingArguments|Config)$")
Tests = tuple[ast.expr, ...]


def read(document: Document, tree: ast.AST) -> Iterator[Statement]:
    """What is set; of checkpointing the mode, where it is a literal and only asked for with checkpointing itself."""
    if not any(name in document.text for name in (*DECIDES, *METHODS)):
        return
    for node, tests in _nodes(tree):
        place = replace(document.place(getattr(node, "lineno", 1)), text="set in code")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and (axis := DECIDES.get(target.attr)):
                yield _set(axis, getattr(node, "value", None), tests, place)
        if isinstance(node, ast.ClassDef) and any(ARGUMENTS.search(ast.unparse(base)) for base in node.bases):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value]
            names = [getattr(each.target, "id", "") for each in fields]
            yield from (Statement(IN_CODE, frozenset([DECIDES[name]]), place) for name in names if name in DECIDES)
        called = node.func if isinstance(node, ast.Call) and (node.args or node.keywords) else None
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            yield Statement(IN_CODE, frozenset([METHODS[called.attr]]), place)


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, Tests]]:
    """Every node in the order of the file, with the conditions that it stands under."""
    left: list[tuple[ast.AST, Tests]] = [(tree, ())]
    while left:
        node, tests = left.pop()
        yield node, tests
        under = (*tests, node.test) if isinstance(node, ast.If) else tests
        left += [(each, under) for each in reversed([*ast.iter_child_nodes(node)])]


def _set(axis: str, value: ast.expr | None, tests: Tests, place: Place) -> Statement:
    """That a program decides an axis, or how."""
    try:
        given = ast.literal_eval(value) if axis == UNNAMED and value else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        given = None
    reentrant = given.get("use_reentrant") if isinstance(given, dict) else None
    if isinstance(reentrant, bool) and all("gradient_checkpointing" in ast.unparse(test) for test in tests):
        mode = "reentrant" if reentrant else "non-reentrant"
        return Statement("checkpointing", frozenset(["off", mode]), place)
    return Statement(IN_CODE, frozenset([axis]), place)
