"""The set-up notices what is wrong with an environment; no test here runs pip on a package."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from faultline import bootstrap

PINS = "# a comment\ntorch==2.13.0\nTest_Lib==1.0  # why\n"


class Installer:
    """Stands in for pip: lays out what an installation leaves, and counts how often it was asked to."""

    def __init__(self, leave_out="", seconds=0.0, fail=None):
        self.calls, self.leave_out, self.seconds, self.fail = 0, leave_out, seconds, fail
        self.at_once = self.most_at_once = 0

    def __call__(self, venv, requirements):
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.seconds)
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        for name, version in (("torch", "2.13.0+cpu"), ("test_lib", "1.0"), ("numpy", "3.0")):
            if name != self.leave_out:
                distribution(bootstrap.site_packages(venv), name, version)
        self.at_once -= 1
        if self.fail:
            raise self.fail


def distribution(site, name, version):
    """A package of two files with byte code, and its metadata."""
    folders = site / name, site / name / "__pycache__", site / f"{name}-{version}.dist-info"
    for folder in folders:
        folder.mkdir(parents=True)
    listed = [f"{name}/__init__.py", f'"{name}/a,b.py"', f"{name}/__pycache__/__init__.pyc"]
    for file in listed:
        (site / file.strip('"')).write_text("")
    (folders[2] / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (folders[2] / "RECORD").write_text("".join(f"{file},sha256=x,0\n" for file in listed))


@pytest.fixture
def requirements(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(PINS)
    return file


@pytest.fixture
def venv(tmp_path, requirements):
    """A whole environment, made by the stand-in."""
    folder = tmp_path / ".venv"
    bootstrap.ensure(folder, requirements, Installer())
    return folder


def site(venv):
    return bootstrap.site_packages(venv)


def test_the_second_call_installs_nothing(venv, requirements, capsys):
    capsys.readouterr()
    installer = Installer()
    bootstrap.ensure(venv, requirements, installer)
    assert installer.calls == 0
    assert capsys.readouterr().out == ""


def drop_stamp(venv):
    (venv / bootstrap.STAMP).unlink()


def spoil_stamp(venv):
    (venv / bootstrap.STAMP).write_text('{"requirements": ')


def other_stamp(venv):
    (venv / bootstrap.STAMP).write_text("{}")


def other_python(venv):
    file = venv / bootstrap.STAMP
    file.write_text(file.read_text().replace(f'"{platform.python_version()}"', '"3.11.0rc1"'))


def drop_metadata(venv):
    bootstrap.remove(site(venv) / "test_lib-1.0.dist-info")


def other_version(venv):
    (site(venv) / "test_lib-1.0.dist-info").rename(site(venv) / "test_lib-1.0.1.dist-info")


def drop_package(venv):
    bootstrap.remove(site(venv) / "torch")


def drop_file(venv):
    (site(venv) / "test_lib" / "a,b.py").unlink()


def drop_dependency(venv):
    bootstrap.remove(site(venv) / "numpy-3.0.dist-info")


def drop_byte_code(venv):
    bootstrap.remove(site(venv) / "torch" / "__pycache__")


def dangling_python(venv):
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/nowhere/python")


def silent_python(venv):
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/bin/false")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (drop_stamp, "was never finished"),
        (spoil_stamp, "was never finished"),
        (other_stamp, "was never finished"),
        (other_python, "was made for Python 3.11.0rc1"),
        (drop_metadata, "lacks test-lib"),
        (other_version, "holds test-lib 1.0.1 in place of 1.0"),
        (drop_package, "lacks 2 of the 2 files of torch-2.13.0+cpu"),
        (drop_file, "lacks 1 of the 2 files of test_lib-1.0"),
        (drop_dependency, "lacks 2 of the 2 files of numpy-3.0"),
        (drop_byte_code, "has lost its byte code"),
        (dangling_python, "holds no Python that runs"),
        (silent_python, "holds no Python that runs"),
    ],
)
def test_harm_is_named_and_mended(venv, requirements, capsys, harm, says):
    harm(venv)
    (venv / "left-over").touch()
    installer = Installer()
    bootstrap.ensure(venv, requirements, installer)
    assert f".venv {says}" in capsys.readouterr().out
    assert installer.calls == 1
    assert not (venv / "left-over").exists()
    assert bootstrap.problem(venv, requirements) == ""


def test_other_requirements_are_noticed(venv, requirements):
    requirements.write_text(PINS + "# one more word\n")
    assert bootstrap.problem(venv, requirements) == "was made from another requirements.txt"


def test_requirements_edited_during_an_installation_are_noticed(tmp_path, requirements):
    def install(venv, requirements):
        Installer()(venv, requirements)
        requirements.write_text(PINS + "# one more word\n")

    bootstrap.ensure(tmp_path / ".venv", requirements, install)
    assert bootstrap.problem(tmp_path / ".venv", requirements) == "was made from another requirements.txt"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143), bootstrap.SetupFailed("pip"), OSError("full")])
def test_an_installation_cut_short_leaves_no_stamp(tmp_path, requirements, end):
    venv = tmp_path / ".venv"
    with pytest.raises(type(end)):
        bootstrap.ensure(venv, requirements, Installer(fail=end))
    assert bootstrap.problem(venv, requirements) == "was never finished"
    bootstrap.ensure(venv, requirements, Installer())
    assert bootstrap.problem(venv, requirements) == ""


def test_a_cut_short_repair_leaves_no_stamp(venv, requirements):
    drop_file(venv)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.ensure(venv, requirements, Installer(fail=KeyboardInterrupt()))
    assert bootstrap.problem(venv, requirements) == "was never finished"


def test_an_installation_that_lacks_a_pin_gets_no_stamp(tmp_path, requirements):
    with pytest.raises(bootstrap.SetupFailed, match="lacks test-lib"):
        bootstrap.ensure(tmp_path / ".venv", requirements, Installer(leave_out="test_lib"))
    assert bootstrap.problem(tmp_path / ".venv", requirements) == "was never finished"


def test_a_link_in_place_of_the_environment_keeps_its_target(tmp_path, requirements):
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "mine").touch()
    (target / bootstrap.STAMP).write_text("{}")
    (tmp_path / ".venv").symlink_to(target)
    bootstrap.ensure(tmp_path / ".venv", requirements, Installer())
    assert (target / "mine").exists()
    assert (target / bootstrap.STAMP).exists(), "another checkout's environment counts as unfinished now"
    assert not (tmp_path / ".venv").is_symlink()


def test_two_at_once_wait_for_each_other(tmp_path, requirements, capsys):
    installer = Installer(seconds=0.2)
    calls = [
        threading.Thread(target=bootstrap.ensure, args=(tmp_path / ".venv", requirements, installer)) for _ in range(2)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert (installer.calls, installer.most_at_once) == (1, 1)
    assert "waiting for another call" in capsys.readouterr().out


HOLDER = """
import pathlib, sys
from faultline import bootstrap

