"""Functions fitted to their calls: what all of them pass is decided, and what one expression says is put there."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import libcst as cst

from faultline.export.evaluate import constant, evaluate
from faultline.export.fold import fold
from faultline.export.names import argument, code, parameters, pruned, tree, used
from faultline.export.read import Module, Sources
from faultline.export.splice import Inline, Splice, ends_in_return, only_expression

Placed = tuple[str, Module, str]
"""A definition: its module's name, its module, its own name."""


class Uses(cst.CSTVisitor):
    """All calls of functions by their names, and how often each name is there at all."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[cst.Call]] = {}
        self.times: dict[str, int] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Name):
            self.calls.setdefault(node.func.value, []).append(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False  # its own name is no function's

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.times[node.value] = self.times.get(node.value, 0) + 1


@functools.lru_cache(10_000)  # nodes never change
def uses_in(node: cst.CSTNode) -> Uses:
    found = Uses()
    node.visit(found)
    return found


def without_idle_methods(order: list[Placed], start: Module) -> None:
    """Take methods away from modules whose name nothing says; a leading underscore means that a library asks."""
    nodes = [module.definitions[name] for _, module, name in order] + list(start.definitions.values())
    said = Counter(attribute for node in nodes for attribute in _attributes(node))
    for _, module, name in order:
        node = module.definitions[name]
        if isinstance(node, cst.ClassDef) and any(code(base.value).endswith("Module") for base in node.bases):
            kept = [
                each
                for each in node.body.body
                if not isinstance(each, cst.FunctionDef)
                or each.name.value == "forward"
                or said[each.name.value] > _attributes(each).count(each.name.value)  # not just its own
                or each.name.value.startswith("_")
            ]
            module.definitions[name] = node.with_changes(body=node.body.with_changes(body=kept))


def _attributes(node: cst.CSTNode) -> list[str]:
    return [each.attr for each in ast.walk(tree(node)) if isinstance(each, ast.Attribute)]


def fit(order: list[Placed], start: Module, sources: Sources) -> bool:
    """Change one function together with its calls; says whether there was anything to change."""
    places = [*((module, name) for _, module, name in order), *((start, name) for name in start.definitions)]
    found = {(id(module), name): uses_in(module.definitions[name]) for module, name in places}
    uses = Uses()
    for each in found.values():
        for name, calls in each.calls.items():
            uses.calls.setdefault(name, []).extend(calls)
        for name, times in each.times.items():
            uses.times[name] = uses.times.get(name, 0) + times
    for place, module, name in order:
        function, calls = module.definitions[name], uses.calls.get(name, [])
        if not isinstance(function, cst.FunctionDef):
            continue
        if not calls or uses.times[name] != len(calls) + 1 or any(a.star == "*" for c in calls for a in c.args):
            continue  # also handed on as a value
        cut = decided(function, calls, sources.constants(place), sources.tables(place))
        change: Cut | Inline | Splice
        if cut:
            module.definitions[name], change = cut
        elif function.decorators or len(calls) != 1 or _takes_any(function):
            continue
        elif (expression := only_expression(function)) is not None:
            change = Inline(function, expression)
        elif ends_in_return(function):
            change = Splice(function)
        else:
            continue
        for owner, other in places:
            if name not in found[id(owner), other].calls or (other == name and not isinstance(change, Cut)):
                continue
            before = owner.definitions[other]
            after = before.visit(change)
            assert isinstance(after, cst.CSTNode)
            owner.definitions[other] = after
            if not isinstance(change, Cut) and after is not before:
                for free in change.free:  # known there by where they come from
                    known_here = (place, free) if free in module.definitions else module.imports.get(free)
                    if known_here:
                        owner.imports.setdefault(free, known_here)
        if not isinstance(change, Cut) and not change.done:
            continue
        return True
    return False


def _takes_any(function: cst.FunctionDef) -> bool:
    """Whether a function has ``*args`` or ``**kwargs``."""
    return isinstance(function.params.star_arg, cst.Param) or isinstance(function.params.star_kwarg, cst.Param)


def decided(
    function: cst.FunctionDef, calls: list[cst.Call], known: Mapping[str, Any], tables: Mapping[str, cst.Dict]
) -> tuple[cst.FunctionDef, Cut] | None:
    """The function without a parameter that is the same in all calls, or unused, and the change to the calls."""
    name = function.name.value
    if isinstance(function.params.star_kwarg, cst.Param):
        own = parameters(function)
        extra = [a for c in calls for a in c.args if a.star or (a.keyword and a.keyword.value not in own)]
        if not extra:
            rest = function.params.star_kwarg.name.value
            less = function.visit(WithoutRest(rest))
            assert isinstance(less, cst.FunctionDef)
            return less.with_changes(params=less.params.with_changes(star_kwarg=None)), Cut(name, -1, "")
        return None
    if any(a.star for c in calls for a in c.args):
        return None
    for position, parameter in enumerate(parameters(function)):
        if not used(function, parameter):
            return pruned(function, [parameter]), Cut(name, position, parameter)
        value = shared(function, calls, position, parameter)
        if value is not None:
            folded = fold(function, {**known, parameter: evaluate(value, {})}, tables)
            return pruned(folded, [parameter]), Cut(name, position, parameter)
    return None


def shared(
    function: cst.FunctionDef, calls: list[cst.Call], position: int, parameter: str
) -> cst.BaseExpression | None:
    """The one choice (a text, a yes or no, None, or the default) that all calls make for a parameter, if they do."""
    default = {p.name.value: p.default for p in (*function.params.params, *function.params.kwonly_params)}[parameter]
    given = [argument(call, position, parameter) for call in calls]
    values = [a.value if a else default for a in given]
    if any(value is None or not constant(value) for value in values):
        return None
    choices = [evaluate(value, {}) for value in values if value is not None]
    if any(choice != choices[0] for choice in choices):
        return None
    kinds = str | bool | None if any(given) else str | bool | int | None
    return values[0] if isinstance(choices[0], kinds) else None


class Cut(cst.CSTTransformer):
    """Takes one argument away from each call of a function."""

    def __init__(self, function: str, position: int, parameter: str) -> None:
        super().__init__()
        self.function, self.position, self.parameter = function, position, parameter

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not (isinstance(updated.func, cst.Name) and updated.func.value == self.function) or self.position < 0:
            return updated
        given = argument(updated, self.position, self.parameter)
        kept = [a for a in updated.args if a is not given]
        return updated.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept])


class WithoutRest(cst.CSTTransformer):
    """Takes ``**name`` away wherever it is handed on."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        kept = [a for a in updated.args if not (a.star == "**" and code(a.value) == self.name)]
        return updated.with_changes(args=kept) if len(kept) < len(updated.args) else updated

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        kept = [
            element
            for element in updated.elements
            if not (isinstance(element, cst.StarredDictElement) and code(element.value) == self.name)
        ]
        return updated.with_changes(elements=kept) if len(kept) < len(updated.elements) else updated
