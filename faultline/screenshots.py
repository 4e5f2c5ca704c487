"""Pictures of the terminal and the page for the README, from commands that are run for them: `make screenshots`."""

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

from faultline import browser
from faultline.catalogue import ROOT
from faultline.errors import EXIT_USAGE
from faultline.results import latest_run

FOLDER = ROOT / "screenshots"
WIDTH = 110  # columns of the terminal
PAGE = ViewportSize(width=1100, height=860)  # pixels

# Each picture's name, with the command that stands above what it printed.
COMMANDS = {
    "matrix": "python -m faultline run --failure 'zero*' --strategy ddp,zero2,zero3 --precision fp32 --world 2",
    "is-safe": "python -m faultline is-safe transformers==5.22.2 --failure zero_double_reduction --variant broken"
    " --strategy ddp,fsdp2 --precision fp32 --world 2",
}


def main() -> int:
    try:
        with browser.opened() as opened:
            FOLDER.mkdir(exist_ok=True)
            for name, command in COMMANDS.items():
                print(command, flush=True)
                (FOLDER / f"{name}.svg").write_text(terminal(command, printed(command)), encoding="utf-8")
                if name == "matrix":
                    page(opened, latest_run().path / "report.html")
    except browser.NoBrowser as missing:
        print(f"faultline: {missing}", file=sys.stderr)
        return EXIT_USAGE
    print(*sorted(file.relative_to(ROOT) for file in FOLDER.iterdir()))
    return 0


def printed(command: str) -> str:
    """What a command prints on a terminal, with its colours; its progress bar, on standard error, stays here."""
    _, *words = shlex.split(command)
    colours = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    words = [sys.executable, *words]
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


if __name__ == "__main__":
    sys.exit(main())
