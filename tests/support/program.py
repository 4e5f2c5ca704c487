"""Python in a process of its own."""

import os
import subprocess
import sys

from faultline.base.paths import ROOT


def python(*words, cwd=ROOT, check=False, **variables):
    """Run it in a folder, with some variables; gives the process that ended, with what it printed as texts."""
    command = [sys.executable, *map(str, words)]
    environment = os.environ | variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=check)
