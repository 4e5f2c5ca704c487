"""Pictures of the terminal and the page for the README, from commands that are run for them."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, ViewportSize
from rich.console import Console
from rich.text import Text

from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.paths import ROOT
from faultline.maintain import browser
from faultline.runs.storage import latest_run

FOLDER = ROOT / "screenshots"
WIDTH = 110  # columns of the terminal
PAGE = ViewportSize(width=1100, height=860)  # pixels

# Each picture's name, with the command that stands above what it printed.
COMMANDS = {
    "matrix": "faultline run --failure 'zero*' --strategy ddp,zero2,zero3 --precision fp32 --world 2",
    "is-safe": "faultline is-safe transformers==5.22.2 --failure zero_double_reduction --variant broken"
    " --strategy ddp,fsdp2 --precision fp32 --world 2",
}


def run() -> int:
    """Make every picture anew."""
    with browser.opened() as opened:
        FOLDER.mkdir(exist_ok=True)
        for name, command in COMMANDS.items():
            print(command, flush=True)
            (FOLDER / f"{name}.svg").write_text(terminal(command, printed(command)), encoding="utf-8")
            if name == "matrix":
                page(opened, latest_run().path / "report.html")
    print(*sorted(file.relative_to(ROOT) for file in FOLDER.iterdir()))
    return EXIT_AS_EXPECTED


def printed(command: str) -> str:
    """What a command prints on a terminal, with its colours; its progress bar, on standard error, stays here."""
    words = [sys.executable, "-m", *shlex.split(command)]
    colours = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    return subprocess.run(words, cwd=ROOT, env=colours, stdout=subprocess.PIPE, text=True, check=False).stdout


def terminal(command: str, text: str) -> str:
    """A command and what it printed as an SVG, in the viewer's own font: it asks nobody on the network for one."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text().append(f"$ {command}\n", "bold").append_text(Text.from_ansi(text)))
    return re.sub(r"@font-face \{[^}]*\}", "", console.export_svg(title="", unique_id="terminal"))


def page(opened: Browser, report: Path) -> None:
    """Picture a run's page, and what it tells of a cell that raised, in light and dark."""
    for scheme in ("light", "dark"):
        with opened.new_context(color_scheme=scheme, viewport=PAGE) as context:
            shown = context.new_page()
            shown.goto(report.as_uri())
            shown.screenshot(path=FOLDER / f"page-{scheme}.png")
            shown.locator(".cell[aria-label*=raises]").first.click()
            shown.screenshot(path=FOLDER / f"cell-{scheme}.png")
