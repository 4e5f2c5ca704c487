"""Hostile logs, through the whole command: bounded memory, an end within seconds, nothing that steers a terminal."""

import contextlib
import itertools
import resource
import subprocess
import sys
import threading
from collections.abc import Iterable

import pytest

from faultline.base.paths import ROOT
from faultline.base.text import plain
from faultline.diagnose import lines
from tests.support.night import sampled

pytestmark = pytest.mark.slow

MEMORY = 640 << 20  # bytes of address space, a third of the largest line
PATIENCE = 300  # seconds that no log of these takes, on whichever machine
MIB = 1 << 20

KNOWN = b"\nAssertionError: The parameter 7 has already been reduced. Gradient computed twice for this partition.\n"


def diagnosed(*args: str, content: Iterable[bytes] = ()) -> tuple[int, str, str]:
    """Exit code and output of the command, which reads content from a pipe if there is any."""
    process = subprocess.Popen(
        [sys.executable, "-m", "faultline", "diagnose", *(args or ["-"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        cwd=ROOT,
    )
    limit = threading.Timer(PATIENCE, process.kill)
    limit.start()
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it answers once it has read all
        pipe.writelines(content)
    out, errors = process.stdout.read(), process.stderr.read()
    limit.cancel()
    return process.wait(), out.decode(), errors.decode()


def repeated(piece: bytes, size: int) -> Iterable[bytes]:
    """A piece over and over, nearly until it has the size."""
    block = piece * max(1, MIB // len(piece))
    return itertools.repeat(block, size // len(block))


def harmless(out: str, errors: str) -> None:
    assert plain(out) == out and plain(errors) == errors, "the log wrote to the terminal"
    assert "Traceback (most recent" not in errors and len(errors.splitlines()) <= 1, errors


def test_a_line_of_two_gigabytes_is_read_in_a_third_of_its_size():
    """Breaks when a line without an end is held in memory, or hides what comes after it."""
    code, out, errors = diagnosed(content=itertools.chain(repeated(b"x", 2 << 30), [KNOWN]))
    assert (code, errors) == (0, "") and out.startswith("zero_double_reduction")


@pytest.mark.nightly
def test_a_file_of_two_gigabytes_is_read_as_a_pipe_is(tmp_path):
    """Breaks when a file is read as a whole."""
    file = tmp_path / "sparse.log"
    with file.open("wb") as stream:  # zeros that take no room
        stream.truncate(2 << 30)
        stream.seek(2 << 30)
        stream.write(KNOWN)
    code, out, errors = diagnosed(str(file))
    assert (code, errors) == (0, "") and out.startswith("zero_double_reduction")


PIECES = (
    *(b"Error: ", b"\x1b[31m", b"\x1b[", b"\r 99%|Error", b"a.b.", b"[rank1]: ", b'{"log": "\\n', b'{"message": ['),
    *("│".encode(), b"x"),
)
"""What long lines are made of, on which a pattern may choke."""
BREAKS = {
    "indented": b" " * 60_000 + b"rank : x\n",
    "parameters of a colour": b"\x1b[" + b";" * 60_000 + b"\n",
    "nested": b'{"message":' + b"[" * 30_000 + b"]" * 30_000 + b"}\n",
    "nested without an end": b'{"message":' + b"[" * 60_000 + b"\n",
    "letters": b"x" * 60_000 + b"\n",
}
"""Lines of nearly the length that is kept."""


def test_only_the_beginning_of_a_long_line_is_searched():
    """Breaks when one line sends a pattern back and forth for ever, or a whole line is searched for what only its
    beginning may have; `make bench` says what it costs."""
    for name, line in BREAKS.items():
        most = lines.WIDTH if line.startswith(b"{") else lines.PLAIN
        results = list(lines.split([line * 3]))
        assert results and all(len(each) <= most for _, each in results), name
    long = (itertools.chain(repeated(piece, 32 * MIB), [b"\n"]) for piece in PIECES)
    every = itertools.chain(*long, *(repeated(each, 32 * MIB) for each in BREAKS.values()))
    code, out, errors = diagnosed(content=every)
    harmless(out, errors)
    assert code == 1


LINES = {
    "errors that are survived": b"ValueError: x\n{'loss': 0.1}\n",
    "errors without a loss that all differ": b"".join(b"RuntimeError: %x\n" % n**9 for n in range(50_000)),
    "errors that all differ": b"".join(b"ValueError: %d\n{'loss': 0.1}\n" % n for n in range(50_000)),
    "consequences that all differ": b"".join(b"OSError: Connection closed by peer %d\n" % n for n in range(50_000)),
    "writers that all differ": b"".join(b"[rank%d]: Traceback (most recent call last):\n" % n for n in range(50_000)),
    "frames without an end": b'  File "x.py", line 1, in f\n',
    "tracebacks": b'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: x\n\n',
    "chains": b"ValueError: x\nDuring handling of the above exception, another exception occurred:\n",
    "summaries": b"Root Cause (first observed failure):\n  time      : 2025-04-02_10:00:00\n  rank      : 1\n",
    "records": b'{"message": "ValueError: x", "time": "2025-04-02T10:00:00Z", "pod": "a-1"}\n',
    "signals": b"".join(b"exitcode: -9 of %d\n" % n for n in range(50_000)),
    "steps without a gradient": b"{'loss': 0.0, 'grad_norm': 0.0}\n",
    "settings": b"deepspeed zero3 fsdp trl==0.15.2\n",
}


@pytest.mark.parametrize("name", sampled(LINES, 12))
def test_hundreds_of_thousands_of_lines_that_all_matter_come_to_an_end(name):
    """Breaks when each of them is looked at as closely as a healthy log's few."""
    code, out, errors = diagnosed(content=repeated(LINES[name], 4 * MIB))
    harmless(out, errors)
    assert code in (0, 1) and out


HOSTILE = b"\x1b]0;title\x07\x1b[2J\x1b[H\x9b31m\xc2\x9b2J\xe2\x80\xae[bold red]gone[/]\x00\x08\x7f\r\x1bc"
TAKEN_OVER = (
    b"RuntimeError: %s\n",
    b"[rank1]: AssertionError: The parameter 7 has already been reduced %s\n",
    b'Traceback (most recent call last):\n  File "%s", line 1\n%sError: x%s\n',
    b"[Rank 3] Watchdog caught collective operation timeout %s\n",
    b"%s\n",
    b"trl==%s\ndeepspeed version: 0.1%s\nValueError: x\n",
)
"""Lines of which an answer shows a part."""


def test_nothing_of_a_log_reaches_the_terminal_as_a_command(tmp_path, asked):
    """Breaks when a log can clear the screen, set a title, turn the text around or write rich's markup."""
    file = tmp_path / "\x1b[2J\u202elog"
    for line, form in itertools.product(TAKEN_OVER, ([], ["--json"])):
        file.write_bytes(line.replace(b"%s", HOSTILE))
        code, out, errors = asked("diagnose", str(file), *form)
        harmless(out, "\n".join(errors))
        assert code in (0, 1, 2) and (code == 2) == bool(errors), line
