"""`make setup`: the environment is made once, and again where it is unfinished; no test here runs pip on a package."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from faultline.base.packages import NEWEST, OLDEST, pinned
from faultline.base.paths import ROOT
from tests.support.waiting import wait_until

PINS = "# a comment\ntorch==2.13.0\nTest_Lib==1.0  # why\n"
# Stands in for an interpreter: passes for a usable one, and makes a .venv whose pip writes down what it is asked for.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo "$0"; exit; fi
mkdir -p .venv/bin
cat > .venv/bin/pip << 'END'
#!/bin/sh
echo "$PYTHONPATH" "$@" >> pip.log
if [ -e hang ]; then touch hanging; sleep 60; fi
if [ -e broken ]; then exit 1; fi
END
printf '#!/bin/sh\necho "$*" >> python.log\n' > .venv/bin/python
chmod +x .venv/bin/pip .venv/bin/python
"""
# `make test` runs these tests: what it sets would make its messages say that they are another make's.
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
SETUP = ["make", "--no-print-directory", "setup", "PYTHON=./python"]


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile and a few pins."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").write_text(PINS)
    (tmp_path / "requirements.lock").write_text("Test_Lib==1.0 --hash=sha256:0\n")
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(clone, words=SETUP, **settings):
    """Set up; gives how that ended, and what pip was asked for."""
    environment = {**OUTSIDE, **settings}
    done = subprocess.run(words, cwd=clone, capture_output=True, text=True, env=environment, check=False)
    log = clone / "pip.log"
    asked = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return done, asked


def test_the_second_call_installs_nothing(clone):
    """Breaks when pip sees another environment, an import compiles what pip didn't, or a checkout costs a download."""
    done, asked = make(clone, PYTHONPATH="/elsewhere")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in asked] == [".venv/.lock", ".venv/.pins"]
    assert ["--require-hashes" in line for line in asked] == [True, False]
    assert all("--no-compile" in line and "/elsewhere" not in line for line in asked)
    compiled = (clone / "python.log").read_text()
    assert "-m compileall -q -j 0 .venv/lib" in compiled, "each start takes three times as long"
    for _ in range(2):
        done, asked = make(clone)
        assert (done.returncode, done.stdout, asked) == (0, "", [])
        touched(clone)


def touched(clone, more=""):
    """As a checkout leaves the requirements, or somebody who changes them."""
    (clone / "requirements.txt").write_text(PINS + more)
    os.utime(clone / "requirements.txt", (time.time() + 100, time.time() + 100))


def test_other_requirements_and_a_failed_or_interrupted_set_up_are_made_anew(clone, interruptible):
    """Breaks when half an environment passes for a whole one, or something of an older one stays."""
    (clone / "broken").touch()
    assert make(clone)[0].returncode == 2
    (clone / "broken").unlink()
    assert len(make(clone)[1]) == 2
    (clone / ".venv" / "left-over").touch()
    touched(clone, "# another\n")
    (clone / "hang").touch()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen(SETUP, cwd=clone, env=OUTSIDE, start_new_session=True, **quiet)
    wait_until((clone / "hanging").exists, 120)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait() != 0
    (clone / "hang").unlink()
    (clone / "pip.log").unlink()
    assert not (clone / ".venv" / "left-over").exists()
    done, asked = make(clone)
    assert len(asked) == 2 and done.stdout.startswith("set-up: making .venv")


@pytest.mark.parametrize(("lint", "tests"), [(0, 0), (1, 0), (0, 1)])
def test_make_test_runs_all_by_day_and_fails_with_lint_or_a_test(clone, lint, tests):
    """Breaks when `make test` leaves out more than the night's, or ends well although something in it didn't."""
    make(clone)
    (clone / ".venv" / "bin" / "python").write_text(
        f'#!/bin/sh\necho "$*" >> python.log\ncase "$2" in pytest) exit {tests};; mypy) exit {lint};; esac\n'
    )
    for name in ("codespell", "lint-imports"):
        shutil.copy("/bin/true", clone / ".venv" / "bin" / name)
    done, _ = make(clone, [*SETUP[:2], "test", "PYTHON=./python", "SINCE=main"])
    assert (done.returncode == 0) == (lint == tests == 0), done.stderr
    assert f"lint {'failed' if lint else 'passed'}\n" in done.stdout
    ran = (clone / "python.log").read_text()
    assert re.search(r"-m pytest .*tests repros --ignore tests/fleet -m not nightly --since main$", ran, re.M)


def test_a_link_in_place_of_the_environment_keeps_its_target(clone, tmp_path_factory):
    """Breaks when somebody's own environment is emptied because a clone links to it."""
    target = tmp_path_factory.mktemp("elsewhere")
    (target / "mine").touch()
    (clone / ".venv").symlink_to(target)
    make(clone)
    assert (target / "mine").exists() and not (clone / ".venv").is_symlink()


@pytest.mark.parametrize(
    ("version", "usable"),
    [((2, 7), False), ((3, OLDEST - 1), False), ((3, OLDEST), True), ((3, NEWEST), True), ((3, NEWEST + 1), False)],
)
def test_a_wrong_interpreter_is_refused_in_one_line(clone, version, usable):
    """Breaks when pip fails after minutes on a Python that no package is for, or the versions are others elsewhere."""
    pretending = clone / "pretending"
    code = f"import sys; sys.version_info = {version}; sys._base_executable = './python'; exec(sys.argv[1])"
    pretending.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$2"\n')
    pretending.chmod(0o755)
    if usable:
        assert make(clone, [*SETUP[:-1], "PYTHON=./pretending"])[0].returncode == 0
        return
    for python in ("./pretending", "none"):
        done, _ = make(clone, [*SETUP[:-1], f"PYTHON={python}"])
        assert done.returncode == 2 and not (clone / ".venv").exists()
        line, *_, end = done.stderr.splitlines()
        assert line.startswith(f"set-up: Python 3.{OLDEST} to 3.{NEWEST} is needed") and end.startswith("make: ***")


def test_the_lock_has_every_pin_with_hashes_but_torch():
    """Breaks when a pin was raised and the lock wasn't (`make lock`), or one is not read."""
    lock, pins = ROOT / "requirements.lock", pinned(ROOT / "requirements.txt")
    entries = [each for each in re.split(r"\n(?=\S)", lock.read_text()) if each]
    assert all("--hash=sha256:" in each for each in entries)
    assert not [each for each in entries if re.match(r"torch==|triton|cuda-|nvidia-(?!ml-py)", each)]
    named = {name: version for name, version in pins.items() if name != "torch"}
    assert {name: version for name, version in pinned(lock).items() if name in named} == named
    text = (ROOT / "requirements.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(pins) == len(lines)
