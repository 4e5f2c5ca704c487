"""The last pass over a file's text: what folding has left is taken away, and the rest is formatted."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import libcst as cst
from ruff import find_ruff_bin

from faultline.errors import UsageError
from faultline.export.calls import Cut, uses_in
from faultline.export.fold import flat
from faultline.export.names import Statements, argument, code, gives, pruned, pure, tree, used

RUFF = find_ruff_bin()  # once: sysconfig, which it asks, is not made for threads
# What ruff takes away or tidies: imports, variables, quotes, f-strings that hold nothing.
RULES = ("F401", "F541", "F841", "I001", "B009", "B010", "RET501", "RUF100")


def tidy(text: str) -> str:
    """The text without unused imports and variables, formatted; raises UsageError for a name that nothing defines."""
    shared = ["--isolated", "--line-length", "120", "--target-version", "py311"]
    fix = [RUFF, "check", "--fix-only", "--unsafe-fixes", "--quiet", "--select", ",".join(RULES), *shared, "-"]
    text, before = left(cst.parse_module(text)).code, ""
    while text != before:  # what is taken away may have been the last that used something else
        before, text = text, read_alone(effective(_through(fix, text)))
    text = joined(text)
    text = re.sub(r"(?m)^( *(?:def|class) .*:\n)\n+(?= )", r"\1", text)  # where imports stood
    text = guarded(text)
    compact = ["--config", "format.skip-magic-trailing-comma=true"]
    text = re.sub(r'(?m)^( +"""[^"\n]*"""\n)\n+(?= )', r"\1", text)
    text = _through([RUFF, "format", "--quiet", *compact, *shared, "-"], text)
    wrong = [RUFF, "check", "--quiet", "--select", "F821,F811,E9", "--output-format", "concise", *shared, "-"]
    found = subprocess.run(wrong, input=text, capture_output=True, text=True, check=False)
    if found.returncode:
        raise UsageError(f"this cell can't be exported: {found.stdout.splitlines()[0]}")
    return text


def left(module: cst.Module) -> cst.Module:
    """A file without what the remedy and the failure's other variants have left in it."""
    source = ast.parse(module.code)
    names = Counter(each.id for each in ast.walk(source) if isinstance(each, ast.Name))
    once = {name for name, times in names.items() if times == 2}  # bound, and used
    numbers: dict[str, cst.BaseExpression] = {}
    for line in module.body:
        if isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Assign):
            target, value = code(line.body[0].targets[0].target), line.body[0].value
            if target in once and isinstance(value, cst.Float | cst.Integer) and not line.trailing_whitespace.comment:
                numbers[target] = value
    return module.visit(Leftovers(numbers, unread(source), dictionaries(source)))


