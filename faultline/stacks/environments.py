"""Environments of stacks: resolved and made by uv, each once, and found again by what was resolved."""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec
import platformdirs
from filelock import FileLock, Timeout
from packaging.utils import canonicalize_name

from faultline.base.errors import NotInstalled, Uninstallable, UsageError
from faultline.base.interpreters import ask, command
from faultline.base.packages import NEWEST, OLDEST, STACK, TO_START
from faultline.base.paths import ROOT
from faultline.base.text import plain
from faultline.stacks import pip, requests
from faultline.stacks.requests import UNDATED, Stack, base, installed, requirement

# A clone's environment of the supervisor, if that has Ray, and of the stack, which hasn't.
OF_FLEET, OF_STACK = ROOT / ".fleet", ROOT / ".venv" / "bin" / "python"
LOOKING = 60.0  # seconds that an interpreter may take to list its packages
READY = "faultline.json"  # written last: an environment without it is not one
# What uv, and git on its behalf, say when nobody can know whether a stack exists: that is no property of the stack. A
# file, repository or reference that isn't there is one.
UNREACHABLE = re.compile(
    r"error sending request|dns error|Could not connect|Failed to fetch(?!.*\((404|410) )"
    r"|timed out|network timeout|[Cc]onnection (refused|reset|closed)|error decoding response body"
    r"|Network (is unreachable|is down|connectivity is disabled)|No route to host|handshake eof|peer certificate"
    r"|status (server|client) error \((401|403|407|408|429|5\d\d) "
    r"|unable to access|Could not resolve host|Permission denied \(publickey|early EOF|hung up unexpectedly"
    r"|Git executable not found|Git operation failed$"
)
FULL = re.compile(r"No space left on device|os error 28|Disk quota exceeded")

# What an interpreter is asked: its version, and what is installed.
LOOK = """
import json, sys
from importlib import metadata

installed = sorted({f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()})
print(json.dumps([sys.version_info[:2], "".join(line + chr(10) for line in installed)]))
"""

_marks: dict[Path, TextIO] = {}  # of the environments that this process uses


@dataclass(frozen=True)
class Environment:
    """Where a stack is installed: its interpreter, and the exact version of every package, a line each."""

    python: str
    lock: str

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the packages under test."""
        return {name: version for name, version in pins(self.lock).items() if name in STACK}


HERE = Environment(sys.executable, "")
"""This process's interpreter, whatever is installed beside it."""


def ready(stack: Stack) -> Environment:
    """The environment of a stack, made unless it is there.

    Raises Uninstallable, and UsageError where this machine is to blame: no network, a full disk.
    """
    if stack.here:
        here = Environment(sys.executable, "\n".join(installed()) + "\n")
        if Path(sys.prefix) == OF_FLEET:
            return existing(str(OF_STACK))
        if lacking := missing(here):
            raise NotInstalled(lacking)
        return here
    return make(resolve(stack))


def chosen(stack: str, python: str) -> Environment:
    """The environment that is asked for: an interpreter's if one is named, else that of a stack."""
    return existing(python) if python else ready(requests.parse(stack))


def existing(python: str) -> Environment:
    """Somebody's own environment, by its interpreter; raises UsageError where the suite's ranks can't run in it."""
    program = shutil.which(python)
    if not program:
        raise UsageError(f"{plain(python)} is no program that can be run: name a Python interpreter")
    # Its own path, not the one that it links to: a virtual environment's is a link.
    program = os.path.abspath(program)
    try:
        look = ask(command(program, "-c", LOOK), patience=LOOKING).stdout
        version, lock = msgspec.json.decode(look, type=tuple[tuple[int, int], str])
    except ValueError:
        raise UsageError(f"{plain(python)} does not run as Python") from None
    if not (3, OLDEST) <= version <= (3, NEWEST):
        raise UsageError(f"{plain(python)} is Python {version[0]}.{version[1]}; 3.{OLDEST} to 3.{NEWEST} can be used")
    environment = Environment(program, lock)
    if lacking := missing(environment):
        raise UsageError(f"{plain(python)} lacks {lacking}: install that there, or name another environment")
    return environment


def missing(environment: Environment) -> str:
    """What an environment lacks of the packages that no rank starts without, with commas between them."""
    return ", ".join(name for name in TO_START if name not in pins(environment.lock))


def resolve(stack: Stack) -> str:
    """The exact version of every package, a line each, as ``uv pip compile`` writes them."""
    with tempfile.TemporaryDirectory(prefix="faultline-") as folder:
        lock, wanted, fixed = (Path(folder) / name for name in ("lock.txt", "wanted.in", "fixed.txt"))
        lock.write_text("\n".join(stack.base))  # uv prefers what the file it writes held before
        wanted.write_text("\n".join(stack.requirements))
        changed = any(requirement(text) == "torch" and text != "torch" for text in stack.requirements)
        fixed.write_text("" if changed else next(pin for pin in base() if pin.startswith("torch==")))
        words = ["pip", "compile", str(wanted), "--constraints", str(fixed), "--output-file", str(lock)]
        words += ["--python", sys.executable, "--no-header", "--no-annotate"]
        if stack.asof:
            words += ["--exclude-newer", stack.asof]
            # A date is for what the requirements leave open.
            for name in sorted({*UNDATED, *(requirement(text) for text in stack.requirements if "==" in text)}):
                words += ["--exclude-newer-package", f"{name}=2100-01-01"]
        run_uv(words)
        return "\n".join(sorted(line for line in lock.read_text().splitlines() if line.strip())) + "\n"


