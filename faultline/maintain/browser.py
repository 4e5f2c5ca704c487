"""A headless browser that is installed here, for the tests of the pages and for their pictures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Error, sync_playwright

from faultline.base.errors import NoBrowser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = ".venv/bin/python -m playwright install --with-deps --only-shell chromium"
HINT = f"no browser is installed: `{INSTALL}` fetches one, as does apt-get install chromium on Debian"


@contextmanager
def opened() -> Iterator[Browser]:
    """A headless Chromium: the one that playwright fetched, else one that the system has.

    Raises NoBrowser where there is none.
    """
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch()
        except Error as error:
            if "Executable doesn't exist" not in error.message:
                raise
            found = next(filter(None, map(shutil.which, NAMES)), None)
            if not found:
                raise NoBrowser(HINT) from None
            browser = playwright.chromium.launch(executable_path=found)
        try:
            yield browser
        finally:
            browser.close()
