"""The process that collects, supervises and reports stays light: what it may import from outside is written down."""

import sys

import pytest

from tests.support.program import python

ALLOWED = {
    *(
        "faultline",
        "lab",
        "website",
        "conftest",
        "tests",
        "filelock",
        "jinja2",
        "markupsafe",
        "packaging",
        "platformdirs",
    ),
    *("psutil", "uv"),
    *("rich", "pygments", "markdown_it", "mdurl"),
    *("cyclopts", "attr", "attrs", "docstring_parser"),
    *("msgspec", "typing_extensions"),
    *("pytest", "py", "pluggy", "iniconfig"),
}
UNDER_TEST = {"torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "tokenizers", "numpy"}

COLLECT = """
import sys
before = set(sys.modules)  # what site-packages' .pth files bring
import conftest
from faultline.cells import selection
from faultline.cells.expected import rules
from faultline.cli import app
from faultline.catalogue.loading import failures
assert rules(failures()["zero3_dummy_loss"])
assert selection.select(failures(), selection.Selection(failure=("zero3_dummy_loss",)))
assert app.app()
import faultline.matrix.command, faultline.maintain.command, lab.explore.command
import faultline.releases.bisect, faultline.diagnose.command
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


@pytest.mark.slow
def test_the_supervising_process_imports_nothing_that_is_under_test():
    """A supervisor with torch takes seconds to start, and a fault in torch could take it down with its ranks."""
    done = python("-c", COLLECT, check=True)
    imported = {name for name in done.stdout.split() if not name.startswith("_")} - sys.stdlib_module_names
    assert not imported & UNDER_TEST, "the supervising process imports a library under test"
    assert imported <= ALLOWED, "the supervising process imports a package that is not on the list: is it worth it?"


HELP = """
import sys
from faultline.cli import app
app.main(["--help"])
app.main(["run", "--help"])
print(*sys.modules, file=sys.stderr)
"""


def test_the_help_imports_no_room():
    """Breaks when `faultline --help` takes a second, because a command is imported before it is called."""
    done = python("-c", HELP, check=True)
    rooms = {name.split(".")[1] for name in done.stderr.split() if name.startswith("faultline.")}
    assert rooms == {"base", "cli"}, "a room is imported before any command is called"
