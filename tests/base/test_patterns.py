"""Every pattern that reads somebody's text takes twice as many steps for twice as long a text, and no more."""

import ast
import importlib
import pkgutil
import re
import sys

import pytest

from faultline.base.paths import PACKAGE
from faultline.catalogue.loading import failures
from faultline.diagnose import prose
from tests.support import steps

ROOMS = ("base", "diagnose", "audit", "projects", "observations")
# These are only asked about the beginning of a text (match, fullmatch).
ANCHORED = {
    *("diagnose.signs.FRAME", "diagnose.signs._TYPE", "diagnose.lines.PREFIX"),
    *("audit.shell.LAUNCHERS", "projects.files.USUAL", "projects.files.SHELL", "projects.versions.NAMELESS"),
    "projects.versions.BEGUN",
    *("projects.versions.ROW", "projects.versions.NAMED", "projects.versions.INCLUDED", "projects.versions.REPOSITORY"),
    *("audit.shell.ASSIGNED", "audit.shell.REDIRECTED", "audit.hydra.WORD", "audit.pins.OF_A_PART"),
}
# One sees 120 characters at most, the other our own patterns.
SHORT = ("diagnose.signs._LAST_NAME", "diagnose.signs._OPEN")


def compiled():
    """Each pattern that a module has under a name."""

    def within(value):
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, tuple | list | dict):
            for each in value.values() if isinstance(value, dict) else value:
                yield from within(each)

    for room in ROOMS:
        for info in pkgutil.iter_modules([str(PACKAGE / room)]):
            for name, value in vars(importlib.import_module(f"faultline.{room}.{info.name}")).items():
                place = f"{room}.{info.name}.{name}"
                for each in within(value):
                    if isinstance(each.pattern, str) and place not in SHORT:
                        yield each.pattern, each.flags & ~re.UNICODE, place in ANCHORED, place


def vocabulary():
    """Each pattern of diagnose's terms."""
    for name, pattern in prose.vocabulary():
        yield pattern.pattern, pattern.flags & ~re.UNICODE, False, f"terms.toml: {name}"


def inline():
    """Each pattern that stands in a call of re's functions."""
    for file in (file for room in ROOMS for file in (PACKAGE / room).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
                pattern = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
                if of_re and isinstance(pattern, str) and node.func.attr != "compile":
                    text = ast.unparse(node)
                    flags = sum(flag for flag in (re.MULTILINE, re.DOTALL, re.IGNORECASE) if flag.name in text)
                    yield pattern, flags, node.func.attr in ("match", "fullmatch"), f"{file.name}:{node.lineno}"


@pytest.fixture(autouse=True)
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.slow
@pytest.mark.parametrize("patterns", [compiled, inline, vocabulary])
def test_twice_as_long_a_text_takes_twice_as_many_steps(patterns):
    wrong = []
    for pattern, flags, anchored, place in patterns():
        times, text = steps.growth(pattern, flags, anchored)
        if times > steps.TIMES:
            wrong.append(f"{place}: {times:.1f} times the steps for {text[:40]!r} and twice of it: {pattern[:80]}")
    assert not wrong, "\n".join(wrong)


def test_a_path_within_an_error_is_bounded():
    """Breaks when a line of many such errors is searched from each of them to its end, over and over."""
    pattern = failures()["dpo_precompute_ref_in_memory_dataset"].errors["not-my-cache"]
    assert steps.growth(pattern)[0] <= steps.TIMES


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        (r"(?:\s*</?[a-z]{1,10}>)+\s*\Z", 0),
        (r"exit ?code *[:=]? *-\d", 0),
        (r"""(<<-?[ \t]*(['"]?)(\w+)\2[^\n]*\n)(.*?\n)([ \t]*\3[ \t]*$)""", re.DOTALL | re.MULTILINE),
        (r"^\s*name\s*=", re.MULTILINE),
        (r"(?:/[\w.+@-]+)*/site-packages/", 0),
        (r"(a+)+b", 0),
    ],
)
def test_a_pattern_that_chokes_is_seen(pattern, flags):
    assert steps.growth(pattern, flags)[0] > steps.TIMES
