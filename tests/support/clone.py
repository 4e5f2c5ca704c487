"""A copy of this project, as a clone has it."""

import shutil
import subprocess

import pytest

from faultline.base.paths import ROOT


def cloned(place, *listed):
    """Copy the tracked files, and others that git is asked to list; gives the folder."""
    listing = ["git", "ls-files", "-z", *listed]
    try:
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout, so there is nothing to clone")
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place
