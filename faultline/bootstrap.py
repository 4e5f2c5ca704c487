"""Make .venv from the pinned requirements.txt, or see within a moment that it is there and whole."""

import csv
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OLDEST, NEWEST = 11, 13


def refusal(major: int, minor: int) -> str:
    """Why this interpreter can't be used, or nothing."""
    if major == 3 and OLDEST <= minor <= NEWEST:
        return ""
    return (
        f"set-up: Python 3.{OLDEST} to 3.{NEWEST} is needed and this is {major}.{minor}; "
        f"name another one with PYTHON=, such as make setup PYTHON=python3.{NEWEST}"
    )


# Up here because an old interpreter fails at the annotations below, and would say nothing of use.
if __name__ == "__main__" and refusal(sys.version_info[0], sys.version_info[1]):
    print(refusal(sys.version_info[0], sys.version_info[1]), file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".complete"
# Others depend on torch: were it not there first, pip would pick a build for them by itself.
FIRST = "torch"


class SetupFailed(Exception):
    """The environment can't be made; the message says why, with the last words of what failed."""


Install = Callable[[Path, Path], None]


def main() -> int:
    # The default would end this process and leave pip running: an exception ends both.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        ensure(ROOT / ".venv", ROOT / "requirements.txt")
    except KeyboardInterrupt:
        print("\nset-up: interrupted; the next call starts afresh", file=sys.stderr)
        return 130
    except (SetupFailed, OSError) as error:
        print(f"\nset-up failed: {error}", file=sys.stderr)
        return 2
    return 0


def ensure(venv: Path, requirements: Path, install: Install | None = None) -> None:
    """Leave a whole environment behind: at once where it is there, else by making it anew."""
    with locked(requirements):
        wrong = problem(venv, requirements)
        if not wrong:
            return
        started = time.monotonic()
        print(f"set-up: {venv.name} {wrong}; making it takes about a minute, and the download", flush=True)
        wanted = digest(requirements)  # taken first: a file that is edited meanwhile is noticed by the next call
        remove(venv)
        (install or install_with_pip)(venv, requirements)
        wrong = broken(venv, requirements)
        if wrong:
            raise SetupFailed(f"everything was installed, and yet {venv.name} {wrong}")
        write_stamp(venv, wanted)
        print(f"set-up: done in {time.monotonic() - started:.0f} s", flush=True)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Keep a second call out until this one is through."""
    with open(file, "rb+") as lock:  # for writing, which locks over NFS ask for
        # Inherited on purpose: a pip that outlives a killed call still holds the lock.
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("set-up: waiting for another call that is at it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def problem(venv: Path, requirements: Path) -> str:
    """What is wrong with the environment, as the end of a sentence about it, or nothing."""
    if not venv.exists():
        return "does not exist yet"
    stamp = read_stamp(venv)
    if not stamp:
        return "was never finished"
    if stamp["requirements"] != digest(requirements):
        return f"was made from another {requirements.name}"
    if stamp["python"] != platform.python_version():
        return f"was made for Python {stamp['python']} and this is {platform.python_version()}"
    return broken(venv, requirements) or lost(venv, stamp["files"])


def broken(venv: Path, requirements: Path) -> str:
    """What can be seen to be wrong without knowing what was installed."""
    if interpreter(venv) != platform.python_version():
        return f"holds no Python that runs as {platform.python_version()}"
    found = distributions(venv)
    for name, version in pinned(requirements).items():
        if name not in found:
            return f"lacks {name}"
        # A build has a version of its own behind the plus: 2.13.0+cpu is 2.13.0.
        if version not in (found[name], found[name].split("+")[0]):
            return f"holds {name} {found[name]} in place of {version}"
    package = site_packages(venv) / FIRST
    if package.is_dir() and not any(package.glob("__pycache__/*.pyc")):
        return "has lost its byte code"  # without which every start takes three times as long
    return ""


def lost(venv: Path, files: dict[str, int]) -> str:
    """Which distribution has fewer of its files than it had when the stamp was written."""
    for name, count in files.items():
        left = present(site_packages(venv) / name)
        if left < count:
            return f"lacks {count - left} of the {count} files of {name.removesuffix('.dist-info')}"
    return ""


def interpreter(venv: Path) -> str:
    """The version that the environment's Python says it has, or nothing where it doesn't run."""
    code = "import platform; print(platform.python_version())"
    try:
        ran = subprocess.run(
            [venv / "bin" / "python", "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip()


def site_packages(venv: Path) -> Path:
    return venv / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"


def distributions(venv: Path) -> dict[str, str]:
    """What is installed: versions by normalised name, as the folders of metadata are called."""
    found = {}
    for folder in site_packages(venv).glob("*.dist-info"):
        if (folder / "METADATA").is_file():
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found[normalised(name)] = version
    return found


def present(folder: Path) -> int:
    """How many of the files that a distribution recorded are there; byte code comes and goes."""
    try:
        with open(folder / "RECORD", newline="", encoding="utf-8") as record:
            paths = [row[0] for row in csv.reader(record) if row and not row[0].endswith(".pyc")]
    except FileNotFoundError:
        return 0
    return sum(os.path.exists(os.path.join(folder.parent, path)) for path in paths)


def pinned(requirements: Path) -> dict[str, str]:
    """The versions that a requirements file asks for, by normalised name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;#]+)", requirements.read_text(), re.MULTILINE)
    return {normalised(name): version for name, version in pins}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_stamp(venv: Path) -> dict[str, Any] | None:
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and stamp.keys() == {"requirements", "python", "files"} else None


def write_stamp(venv: Path, wanted: str) -> None:
    """Written last and in one stroke, so that it stands for everything before it."""
    files = {
        folder.name: present(folder)
        for folder in sorted(site_packages(venv).glob("*.dist-info"))
        if not folder.name.startswith("pip-")  # who renews pip by hand has broken nothing
    }
    stamp = {"requirements": wanted, "python": platform.python_version(), "files": files}
    draft = venv / f"{STAMP}.draft"
    draft.write_text(json.dumps(stamp, indent=1))
    os.replace(draft, venv / STAMP)


def remove(venv: Path) -> None:
    if venv.is_symlink() or venv.is_file():
        venv.unlink()  # what a link points to is somebody's own, and so is the stamp in it
    elif venv.exists():
        (venv / STAMP).unlink(missing_ok=True)  # first: half an environment must not carry it
        shutil.rmtree(venv)


def install_with_pip(venv: Path, requirements: Path) -> None:
    """Create the environment and fill it, with pip's own configuration in force."""
    # The one below a virtual environment: this process may run from the .venv that was just removed.
    python = getattr(sys, "_base_executable", sys.executable)
    step(f"creating {venv.name} for Python {platform.python_version()}", [python, "-m", "venv", str(venv)])
    inside = str(venv / "bin" / "python")
    # Byte code is compiled below instead, on every core at once.
    pip = [inside, "-m", "pip", "install", "--quiet", "--no-compile", "--no-input", "--disable-pip-version-check"]
    first = pinned(requirements).get(FIRST)
    if first:
        step(f"installing {FIRST} {first}", [*pip, f"{FIRST}=={first}"])
    step(f"installing the rest of {requirements.name}", [*pip, "-r", str(requirements)])
    # Its exit status says nothing: torch ships a file that only newer Pythons can compile.
    compiling = [inside, "-m", "compileall", "-q", "-j", "0", str(site_packages(venv))]
    step("compiling byte code", compiling, must_succeed=False)


def step(text: str, command: list[str], must_succeed: bool = True) -> None:
    """Run one command of the installation; its output is shown only where it fails."""
    started = time.monotonic()
    print(f"set-up: {text} ...", end="", flush=True)
    # PYTHONPATH would let pip take another environment's packages for this one's, and others keep byte code away.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        command,
        env={**environment, "PIP_USER": "0"},  # the one setting that no virtual environment can honour
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,
        text=True,
        errors="replace",
        check=False,
    )
    print(f" {time.monotonic() - started:.0f} s", flush=True)
    if must_succeed and ran.returncode:
        words = "\n".join(f"  {line}" for line in ran.stdout.strip().splitlines()[-15:])
        raise SetupFailed(f"{text} ended with exit code {ran.returncode}\n{words}")


if __name__ == "__main__":
    sys.exit(main())