with bootstrap.locked(pathlib.Path(sys.argv[1])):
    bootstrap.step("installing", ["sh", "-c", "echo $$ > $0.draft; mv $0.draft $0; exec sleep 60", sys.argv[2]])
"""


def test_a_child_that_outlives_a_killed_call_keeps_the_lock(tmp_path, requirements):
    said = tmp_path / "child"
    command = [sys.executable, "-c", HOLDER, str(requirements), str(said)]
    holder = subprocess.Popen(command, cwd=bootstrap.ROOT, stdout=subprocess.DEVNULL)
    child = int(read_soon(said))
    holder.kill()
    holder.wait()
    waiting = threading.Thread(target=bootstrap.ensure, args=(tmp_path / ".venv", requirements, Installer()))
    waiting.start()
    waiting.join(0.2)
    waited = waiting.is_alive()
    os.kill(child, signal.SIGKILL)
    waiting.join(10)
    assert waited
    assert not waiting.is_alive()


def read_soon(file: Path) -> str:
    deadline = time.monotonic() + 20
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return file.read_text()


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 10), (3, 14), (4, 11)])
def test_a_wrong_interpreter_is_refused_in_one_line(version):
    refusal = bootstrap.refusal(*version)
    assert f"3.11 to 3.13 is needed and this is {version[0]}.{version[1]}" in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_a_right_interpreter_is_not_refused(minor):
    assert bootstrap.refusal(3, minor) == ""


def test_a_wrong_interpreter_ends_with_exit_code_2():
    pretending = (
        "import runpy, sys; sys.version_info = (3, 10, 1); runpy.run_module('faultline.bootstrap', None, '__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", pretending], cwd=bootstrap.ROOT, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "this is 3.10" in ran.stderr


def test_a_failing_step_shows_its_last_lines(capsys):
    with pytest.raises(bootstrap.SetupFailed) as failure:
        bootstrap.step("counting", ["sh", "-c", "seq 100; exit 3"])
    lines = str(failure.value).splitlines()
    assert lines[0] == "counting ended with exit code 3"
    assert lines[-1] == "  100"
    assert len(lines) == 16
    assert "counting ..." in capsys.readouterr().out


def test_a_step_sees_no_python_settings_and_keeps_those_of_pip(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.org/simple")
    bootstrap.step("looking", ["sh", "-c", f"env > {tmp_path}/env"])
    seen = (tmp_path / "env").read_text().splitlines()
    assert not any(line.startswith("PYTHON") for line in seen)
    assert "PIP_INDEX_URL=https://example.org/simple" in seen


def test_a_failed_set_up_ends_with_exit_code_2_and_an_interrupted_one_with_130(monkeypatch, capsys):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for end, code in ((bootstrap.SetupFailed("no pip"), 2), (OSError("disk full"), 2), (KeyboardInterrupt(), 130)):

        def ensure(venv, requirements, end=end):
            raise end

        monkeypatch.setattr(bootstrap, "ensure", ensure)
        assert bootstrap.main() == code
    assert "no pip" in capsys.readouterr().err


def test_the_pins_of_this_repository_are_all_read():
    text = (bootstrap.ROOT / "requirements.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(bootstrap.pinned(bootstrap.ROOT / "requirements.txt")) == len(lines)
