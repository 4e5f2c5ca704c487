"""Functions fitted to their calls: what all calls pass is decided, and a function with one call is put there."""

import ast
import functools
from collections import Counter

import libcst as cst

from faultline.export.evaluate import constant, evaluate
from faultline.export.fold import Fold, fold
from faultline.export.inline import Inline, movable
from faultline.export.names import (
    Change,
    argument,
    bindings,
    code,
    parameters,
    pruned,
    tree,
    used,
    visited,
    within,
)
from faultline.export.parse import tables
from faultline.export.program import Program


@functools.lru_cache(10_000)  # nodes never change
def calls_in(node: cst.CSTNode) -> list[cst.Call]:
    """All calls of functions by their names."""
    return [each for each in within(node) if isinstance(each, cst.Call) and isinstance(each.func, cst.Name)]


@functools.lru_cache(10_000)
def names_in(node: cst.CSTNode) -> Counter[str]:
    """How often each name is used or bound."""
    return bindings(node) + Counter(each.id for each in ast.walk(tree(node)) if isinstance(each, ast.Name))


@functools.lru_cache(10_000)
def attributes_in(node: cst.CSTNode) -> Counter[str]:
    return Counter(each.attr for each in ast.walk(tree(node)) if isinstance(each, ast.Attribute))


def fit(program: Program, methods: bool) -> None:
    """Fit all functions to their calls, and leave away what nothing uses then; with `methods`, those of models too."""
    while _fit_one(program) or (methods and _without_idle_method(program)):
        program.prune()


def _fit_one(program: Program) -> bool:
    """Change one function together with its calls; return whether there was anything to change."""
    nodes = program.definitions.values()
    every = [call for node in nodes for call in calls_in(node)]
    times = sum(map(names_in, nodes), Counter[str]())
    for name, function in program.definitions.items():
        calls = [call for call in every if isinstance(call.func, cst.Name) and call.func.value == name]
        if name in program.main or not isinstance(function, cst.FunctionDef) or not calls:
            continue
        # It may also be handed on as a value, or there are two of the name.
        if times[name] != len(calls) + 1 or any(each.star == "*" for call in calls for each in call.args):
            continue
        if cut := decided(function, calls, program):
            program.definitions[name], fewer = cut
            _change_calls(program, name, fewer)
            return True
        if len(calls) == 1 and movable(function):
            move = Inline(function)
            _change_calls(program, name, move)
            if move.done:
                return True
    return False


def _change_calls(program: Program, name: str, change: cst.CSTTransformer) -> None:
    """Change all definitions that call the function of that name."""
    for caller, before in program.definitions.items():
        if any(code(call.func) == name for call in calls_in(before)):
            after = before.visit(change)
            assert isinstance(after, cst.CSTNode)
            program.definitions[caller] = after


def _without_idle_method(program: Program) -> bool:
    """Take away a method of a torch module that nothing calls; return whether there was one.

    `forward` and what begins with an underscore are called by libraries.
    """
    called = sum(map(attributes_in, program.definitions.values()), Counter[str]())
    for name, node in program.definitions.items():
        if not isinstance(node, cst.ClassDef) or not any(code(base.value).endswith("Module") for base in node.bases):
            continue
        for method in node.body.body:
            method_name = method.name.value if isinstance(method, cst.FunctionDef) else "_"
            idle = called[method_name] == attributes_in(method)[method_name]  # or only by itself
            if idle and method_name != "forward" and not method_name.startswith("_"):
                program.definitions[name] = node.deep_remove(method)  # type: ignore[assignment]
                return True
    return False


class Cut(Change):
    """Takes one argument away from each call of a function."""

    def __init__(self, function: str, position: int, parameter: str) -> None:
        super().__init__()
        self.function, self.position, self.parameter = function, position, parameter

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not (isinstance(updated.func, cst.Name) and updated.func.value == self.function):
            return updated
        given = argument(updated, self.position, self.parameter)
        rest = [a for a in updated.args if a is not given]
        return updated.with_changes(args=[a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in rest])


def decided(
    function: cst.FunctionDef, calls: list[cst.Call], program: Program
) -> tuple[cst.FunctionDef, cst.CSTTransformer] | None:
    """The function without a parameter that is the same in all calls, or unused, and the change to the calls."""
    name, rest = function.name.value, function.params.star_kwarg
    arguments = [each for call in calls for each in call.args]
    if isinstance(rest, cst.Param):
        if any(each.star or (each.keyword and each.keyword.value not in parameters(function)) for each in arguments):
            return None
        function = visited(function, Fold({rest.name.value: cst.Dict([])}, {}, {}))
        return function.with_changes(params=function.params.with_changes(star_kwarg=None)), cst.CSTTransformer()
    if any(each.star for each in arguments):
        return None
    for position, parameter in enumerate(parameters(function)):
        if not used(function, parameter):
            return pruned(function, [parameter]), Cut(name, position, parameter)
        value = shared(function, calls, position, parameter)
        if value is not None:
            folded = fold(function, program.known | {parameter: evaluate(value, {})}, tables(program.definitions))
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
