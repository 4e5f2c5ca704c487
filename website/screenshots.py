"""Pictures of the terminal and the page for the README, from commands that are run for them."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Error, ViewportSize, sync_playwright
from rich.console import Console
from rich.text import Text

from faultline.base import interpreters
from faultline.base.errors import EXIT_AS_EXPECTED, NoBrowser
from faultline.base.paths import PACKAGE, ROOT
from faultline.runs.storage import latest_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = ".venv/bin/python -m playwright install --with-deps --only-shell chromium"
HINT = f"no browser is installed: `{INSTALL}` fetches one, as does apt-get install chromium on Debian"
FOLDER = ROOT / "screenshots"
WIDTH = 110  # columns of the terminal
SECTION = "zero_double_reduction"  # of the page, that its picture shows
PAGE = ViewportSize(width=1100, height=860)  # pixels

# Each picture's name, with the command that stands above what it printed.
COMMANDS = {
    "matrix": "faultline run --failure zero3_dummy_loss,zero_double_reduction --strategy ddp,zero2,zero3,fsdp2"
    " --precision fp32 --world 2",
    "is-safe": "faultline is-safe transformers==5.22.2 --failure zero_double_reduction --variant broken"
    " --strategy ddp,fsdp2 --precision fp32 --world 2",
}


def run() -> int:
    """Make every picture again."""
    with browser() as opened:
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
    words = interpreters.command(sys.executable, str(PACKAGE / "__main__.py"), *shlex.split(command)[1:])
    colours = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    return subprocess.run(words, cwd=ROOT, env=colours, stdout=subprocess.PIPE, text=True, check=False).stdout


def terminal(command: str, text: str) -> str:
    """A command and what it printed as an SVG, in the viewer's own font: it asks nobody on the network for one."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text().append(f"$ {command}\n", "bold").append_text(Text.from_ansi(text)))
    return re.sub(r"@font-face \{[^}]*\}", "", console.export_svg(title="", unique_id="terminal"))


def page(opened: Browser, report: Path) -> None:
    """Picture a run's page, and what it shows of a cell that raised, in light and dark."""
    for scheme in ("light", "dark"):
        with opened.new_context(color_scheme=scheme, viewport=PAGE) as context:
            shown = context.new_page()
            shown.goto(f"{report.as_uri()}#{SECTION}")
            shown.screenshot(path=FOLDER / f"page-{scheme}.png")
            shown.locator(".cell[aria-label*=raises]").first.click()
            shown.screenshot(path=FOLDER / f"cell-{scheme}.png")


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium: the one that playwright fetched, else one that the system has.

    Raises NoBrowser where there is none.
    """
    with sync_playwright() as playwright:
        try:
            opened = playwright.chromium.launch()
        except Error as error:
            if "Executable doesn't exist" not in error.message:
                raise
            program = next(filter(None, map(shutil.which, NAMES)), None)
            if not program:
                raise NoBrowser(HINT) from None
            opened = playwright.chromium.launch(executable_path=program)
        try:
            yield opened
        finally:
            opened.close()
