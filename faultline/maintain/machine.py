"""The machine: its versions, devices and settings, and the environments and results that runs left on it."""

import json
import platform
import shutil
from importlib import metadata

from rich.console import Console

from faultline.base import machine
from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.packages import versions
from faultline.base.paths import RESULTS
from faultline.base.text import count
from faultline.ranks import preload
from faultline.report import terminal
from faultline.runs import gpus
from faultline.stacks import environments


def env(as_json: bool) -> int:
    """Print versions, devices, and the settings that ranks get."""
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": machine.cores(),
        "stack": versions(),
        "suite": {name: metadata.version(name) for name in ("pytest", "rich", "psutil")},
        "compiler": shutil.which("g++") or "none (none is needed)",
        "gpus": _gpus(),
        "settings": preload.environment(),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        terminal.environment(Console(), facts)
    return EXIT_AS_EXPECTED


def _gpus() -> list[str]:
    try:
        here = gpus.here()
    except UsageError:
        return []
    return [f"{gpu.name} ({gpu.uuid}, {gpu.memory >> 30} GB, driver {here.driver})" for gpu in here.gpus]


def clean_stacks() -> int:
    """Remove the environments of all stacks, except if a run uses one."""
    removed, used = environments.clean()
    line = f"{count(len(removed), 'environment')} removed from {environments.cache()}"
    print(f"{line}; kept, as they are in use: {', '.join(folder.name for folder in used)}" if used else line)
    return EXIT_AS_EXPECTED


def clean_results(keep: int) -> int:
    """Remove the results of all runs but the newest, and but that of results/latest."""
    runs = [file.parent for file in RESULTS.glob("*/run.json") if not file.parent.is_symlink()]
    runs.sort(key=lambda folder: folder.name[-19:], reverse=True)  # a name ends with its time
    removed = [folder for folder in runs[keep:] if folder.resolve() != (RESULTS / "latest").resolve()]
    for folder in removed:
        shutil.rmtree(folder)
    print(f"{count(len(removed), 'run')} removed from {RESULTS}")
    return EXIT_AS_EXPECTED
