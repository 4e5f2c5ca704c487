"""A function that is called once, put where it is called: its only expression, or all of its statements."""

import ast
from collections.abc import Mapping
from typing import Any

import libcst as cst

from faultline.export.fold import Fold
from faultline.export.names import Change, argument, bindings, locals_of, only_result, outside, tree, visited

LONGEST = 9  # statements of a function that is put where it is called


def movable(function: cst.FunctionDef) -> bool:
    """Whether a function is a few statements, of which the last is its only return, of a value."""
    takes_any = isinstance(function.params.star_arg, cst.Param) or isinstance(function.params.star_kwarg, cst.Param)
    few = sum(isinstance(each, ast.stmt) for each in ast.walk(tree(function))) <= LONGEST
    return few and not function.decorators and not takes_any and only_result(function) is not None


def _statements(function: cst.FunctionDef) -> list[Any]:
    body = list(function.body.body)
    return body[1:] if function.get_docstring() is not None else body


class Inline(Change):
    """Puts a movable function where it is called, in functions that give its free names no other meaning.

    A function that is one expression can be put anywhere, statements where their result is returned or given a name.
    """

    def __init__(self, function: cst.FunctionDef) -> None:
        super().__init__()
        self.function = function
        *self.before, last = _statements(function)
        self.result = last.body[0].value
        self.free = set(outside(function))
        self.done = False
        self.within: list[cst.FunctionDef] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.within.append(node)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> Any:
        self.within.pop()
        return updated

    def is_call(self, node: Any) -> bool:
        return (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Name)
            and node.func.value == self.function.name.value
            and not any(self.free & locals_of(each) for each in self.within)
        )

    def values(self, call: cst.Call) -> dict[str, cst.BaseExpression]:
        """The value of each parameter."""
        values = {}
        for position, parameter in enumerate(self.function.params.params):
            given = argument(call, position, parameter.name.value)
            value = given.value if given else parameter.default
            assert value is not None
            values[parameter.name.value] = value
        return values

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if self.before or not self.is_call(updated):
            return updated
        self.done = True
        value = self.result.deep_clone().visit(Fold(self.values(updated), {}, {}))
        simple = isinstance(value, cst.Call | cst.Name | cst.Attribute | cst.Subscript | cst.List | cst.ListComp)
        return value if simple or value.lpar else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        statement = updated.body[0]
        if len(updated.body) != 1 or not isinstance(statement, cst.Return | cst.Assign) or not self.within:
            return updated
        call = statement.value
        if not self.before or not isinstance(call, cst.Call) or not self.is_call(call):
            return updated
        given = self.values(call)
        plain = {name: value for name, value in given.items() if isinstance(value, cst.Name | cst.Integer)}
        if self._ambiguous(given, plain):
            return updated
        self.done = True
        start = [
            cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])
            for name, value in given.items()
            if name not in plain
        ]
        *before, last = _statements(visited(self.function, Fold(plain, {}, {})))
        lines = [*start, *before, updated.with_changes(body=[statement.with_changes(value=last.body[0].value)])]
        lines[-1] = lines[-1].with_changes(leading_lines=[])
        lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel(lines)

    def _ambiguous(self, given: Mapping[str, cst.BaseExpression], plain: Mapping[str, cst.BaseExpression]) -> bool:
        """Whether a name would mean two things."""
        stored = {name for name, times in bindings(self.function).items() if times > (name in given)}
        bound = (locals_of(self.function) | given.keys()) - plain.keys() - {self.function.name.value}
        around = locals_of(self.within[-1]).union(outside(self.within[-1]))
        return bool(bound & around or plain.keys() & stored)
