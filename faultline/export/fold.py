"""Partial evaluation of source code: what constants decide is decided, and the rest stays as it was written."""

from collections.abc import Collection, Mapping
from typing import Any

import libcst as cst

from faultline.base.errors import NotConstant
from faultline.export.evaluate import constant, evaluate, literal, spread
from faultline.export.names import (
    Statements,
    Without,
    bindings,
    changed,
    code,
    flat,
    parameters,
    pure,
    tree,
    used,
    visited,
)

WHOLE = (cst.Attribute, cst.Comparison, cst.FormattedString)  # expressions that may have a value


class Fold(Statements):
    """One pass over a function, bottom up.

    `values` are put where their names were; `known` only takes part in larger expressions that have a
    value; `tables` are dictionaries from constants to any expression, of which a look-up chooses one.
    Constants that are assigned to `candidates` become values, and other dictionaries tables.
    """

    def __init__(
        self,
        values: Mapping[str, cst.BaseExpression],
        known: Mapping[str, Any],
        tables: Mapping[str, cst.Dict],
        candidates: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.values, self.known, self.tables = dict(values), known, dict(tables)
        self.candidates = candidates
        self.within_text = 0
        self.elifs: set[cst.CSTNode] = set()
        self.names: set[cst.CSTNode] = set()  # that are no expressions: targets, attributes, keywords, parameters

    def _fold(self, updated: Any) -> Any:
        try:
            return literal(evaluate(updated, self.known))
        except NotConstant:
            return updated

    def _holds(self, test: cst.BaseExpression) -> bool:
        """Whether a condition holds, be it for its right side alone, as in ``x and False``; raises NotConstant."""
        try:
            return bool(evaluate(test, self.known))
        except NotConstant:
            if not isinstance(test, cst.BooleanOperation) or not pure(tree(test.left)):
                raise
            right = self._holds(test.right)
            if right == isinstance(test.operator, cst.And):
                raise
            return right

    # Names

    def on_visit(self, node: cst.CSTNode) -> bool:
        children = (getattr(node, field, None) for field in ("attr", "keyword", "name", "target"))
        self.names.update(child for child in children if isinstance(child, cst.CSTNode))
        return super().on_visit(node)

    def on_leave(self, original: Any, updated: Any) -> Any:
        left = super().on_leave(original, updated)
        return self._fold(left) if isinstance(left, WHOLE) else left

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.BaseExpression:
        if original in self.names or original.value not in self.values:
            return updated
        if self.within_text:  # where its quotes could end the text
            return literal(evaluate(self.values[original.value], {}))
        return self.values[original.value].deep_clone()

    # Expressions

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        self.within_text += 1

    def leave_FormattedString(self, original: cst.FormattedString, updated: cst.FormattedString) -> cst.BaseExpression:
        self.within_text -= 1
        return updated

    def leave_UnaryOperation(self, original: cst.UnaryOperation, updated: cst.UnaryOperation) -> cst.BaseExpression:
        return self._fold(updated) if isinstance(updated.operator, cst.Not) else updated

    def leave_BooleanOperation(
        self, original: cst.BooleanOperation, updated: cst.BooleanOperation
    ) -> cst.BaseExpression:
        try:
            left = self._holds(updated.left)
        except NotConstant:
            idle = "True" if isinstance(updated.operator, cst.And) else "False"
            return updated.left if code(updated.right) == idle else updated
        return updated.right if left == isinstance(updated.operator, cst.And) else updated.left

    def leave_IfExp(self, original: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
        try:
            return updated.body if self._holds(updated.test) else updated.orelse
        except NotConstant:
            return updated

    def leave_Subscript(self, original: cst.Subscript, updated: cst.Subscript) -> cst.BaseExpression:
        index = updated.slice[0].slice
        if original in self.names or len(updated.slice) != 1 or not isinstance(index, cst.Index):
            return updated
        folded = self._fold(updated)
        if folded is not updated:
            return folded
        return self._choice(updated.value, index.value, None) or updated

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        updated = updated.with_changes(args=spread(updated.args))
        function, arguments = updated.func, updated.args
        if isinstance(function, cst.Attribute) and function.attr.value == "get" and len(arguments) in (1, 2):
            default = arguments[1].value if len(arguments) == 2 else cst.Name("None")
            if chosen := self._choice(function.value, arguments[0].value, default):
                return chosen
        return self._fold(updated)

    def _choice(
        self, table: cst.BaseExpression, key: cst.BaseExpression, default: cst.BaseExpression | None
    ) -> cst.BaseExpression | None:
        """The expression that a look-up with a known key finds."""
        if isinstance(table, cst.Name):
            table = self.tables.get(table.value, table)
        if not isinstance(table, cst.Dict):
            return None
        try:
            wanted = evaluate(key, self.known)
            for element in reversed(table.elements):
                if not isinstance(element, cst.DictElement):
                    return None
                if evaluate(element.key, self.known) == wanted:
                    return element.value.deep_clone()
        except NotConstant:
            return None
        return default

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        """A dictionary within a dictionary, ``**{...}``, is written out."""
        elements: list[cst.BaseDictElement] = []
        for each in updated.elements:
            inner = each.value if isinstance(each, cst.StarredDictElement) else None
            elements += inner.elements if isinstance(inner, cst.Dict) else [each]
        return updated.with_changes(elements=[e.with_changes(comma=cst.MaybeSentinel.DEFAULT) for e in elements])

    def leave_DictComp(self, original: cst.DictComp, updated: cst.DictComp) -> cst.BaseExpression:
        """A plain one over known values is written out."""
        over = updated.for_in
        if over.ifs or over.inner_for_in or not isinstance(over.target, cst.Name):
            return updated
        try:
            items = [(value, literal(value)) for value in evaluate(over.iter, self.known)]
        except NotConstant:
            return updated
        elements = []
        for item, source in items:
            one = Fold({over.target.value: source}, {**self.known, over.target.value: item}, self.tables)
            element = cst.DictElement(updated.key.deep_clone(), updated.value.deep_clone()).visit(one)
            assert isinstance(element, cst.DictElement)
            elements.append(element)
        return cst.Dict(elements)

    # Statements

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
        """Nothing follows a return."""
        for number, line in enumerate(updated.body):
            if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[-1], cst.Return | cst.Raise):
                return updated.with_changes(body=updated.body[: number + 1])
        return updated

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self.elifs.add(node.orelse)

    def leave_If(self, original: cst.If, updated: cst.If) -> Any:
        try:
            holds = self._holds(updated.test)
        except NotConstant:
            impossible = code(updated.body).strip().startswith("raise Impossible(")  # of a cell that is exported
            removed = impossible and updated.orelse is None and original not in self.elifs
            return cst.RemoveFromParent() if removed else updated
        if original in self.elifs:
            if holds:
                return cst.Else(updated.body)
            return updated.orelse or cst.RemoveFromParent()
        if not holds and updated.orelse is None:
            return cst.RemoveFromParent()
        if not holds and isinstance(updated.orelse, cst.If):
            return updated.orelse.with_changes(leading_lines=updated.leading_lines)
        chosen = updated if holds else updated.orelse
        assert chosen
        return flat(chosen.body, updated.leading_lines)

    def leave_Try(self, original: cst.Try, updated: cst.Try) -> Any:
        """A try whose handlers only raise again, now that it is known that the cell is possible."""
        idle = all(code(handler.body).strip() == "raise" for handler in updated.handlers)
        if not idle or updated.finalbody or updated.orelse:
            return updated
        return flat(updated.body, updated.leading_lines)

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> Any:
        """Constants are put where their names are used, and tables kept for look-ups."""
        if len(updated.targets) != 1:
            return updated
        target = updated.targets[0].target
        pairs: list[tuple[Any, cst.BaseExpression]] = [(target, updated.value)]
        if isinstance(target, cst.Tuple) and isinstance(updated.value, cst.Tuple):
            pairs = [(t.value, v.value) for t, v in zip(target.elements, updated.value.elements, strict=True)]
        constants: dict[str, cst.BaseExpression] = {}
        for name, value in pairs:
            if not isinstance(name, cst.Name) or name.value not in self.candidates:
                return updated
            alias = isinstance(value, cst.Name) and value.value[0].isupper()  # of a global or a class
            written = isinstance(original.value, cst.Dict)  # as a table in the source, and easier to read there
            if written or not (alias or constant(value)):
                if isinstance(value, cst.Dict):
                    self.tables[name.value] = value
                return updated
            constants[name.value] = value
        self.values |= constants
        return cst.RemoveFromParent()


def fold(
    function: cst.FunctionDef, known: Mapping[str, Any], tables: Mapping[str, cst.Dict], numbers: Collection[str] = ()
) -> cst.FunctionDef:
    """A function with what is known decided, its own constants and look-up tables included.

    A local name is a constant if it is bound once in the whole function, to a constant that nothing changes. `numbers`
    are names from around it whose values are put in their place.
    """
    parameter_names, bound = parameters(function), bindings(function)
    values: Mapping[str, cst.BaseExpression] = {
        name: literal(value)
        for name, value in known.items()
        if (name in parameter_names and isinstance(value, str | int | None)) or (name in numbers and name not in bound)
    }
    while True:
        before = function
        once = {name for name, times in bindings(function).items() if times == 1}
        change = Fold(values, known, tables, once - changed(function))
        function = visited(function, change)
        values, tables = change.values, change.tables
        local = bindings(function)
        if unused := {name for name in tables if name in local and not used(function, name)}:
            function = visited(function, Without(unused))
        if function.deep_equals(before):
            return function
