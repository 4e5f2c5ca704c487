"""Run by itself: a process that has imported what exports import, and runs each file in a fork of itself."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import runpy
import sys
import tempfile
import traceback


def main() -> None:
    """Import the arguments, modules or what is in them. Then read a folder from each line of standard input, run its
    repro.py there with `output` as its terminal, and answer with the process's id and then its exit code."""
    for name in sys.argv[1:]:
        pkgutil.resolve_name(name)
    answers = os.dup(1)
    for line in sys.stdin:
        pid = os.fork() or run(line.rstrip("\n"))
        os.write(answers, f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, f"{code}\n".encode())


def run(folder: str) -> int:
    """Be `python repro.py` in that folder; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"], tempfile.tempdir, sys.argv = folder, None, ["repro.py"]
        runpy.run_path("repro.py", run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001 (whatever ends a file is its result)
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
