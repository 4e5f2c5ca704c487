"""The last pass over a file's text: ruff takes away what nothing uses, and formats the rest."""

import ast
import re
import subprocess
import textwrap
from typing import Any

import libcst as cst

from faultline.base.errors import NotExportable
from faultline.export.names import Statements, code, flat, pure, tree

SHARED = ("--isolated", "--line-length", "120", "--target-version", "py311", "-")
# What ruff takes away or tidies: imports, variables, quotes, returns, f-strings that hold nothing.
RULES = ("F401", "F541", "F841", "I001", "B009", "B010", "PLR1711", "RET501", "RUF100")
FIX = ("check", "--fix-only", "--unsafe-fixes", "--quiet", "--preview", "--select", ",".join(RULES), *SHARED)
FORMAT = ("format", "--quiet", "--config", "format.skip-magic-trailing-comma=true", *SHARED)
CHECK = ("check", "--quiet", "--select", "F821,F811,E9", "--output-format", "concise", *SHARED)
MISSING = """
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\\n")

"""


def tidy(text: str) -> str:
    """The text without unused imports and variables, formatted; raises NotExportable for a name without a meaning."""
    before = ""
    while text != before:  # what is taken away may have been the last that used something else
        before = _ruff(FIX, text)
        text = cst.parse_module(before).visit(Effective()).code
    text = re.sub(r"(?m)^( *(?:def|class) .*:\n)\n+(?= )", r"\1", text)  # where imports stood
    text = re.sub(r'(?m)^( +"""[^"\n]*"""\n)\n+(?= )', r"\1", guarded(text))
    text = _ruff(FORMAT, text)
    if wrong := _ruff(CHECK, text):
        raise NotExportable(wrong.splitlines()[0])
    return text


class Effective(Statements):
    """Takes away ``with nullcontext():``, ``b if a else b``, ``a = a``, and what unused variables leave behind."""

    def leave_With(self, original: cst.With, updated: cst.With) -> Any:
        items = [each for each in updated.items if code(each.item) != "nullcontext()"]
        return updated.with_changes(items=items) if items else flat(updated.body, updated.leading_lines)

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> Any:
        return cst.RemoveFromParent() if code(updated.targets[0].target) == code(updated.value) else updated

    def leave_IfExp(self, original: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
        return updated.body if code(updated.body) == code(updated.orelse) else updated

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr) -> Any:
        value = tree(updated).body[0]
        idle = isinstance(value, ast.Expr) and not isinstance(value.value, ast.Constant) and pure(value)
        return cst.RemoveFromParent() if idle else updated


def guarded(text: str) -> str:
    """The text with an exit code of its own, and one line, if a package is missing or a release lacks a name."""
    start = text.index("\nos.environ.update(")  # what has to be set before anything of others is imported
    imports = r"(?m)(?:^(?:from|import) .*\n(?:[ )].*\n)*\n*)+"

    def tried(match: re.Match[str]) -> str:
        return f"try:\n{textwrap.indent(match[0].rstrip(), '    ')}{MISSING}"

    return text[:start] + re.sub(imports, tried, text[start:], count=1)


def _ruff(arguments: tuple[str, ...], text: str) -> str:
    from ruff import find_ruff_bin  # here, as an installed package has it only with its extra

    done = subprocess.run([find_ruff_bin(), *arguments], input=text, capture_output=True, text=True, check=False)
    if done.stderr:
        raise NotExportable(f"{' '.join(done.stderr.split())[:200]}\n{text}")
    return done.stdout
