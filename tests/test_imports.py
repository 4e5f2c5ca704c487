"""The process that collects, supervises and reports stays light: what it may import from outside is written down."""

import subprocess
import sys

from faultline.catalogue import ROOT

ALLOWED = {
    *("faultline", "conftest", "filelock", "jinja2", "markupsafe", "packaging", "platformdirs", "psutil", "uv"),
    *("rich", "pygments", "markdown_it", "mdurl"),
    *("pytest", "py", "pluggy", "iniconfig"),
}
UNDER_TEST = {"torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "tokenizers", "numpy"}

COLLECT = """
import sys
before = set(sys.modules)  # what site-packages' .pth files bring
import conftest
from faultline import cli, commands, matrix, runner
from faultline.catalogue import failures
for failure in failures().values():
    runner.rules(failure)
assert matrix.select(failures(), matrix.Selection())
cli.parser()
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""


def test_the_supervising_process_imports_nothing_that_is_under_test():
    """A supervisor with torch takes seconds to start, and a fault in torch could take it down with its ranks."""
    done = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name for name in done.stdout.split() if not name.startswith("_")} - sys.stdlib_module_names
    assert not imported & UNDER_TEST, "the supervising process imports a library under test"
    assert imported <= ALLOWED, "the supervising process imports a package that is not on the list: is it worth it?"
