"""What several tests of the command line need, and what is said where there is no browser."""

import atexit
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import settings

from faultline.cli import app
from website import screenshots

os.environ["FAULTLINE_CACHE"] = tempfile.mkdtemp(prefix="faultline-cache-")  # what runs here is measured here
atexit.register(shutil.rmtree, os.environ["FAULTLINE_CACHE"], ignore_errors=True)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch comes: its threads only wait for each other here

settings.register_profile("suite", deadline=None)  # a busy machine is no fault
settings.load_profile("suite")


def pytest_terminal_summary(terminalreporter):
    """Say that the pages were not tested, which a count of skipped tests doesn't."""
    skipped = [each for each in terminalreporter.stats.get("skipped", ()) if screenshots.HINT in str(each.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"the HTML pages were not tested ({len(skipped)} skipped): {screenshots.HINT}", yellow=True
        )


@pytest.fixture(autouse=True)
def cached(tmp_path_factory, monkeypatch):
    """Each test starts without cached results; gives the folder of those that it leaves."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FAULTLINE_CACHE", str(folder))
    return folder


@pytest.fixture
def interruptible():
    """Ctrl-C as in a terminal: a test that runs in the background would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a run keeps Ctrl-C to itself"
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def chromium():
    try:
        with screenshots.browser() as opened:
            yield opened
    except screenshots.NoBrowser as missing:
        pytest.skip(str(missing))


@pytest.fixture
def asked(capsys):
    """Ask for something; gives the exit code, the output and the lines of the errors."""

    def ask(*argv):
        try:
            code = app.main(argv)
        except SystemExit as leaving:
            code = leaving.code
        answer = capsys.readouterr()
        return code, answer.out, answer.err.splitlines()

    return ask


@pytest.fixture
def write(tmp_path):
    """Write a text into a file of the test's own."""

    def write(text):
        file = tmp_path / "written"
        file.write_text(text, encoding="utf-8")
        return file

    return write
