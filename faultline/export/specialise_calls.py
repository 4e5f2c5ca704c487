"""Functions fitted to their calls: what all calls pass is decided, and a function with one call is put there."""

import ast
import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import libcst as cst
import libcst.matchers as m

from faultline.export.evaluate import constant, evaluate
from faultline.export.fold import fold
from faultline.export.inline import Inline, Splice, ends_in_return, only_expression
from faultline.export.names import argument, bindings, code, parameters, pruned, tree, used, visited
from faultline.export.parse import Module, Sources

Placed = tuple[str, Module, str]
"""A definition: its module's name, its module, its own name."""


@functools.lru_cache(10_000)  # nodes never change
def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """All calls of functions by their names."""
    return [call for call in m.findall(node, m.Call(func=m.Name())) if isinstance(call, cst.Call)]


@functools.lru_cache(10_000)
def names_in(node: cst.CSTNode) -> Counter[str]:
    """How often each name is used or bound."""
    return bindings(node) + Counter(each.id for each in ast.walk(tree(node)) if isinstance(each, ast.Name))


@functools.lru_cache(10_000)
def attributes_in(node: cst.CSTNode) -> Counter[str]:
    return Counter(each.attr for each in ast.walk(tree(node)) if isinstance(each, ast.Attribute))


def fit(order: list[Placed], start: Module, sources: Sources) -> bool:
    """Change one function together with its calls; return whether there was anything to change."""
    places = [*((module, name) for _, module, name in order), *((start, name) for name in start.definitions)]
    nodes = [module.definitions[name] for module, name in places]
    every = [call for node in nodes for call in calls_in(node)]
    times = sum(map(names_in, nodes), Counter[str]())
    for place, module, name in order:
        function, calls = module.definitions[name], [call for call in every if code(call.func) == name]
        if not isinstance(function, cst.FunctionDef) or not calls or times[name] != len(calls) + 1:
            continue  # or it is also handed on as a value, or there are two of the name
        if any(argument.star == "*" for call in calls for argument in call.args):
            continue
        if cut := decided(function, calls, sources.constants(place), sources.tables(place)):
            module.definitions[name], fewer = cut
            for owner, other in places:
                _change(owner, other, name, fewer)
            return True
        change = _moved(function) if len(calls) == 1 else None
        if change is None:
            continue
        for owner, other in places:
            if other != name and _change(owner, other, name, change):
                for free in change.free:  # known there by where they come from
                    known_here = (place, free) if free in module.definitions else module.imports.get(free)
                    if known_here:
                        owner.imports.setdefault(free, known_here)
        if change.done:
            return True
    return False


def _change(owner: Module, definition: str, name: str, change: cst.CSTTransformer) -> bool:
    """Change a definition that calls the function of that name; return whether it is another one now."""
    before = owner.definitions[definition]
    if all(code(call.func) != name for call in calls_in(before)):
        return False
    after = before.visit(change)
    assert isinstance(after, cst.CSTNode)
    owner.definitions[definition] = after
    return after is not before


def _moved(function: cst.FunctionDef) -> Inline | Splice | None:
    """The change that puts a function where it is called, if it can be."""
    takes_any = isinstance(function.params.star_arg, cst.Param) or isinstance(function.params.star_kwarg, cst.Param)
    if function.decorators or takes_any:
        return None
    if (expression := only_expression(function)) is not None:
        return Inline(function, expression)
    return Splice(function) if ends_in_return(function) else None


def without_idle_methods(order: list[Placed], start: Module) -> bool:
    """Take away the methods of torch modules that nothing calls; return whether there was one.

    `forward` and what begins with an underscore are called by libraries.
    """
    definitions = [*(module.definitions[name] for _, module, name in order), *start.definitions.values()]
    called = sum(map(attributes_in, definitions), Counter[str]())
    for _, module, name in order:
        node = module.definitions[name]
        if not isinstance(node, cst.ClassDef) or not any(code(base.value).endswith("Module") for base in node.bases):
            continue
        for method in node.body.body:
            method_name = method.name.value if isinstance(method, cst.FunctionDef) else "_"
            idle = called[method_name] == attributes_in(method)[method_name]  # or only by itself
            if idle and method_name != "forward" and not method_name.startswith("_"):
                module.definitions[name] = node.deep_remove(method)  # type: ignore[assignment]
                return True
    return False


class Cut(cst.CSTTransformer):
    """Takes one argument away from each call of a function; none if its position is negative."""

    def __init__(self, function: str, position: int, parameter: str) -> None:
        super().__init__()
        self.function, self.position, self.parameter = function, position, parameter

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not (isinstance(updated.func, cst.Name) and updated.func.value == self.function) or self.position < 0:
            return updated
        given = argument(updated, self.position, self.parameter)
        rest = [a for a in updated.args if a is not given]
        return updated.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in rest])


def decided(
    function: cst.FunctionDef, calls: list[cst.Call], known: Mapping[str, Any], tables: Mapping[str, cst.Dict]
) -> tuple[cst.FunctionDef, Cut] | None:
    """The function without a parameter that is the same in all calls, or unused, and the change to the calls."""
    name, rest = function.name.value, function.params.star_kwarg
    if isinstance(rest, cst.Param):
        by_name = parameters(function)
        if any(a.star or (a.keyword and a.keyword.value not in by_name) for c in calls for a in c.args):
            return None
        function = visited(function, WithoutRest(rest.name.value))
        function = function.with_changes(params=function.params.with_changes(star_kwarg=None))
        return function, Cut(name, -1, "")
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


class WithoutRest(cst.CSTTransformer):
    """Takes ``**name`` away wherever it is handed on."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        rest = [a for a in updated.args if not (a.star == "**" and code(a.value) == self.name)]
        return updated.with_changes(args=rest)

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        starred = cst.StarredDictElement
        rest = [e for e in updated.elements if not (isinstance(e, starred) and code(e.value) == self.name)]
        return updated.with_changes(elements=rest)