def dictionaries(source: ast.Module) -> dict[str, bool]:
    """Whether a name that is bound once is a dictionary, where what it is bound to says so: a display, a state
    dictionary, or `from_pretrained`, which gives no dictionary."""
    stored = Counter(n.id for n in ast.walk(source) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    found = {}
    for each in ast.walk(source):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and stored[each.targets[0].id] == 1:
            value = each.value
            called = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
            if isinstance(value, ast.Dict) or "state_dict" in called:
                found[each.targets[0].id] = True
            elif called == "from_pretrained":
                found[each.targets[0].id] = False
    return found


def unread(source: ast.Module) -> set[str]:
    """Keys of a batch that nothing else in a file says; none where a batch is handed on whole."""
    functions = [each for each in ast.walk(source) if isinstance(each, ast.FunctionDef)]
    made = [inner for each in functions if "batch" in each.name for inner in ast.walk(each)]
    keys = [_text(key) for each in made if isinstance(each, ast.Dict) for key in each.keys]
    said = Counter(_text(each) for each in ast.walk(source))
    for each in ast.walk(source):
        if isinstance(each, ast.keyword) and each.arg is None and "batch" in ast.unparse(each.value):
            return set()
        if isinstance(each, ast.Attribute) and ast.unparse(each) in ("batch.items", "batch.values"):
            return set()
    return {key for key in keys if said[key] == 1}


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


class Leftovers(Statements):
    """Takes away ``with nullcontext():`` and ``rows = rows``, as a failure's function may have it for the remedy,
    slices that leave nothing out, and the `unread` keys of batches; `numbers` are put where their only use is, and
    what is asked of `dictionaries` is answered."""

    def __init__(
        self, numbers: Mapping[str, cst.BaseExpression], unread: Collection[str], dictionaries: Mapping[str, bool]
    ) -> None:
        super().__init__()
        self.numbers, self.unread, self.dictionaries = numbers, unread, dictionaries

    def leave_With(self, original: cst.With, updated: cst.With) -> Any:
        held = [each for each in updated.items if code(each.item) != "nullcontext()"]
        if len(held) == len(updated.items):
            return updated
        return updated.with_changes(items=held) if held else flat(updated.body, updated.leading_lines)

    def leave_IfExp(self, original: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
        asked = re.fullmatch(r"isinstance\((\w+), dict\)", code(updated.test))
        if asked and asked[1] in self.dictionaries:
            return updated.body if self.dictionaries[asked[1]] else updated.orelse
        return updated.body if code(updated.body) == code(updated.orelse) else updated

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> Any:
        target = code(original.targets[0].target)
        gone = original.value is self.numbers.get(target) or code(updated.value) == target
        return cst.RemoveFromParent() if gone else updated

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.BaseExpression:
        return self.numbers.get(original.value, updated)

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        kept = [e for e in updated.elements if not (isinstance(e, cst.DictElement) and _key(e) in self.unread)]
        return updated if len(kept) == len(updated.elements) else updated.with_changes(elements=kept)

    def leave_Subscript(self, original: cst.Subscript, updated: cst.Subscript) -> cst.BaseExpression:
        kept = re.fullmatch(r"\[:(\d+)\]", code(updated)[len(code(updated.value)) :])
        drawn = re.fullmatch(r"torch\.rand\w*\((?:\d+, )*.*?\((\d+), .*\)\)\.tolist\(\)", code(updated.value))
        return updated.value if kept and drawn and int(drawn[1]) <= int(kept[1]) else updated


def _key(element: cst.DictElement) -> str:
    return str(element.key.evaluated_value) if isinstance(element.key, cst.SimpleString) else ""


def effective(text: str) -> str:
    """The text without what has no effect: an expression of variables that nothing reads, `return None` at an end."""
    lines, source = text.splitlines(), ast.parse(text)
    needless: list[ast.stmt] = []
    for each in ast.walk(source):
        if isinstance(each, ast.Expr) and not isinstance(each.value, ast.Constant):
            needless += [each] if pure(each.value) else []
        elif isinstance(each, ast.FunctionDef) and len(each.body) > 1 and not gives(each):
            needless += [last for last in each.body[-1:] if isinstance(last, ast.Return)]
    for each in sorted(needless, key=lambda each: each.lineno, reverse=True):
        lines[each.lineno - 1 : each.end_lineno] = []
    return "\n".join(lines) + "\n"


class Functions(cst.CSTVisitor):
    """All functions of a file, those within others too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.FunctionDef] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.found.append(node)


class Fewer(Cut):
    """Takes a parameter away from a function of that name, and its argument from each call."""

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        return pruned(updated, [self.parameter]) if updated.name.value == self.function else updated


def read_alone(text: str) -> str:
    """The text without parameters that their function doesn't read, where it is only called by its name, and what is
    given for them does nothing."""
    module = cst.parse_module(text)
    while idle := _unread_parameter(module):
        module = module.visit(idle)
    return module.code


def _unread_parameter(module: cst.Module) -> Fewer | None:
    functions, uses, source = Functions(), uses_in(module), ast.parse(module.code)
    module.visit(functions)
    for function in functions.found:
        name = function.name.value
        calls = uses.calls.get(name, [])
        handed_on = _said(source, name) != len(calls) + 1  # or there are two of the name
        if not calls or handed_on or function.decorators or any(a.star for c in calls for a in c.args):
            continue
        for position, parameter in enumerate(each.name.value for each in function.params.params):
            given = [argument(call, position, parameter) for call in calls]
            if not used(function, parameter) and all(each is None or pure(tree(each.value)) for each in given):
                return Fewer(name, position, parameter)
    return None


def _said(node: ast.AST, name: str) -> int:
    """How often a function's name is there, outside of functions in which it is a variable."""
    times = int(isinstance(node, ast.Name) and node.id == name)
    if isinstance(node, ast.FunctionDef):
        times += node.name == name
        own = [each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)]
        own += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        if name in own:
            return times
    return times + sum(_said(child, name) for child in ast.iter_child_nodes(node))


def joined(text: str) -> str:
    """The text with a value in the place of its name, where only the next line uses it, and begins with that."""
    lines: list[str | None] = [*text.splitlines()]
    whole = (ast.Call, ast.Dict, ast.List, ast.Name)  # what needs no parentheses anywhere
    for function in [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]:
        names = Counter(each.id for each in ast.walk(function) if isinstance(each, ast.Name))
        found = [n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.Return | ast.Expr)]
        for first, second in reversed([*itertools.pairwise(sorted(found, key=lambda each: each.lineno))]):
            if (
                not isinstance(first, ast.Assign)
                or not isinstance(first.value, whole)
                or first.end_lineno != first.lineno
            ):
                continue
            name = ast.unparse(first.targets[0])
            if names[name] != 2 or first.col_offset != second.col_offset or first.lineno + 1 != second.lineno:
                continue
            before, after = lines[first.lineno - 1] or "", lines[second.lineno - 1] or ""
            value = re.fullmatch(rf" *{name} = ([^#]+)", before)
            use = re.match(rf" *((return|[\w, ]+ =) )?([\w.]+\()*(?={name}\b(?! =))", after)
            if value and use:
                line = use[0] + value[1] + after[use.end() + len(name) :]
                if len(line) <= 120:
                    lines[first.lineno - 1 : second.lineno] = [None, line]
    return "\n".join(line for line in lines if line is not None) + "\n"


def guarded(text: str) -> str:
    """The text with one line, and an exit code of its own, for who lacks a package or has a release without a name."""
    statements = ast.parse(text).body
    first = next(number for number, each in enumerate(statements) if isinstance(each, ast.Expr) and number)
    rest = itertools.dropwhile(lambda each: isinstance(each, ast.Expr), statements[first:])
    imports = list(itertools.takewhile(lambda each: isinstance(each, ast.Import | ast.ImportFrom), rest))
    lines = text.splitlines()
    start, end = imports[0].lineno - 1, imports[-1].end_lineno
    return "\n".join(
        [
            *lines[:start],
            "try:",
            *(f"    {each}" if each else "" for each in lines[start:end]),
            "except ImportError as error:",
            '    print(f"NOT TRIED: {error}; `uv run repro.py` installs what this file was made for")',
            "    sys.exit(2)",
            *lines[end:],
        ]
    )


def _through(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise UsageError(f"this cell can't be exported: {' '.join(done.stderr.split())[:200]}\n{text}")
    return done.stdout
