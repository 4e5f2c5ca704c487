"""When what the site shows was pinned, and the names of months."""

import functools
import subprocess

from faultline.base.packages import TODAY
from faultline.base.paths import ROOT
from faultline.observations import measured


@functools.cache
def pinned() -> str:
    """The day by which today's stack was pinned, as git has it; without git, after which month's releases it is."""
    asked = ("git", "log", "-1", "--format=%cs", "--", "requirements.txt")
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        done = None
    newest = [stack.month for stack in measured.months() if stack.month != TODAY][-1]
    return done.stdout.strip() if done and done.stdout.strip() else f"after {newest}"


def titled(name: str, month: str) -> str:
    """A month's stack: its day, and its name if that is another, ``2025-03-01 (trl-0.15.2)``."""
    return month if name == month else f"{month} ({name})"
