"""A function that is called once, put where it is called: its only expression, or all of its statements."""

import ast
from collections.abc import Mapping
from typing import Any

import libcst as cst

from faultline.export.fold import Fold
from faultline.export.names import argument, bindings, code, locals_of, outside, parameters, tree


def only_expression(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """What a function returns, if it does nothing else."""
    statements = _statements(function)
    if len(statements) != 1 or not isinstance(statements[0], cst.SimpleStatementLine):
        return None
    last = statements[0].body[0]
    return last.value if isinstance(last, cst.Return) else None


def ends_in_return(function: cst.FunctionDef) -> bool:
    """Whether a function's last statement is its only return, of a value, and it is no more than a few statements."""
    last = _statements(function)[-1]
    simple = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[0], cst.Return)
    returns = [each for each in ast.walk(tree(function)) if isinstance(each, ast.Return | ast.Yield | ast.YieldFrom)]
    statements = [each for each in ast.walk(tree(function)) if isinstance(each, ast.stmt)]
    return simple and len(returns) == 1 and len(statements) <= 9


def _statements(function: cst.FunctionDef) -> list[Any]:
    body = list(function.body.body)
    return body[1:] if function.get_docstring() is not None else body


class CallFinder(cst.CSTTransformer):
    """Finds the call of a function, in functions that give its free names no other meaning."""

    def __init__(self, function: cst.FunctionDef, free: set[str]) -> None:
        super().__init__()
        self.function, self.free = function, free
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


class Inline(CallFinder):
    """Puts a function's only expression where it is called."""

    def __init__(self, function: cst.FunctionDef, expression: cst.BaseExpression) -> None:
        text = cst.parse_statement(f"x = ({code(expression)})")
        super().__init__(function, set(outside(text)) - set(parameters(function)))
        self.expression = expression

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if not self.is_call(updated):
            return updated
        self.done = True
        value = self.expression.deep_clone().visit(Fold(self.values(updated), {}, {}))
        assert isinstance(value, cst.BaseExpression)
        simple = isinstance(value, cst.Call | cst.Name | cst.Attribute | cst.Subscript | cst.List | cst.ListComp)
        return value if simple or value.lpar else value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class Splice(CallFinder):
    """Puts a function's statements where its result is returned or given a name."""

    def __init__(self, function: cst.FunctionDef) -> None:
        super().__init__(function, set(outside(function)))

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        statement = updated.body[0]
        if len(updated.body) != 1 or not isinstance(statement, cst.Return | cst.Assign) or not self.within:
            return updated
        call = statement.value
        if not isinstance(call, cst.Call) or not self.is_call(call):
            return updated
        given = self.values(call)
        plain = {name: value for name, value in given.items() if isinstance(value, cst.Name | cst.Integer)}
        others = {name: value for name, value in given.items() if name not in plain}
        if self._ambiguous(given, plain):
            return updated
        self.done = True
        body = self.function.body.visit(Fold(plain, {}, {}))
        assert isinstance(body, cst.IndentedBlock)
        statements: list[Any] = list(body.body)
        *before, last = statements if self.function.get_docstring() is None else statements[1:]
        start = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(n))], v)]) for n, v in others.items()]
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
