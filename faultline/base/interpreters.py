"""Starts other programs: no Python that is started here imports what lies in the folder that somebody is in."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT

PATIENCE = 300.0  # seconds that an answer may take; importing torch takes some of them on a busy machine
MOST = 8 << 20  # bytes of an answer; the list of an environment's packages has some thousand


def command(python: str, *words: str) -> list[str]:
    """The words that start an interpreter, which by itself looks for modules in the current folder first."""
    return [python, "-P", *words]


def ask(
    words: Sequence[str],
    text: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Give a program a text to read; its exit code, and what it printed.

    It runs in a folder of ours. Raises UsageError where it doesn't end in time, prints without end, or can't be run.
    """
    with tempfile.TemporaryFile() if text else open(os.devnull, "rb") as given:
        if text:
            given.write(text.encode())
            given.seek(0)
        try:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{words[0]} can't be run: {error.strerror or error}") from None
    with process:
        try:
            out, err = _read(process, time.monotonic() + patience)
            code = process.wait(patience)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # what it started, too; it is not reaped yet
            if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
                raise UsageError(f"{words[0]} gave no answer within {patience:.0f} seconds") from None
            if isinstance(error, OverflowError):
                raise UsageError(f"{words[0]} printed more than {MOST >> 20} MB in place of an answer") from None
            raise
    return subprocess.CompletedProcess(words, code, out.decode(errors="replace"), err.decode(errors="replace"))


def _read(process: subprocess.Popen[bytes], end: float) -> tuple[bytes, bytes]:
    """The output of a program until it closes both streams; TimeoutError or OverflowError where that is too much."""
    assert process.stdout and process.stderr
    streams = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                streams[key.fileobj] += chunk  # type: ignore[index]
                if len(streams[key.fileobj]) > MOST:  # type: ignore[index]
                    raise OverflowError
    return bytes(streams[process.stdout]), bytes(streams[process.stderr])