def make(lock: str) -> Environment:
    """The environment that holds exactly what a lock names; a second call and another process find it again."""
    kind = f"{platform.python_implementation()} {platform.python_version()} {sys.platform} {platform.machine()}"
    text = f"{kind}\n{lock}"
    folder = cache() / hashlib.sha256(text.encode()).hexdigest()[:16]
    python = folder / "bin" / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held: list[int] = []
        with FileLock(folder.with_suffix(".lock"), on_acquired=held.append):
            # The interpreter is a link to one outside, which may have been removed since.
            if not ((folder / READY).exists() and os.access(python, os.X_OK)):
                shutil.rmtree(folder, ignore_errors=True)
                try:
                    install(folder, lock, held)
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
            use(folder)
    except OSError as error:
        raise UsageError(f"no environment can be made in {folder.parent}: {error.strerror or error}") from None
    return Environment(str(python), lock)


def install(folder: Path, lock: str, held: Sequence[int]) -> None:
    """Fill a new environment; byte code is left to its first use, which needs but a part of it.

    `held` has the descriptor of the folder's lock. uv inherits it: one that outlives a killed call still holds it.
    """
    run_uv(["venv", "--python", sys.executable, str(folder)], held)
    file = folder / "lock.txt"
    file.write_text(lock)
    run_uv(["pip", "sync", "--python", str(folder / "bin" / "python"), str(file)], held)
    draft = folder / f"{READY}.partial"
    draft.write_text(json.dumps({"python": platform.python_version(), "packages": pins(lock)}))
    draft.replace(folder / READY)


def pins(lock: str) -> dict[str, str]:
    """The version of each package in a lock; a package from a repository has its reference."""
    versions: dict[str, str] = {}
    for line in filter(None, lock.splitlines()):
        name, _, version = line.partition("==") if "==" in line else line.partition(" @ ")
        versions[canonicalize_name(name.strip())] = version.split(";")[0].strip()
    return versions


def cache() -> Path:
    """Where environments are kept."""
    return platformdirs.user_cache_path("faultline") / "stacks"


def clean() -> tuple[list[Path], list[Path]]:
    """Remove the environments that no process uses or makes; gives those, and the others. uv keeps its downloads."""
    removed: list[Path] = []
    in_use: list[Path] = []
    for folder in sorted(path for path in cache().glob("*") if path.is_dir()):
        lock = folder.with_suffix(".lock")
        try:
            with FileLock(lock, blocking=False):
                if used(folder):
                    in_use.append(folder)
                    continue
                (folder / READY).unlink(missing_ok=True)
                shutil.rmtree(folder)
                lock.unlink()  # while it is held: who waits for it sees that and makes another
                removed.append(folder)
        except Timeout:
            in_use.append(folder)
    return removed, in_use


def use(folder: Path) -> None:
    """Share a lock on an environment's mark as long as this process lives, however it ends."""
    mark = (folder / READY).open()
    fcntl.flock(mark, fcntl.LOCK_SH)
    _marks[folder] = mark


def used(folder: Path) -> bool:
    """Whether a process, perhaps this one, has a lock on an environment's mark."""
    try:
        with (folder / READY).open("rb+") as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def run_uv(words: Sequence[str], held: Sequence[int] = ()) -> None:
    """Run uv with pip's settings, and descriptors that it inherits.

    Raises Uninstallable with its reason, or UsageError where that is this machine's.
    """
    import uv  # here, as an installed package has it only with its extra

    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment = pip.settings() | outer
    if words[0] == "pip" and environment.get("UV_NO_INDEX"):
        words = [*words, "--no-index"]
    done = subprocess.run(
        [uv.find_uv_bin(), "--quiet", "--no-progress", "--no-config", *words],
        env=environment,
        pass_fds=held,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if not done.returncode:
        return
    reason = in_a_line(done.stderr.split("\nhint:")[0])[:500] or f"uv ended with exit code {done.returncode}"
    if FULL.search(done.stderr):
        raise UsageError(
            f"the disk is full: {reason}; `faultline maintain clean stacks` removes environments that no run uses"
        )
    if unreachable(done.stderr):
        raise UsageError(f"the package index, or a repository, can't be reached: {reason}")
    raise Uninstallable(reason)


def unreachable(text: str) -> bool:
    """Whether what uv wrote is about the network: no contradiction that a resolver found, nor what a build printed."""
    message = in_a_line(re.split(r"\[(?:stdout|stderr)\]", text)[0])
    if "No solution found" in message:
        return "the network was disabled" in message
    return bool(UNREACHABLE.search(message))


def in_a_line(text: str) -> str:
    """What uv wrote, without marks or colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    words = (re.sub(r"^\W*(error:|cause:|Caused by:)?\s*", "", line).strip() for line in lines)
    return " ".join(" ".join(filter(None, words)).split())
