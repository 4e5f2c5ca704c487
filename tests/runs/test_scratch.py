"""Temporary folders: what a killed process left goes, and what a living one has stays."""

import subprocess
import sys

import psutil

from faultline.base.paths import ROOT
from faultline.runs import scratch
from tests.support import light

OWNER = """
import os, subprocess, sys
from faultline.runs import scratch
folder = scratch.made(within=sys.argv[1])
program = subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": f"{folder.path}/cell"}, stdout=2)
print(folder.path, program.pid, flush=True)
sys.stdin.read()
"""


def owner(folder):
    """A process that has a folder, and a program that works in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    path, pid = process.stdout.readline().split()
    return process, folder / path, psutil.Process(int(pid))


def left_by_one_that_was_killed(folder):
    """The folder, and the program in it, of a process that was killed."""
    process, path, program = owner(folder)
    process.kill()
    process.wait()
    return path, program


def test_what_a_killed_process_left_goes(tmp_path):
    """Breaks when folders and programs pile up on nodes whose slots are killed together with their rank servers."""
    path, program = left_by_one_that_was_killed(tmp_path)
    assert path.is_dir() and program.is_running()
    new = scratch.made(within=str(tmp_path))
    assert [*tmp_path.iterdir()] == [new.path]
    assert light.have_ended([program.pid])
    new.close()
    assert not [*tmp_path.iterdir()]


def test_a_program_that_was_just_started_ends_too(tmp_path, monkeypatch):
    """Breaks when a program outlives its folder as the system did not show its environment yet."""
    _, program = left_by_one_that_was_killed(tmp_path)
    environment, looks = psutil.Process.environ, []

    def at_its_start(self):
        looks.append(self.pid)
        return {} if self == program and looks.count(self.pid) < 3 else environment(self)

    monkeypatch.setattr(psutil.Process, "environ", at_its_start)
    scratch.sweep(tmp_path)
    assert light.have_ended([program.pid]) and looks.count(program.pid) == 3


def test_a_program_with_the_number_of_an_earlier_one_ends_too(tmp_path, monkeypatch):
    """Breaks when a program outlives its folder as psutil remembers, and refuses to kill, who had its number."""
    _, program = left_by_one_that_was_killed(tmp_path)
    earlier = psutil.Process(program.pid)
    earlier._ident = (program.pid, 1.0)  # it began long ago
    monkeypatch.setitem(psutil._pmap, program.pid, earlier)
    scratch.sweep(tmp_path)
    assert light.have_ended([program.pid])


def test_what_others_have_stays(tmp_path):
    """Breaks when a run removes the folder of another one, on this machine or on one that shares the folder."""
    elsewhere, nobody = tmp_path / "faultline-1", tmp_path / "faultline-2"
    for folder in (elsewhere, nobody):
        folder.mkdir()
    (elsewhere / ".held-on-another").touch()
    process, path, program = owner(tmp_path)
    new = scratch.made(within=str(tmp_path))
    assert {*tmp_path.iterdir()} == {new.path, path, elsewhere, nobody} and program.is_running()
    process.communicate()
    program.kill()
