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
from faultline.export.fold import flat
from faultline.export.names import Statements, code, gives

RUFF = find_ruff_bin()  # once: sysconfig, which it asks, is not made for threads
# What ruff takes away or tidies: imports, variables, quotes, f-strings that hold nothing.
RULES = ("F401", "F541", "F841", "I001", "B009", "B010", "RUF100")


def tidy(text: str) -> str:
    """The text without unused imports and variables, formatted; raises UsageError for a name that nothing defines."""
    shared = ["--isolated", "--line-length", "120", "--target-version", "py311"]
    fix = [RUFF, "check", "--fix-only", "--unsafe-fixes", "--quiet", "--select", ",".join(RULES), *shared, "-"]
    text = joined(effective(_through(fix, left(cst.parse_module(text)).code)))
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
    return module.visit(Leftovers(numbers, unread(source)))


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
    slices that leave nothing out, and the `unread` keys of batches; `numbers` are put where their only use is."""

    def __init__(self, numbers: Mapping[str, cst.BaseExpression], unread: Collection[str]) -> None:
        super().__init__()
        self.numbers, self.unread = numbers, unread

    def leave_With(self, original: cst.With, updated: cst.With) -> Any:
        held = [each for each in updated.items if code(each.item) != "nullcontext()"]
        if len(held) == len(updated.items):
            return updated
        return updated.with_changes(items=held) if held else flat(updated.body, updated.leading_lines)

    def leave_IfExp(self, original: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
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
            kinds = {type(inner) for inner in ast.walk(each.value)}
            needless += [] if {ast.Call, ast.Await, ast.Yield, ast.YieldFrom} & kinds else [each]
        elif isinstance(each, ast.FunctionDef) and len(each.body) > 1 and not gives(each):
            needless += [last for last in each.body[-1:] if isinstance(last, ast.Return)]
    for each in sorted(needless, key=lambda each: each.lineno, reverse=True):
        lines[each.lineno - 1 : each.end_lineno] = []
    return "\n".join(lines) + "\n"


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
