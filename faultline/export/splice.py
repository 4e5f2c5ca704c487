"""A function that is called once, put where it is called: its only expression, or all of its statements."""

from __future__ import annotations

import ast
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


class Place(cst.CSTTransformer):
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
        """What the call gives to each parameter."""
        found = {}
        for position, parameter in enumerate(self.function.params.params):
            given = argument(call, position, parameter.name.value)
            value = given.value if given else parameter.default
            assert value is not None
            found[parameter.name.value] = value
        return found


class Inline(Place):
    """Puts a function's only expression where it is called."""

    def __init__(self, function: cst.FunctionDef, expression: cst.BaseExpression) -> None:
        text = cst.parse_statement(f"x = ({code(expression)})")
        super().__init__(function, set(outside(text)) - set(parameters(function)))
        self.expression = expression

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if not self.is_call(updated):
            return updated
        self.done = True
        found = self.expression.deep_clone().visit(Fold(self.values(updated), {}, {}))
        assert isinstance(found, cst.BaseExpression)
        simple = isinstance(found, cst.Call | cst.Name | cst.Attribute | cst.Subscript | cst.List | cst.ListComp)
        return found if simple or found.lpar else found.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class Splice(Place):
    """Puts a function's statements where its result is returned or given a name.

    Its docstring becomes a comment, but where they are all that a documented function does.
    """

    def __init__(self, function: cst.FunctionDef) -> None:
        super().__init__(function, set(outside(function)))
        self.documented = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        super().visit_FunctionDef(node)
        self.documented = node.get_docstring() is not None and len(node.body.body) == 2

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        if len(updated.body) != 1 or not isinstance(updated.body[0], cst.Return | cst.Assign) or not self.within:
            return updated
        statement = updated.body[0]
        call = statement.value
        if not self.is_call(call) or not isinstance(call, cst.Call):
            return updated
        given = self.values(call)
        stored = {each for each, times in bindings(self.function).items() if times > (each in given)}
        own = {name for name in locals_of(self.function) if name not in given} - {self.function.name.value}
        plain = {name: value for name, value in given.items() if isinstance(value, cst.Name | cst.Integer)}
        others = {name: value for name, value in given.items() if name not in plain}
        said = locals_of(self.within[-1]).union(outside(self.within[-1]))
        if (own | others.keys()) & said or plain.keys() & stored:
            return updated  # a name would mean two things
        self.done = True
        body = self.function.body.visit(Fold(plain, {}, {}))
        assert isinstance(body, cst.IndentedBlock)
        told_first = self.function.get_docstring() is not None
        statements: list[Any] = list(body.body)
        *before, last = statements[told_first:]
        result = last.body[0].value
        start = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(n))], v)]) for n, v in others.items()]
        lines = [*start, *before, updated.with_changes(body=[statement.with_changes(value=result)])]
        long = len(before) > 2 and not self.documented
        docstring = (self.function.get_docstring() or "").splitlines() if long else []
        told = [cst.EmptyLine(comment=cst.Comment(f"# {text.strip()}")) for text in docstring]
        lines[0] = lines[0].with_changes(leading_lines=[*updated.leading_lines, *told])
        lines[-1] = lines[-1].with_changes(leading_lines=[])
        return cst.FlattenSentinel(lines)
