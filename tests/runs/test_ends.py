"""Ends that say nothing of a cell: SIGTERM, a full disk, a rank that writes what is no report."""

import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from faultline.base import errors
from faultline.base.errors import ServerDied, Terminated
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.projects import files
from faultline.ranks import report, server
from faultline.ranks.report import Message
from faultline.runs import cache, measurement, oracle, runner, storage
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.supervisor import RankServer
from tests.support.entries import entry

CELL = Cell.parse("zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu")


def test_sigterm_ends_a_command_with_a_line(monkeypatch, asked):
    """Breaks when a batch system's signal leaves no word of what to do next."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(files, "find", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, _, lines = asked("audit", ".")
    assert (code, lines) == (errors.EXIT_TERMINATED, ["faultline: ended by SIGTERM"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_waits_its_turn_as_ctrl_c_does():
    before = signal.signal(signal.SIGTERM, errors.terminate)
    seen = []
    with measurement._interrupts_given_to(seen.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.signal(signal.SIGTERM, before) is errors.terminate
    assert [type(each) for each in seen] == [Terminated]


@pytest.mark.parametrize(("number", "remedy"), [(28, "free some room"), (24, "ulimit -n"), (27, "ulimit -f")])
def test_what_the_machine_lacks_comes_with_what_to_do(monkeypatch, asked, number, remedy):
    monkeypatch.setattr(files, "find", Mock(side_effect=OSError(number, os.strerror(number))))
    code, _, (line,) = asked("audit", ".")
    assert code == 2 and os.strerror(number) in line and remedy in line


def test_a_cell_that_the_machine_could_not_run_is_no_result(monkeypatch):
    """Breaks when a full disk is remaining as what a cell does, and --resume goes on without it."""
    stated = report.error_report(OSError(28, "No space left on device"))
    judged = oracle._judge_error(CELL, SimpleNamespace(), 0, stated, Ended([RankEnd()]), "off")
    assert (judged.outcome, judged.signature) == (Outcome.INVALID, Signature.MACHINE)
    assert "free some room" in judged.detail and "Faultline" not in judged.detail
    assert runner.without_reference(stated).signature == Signature.MACHINE
    remaining = entry(CELL, Outcome.RAISES, "reduced-twice")
    full = entry(CELL, Outcome.INVALID, Signature.MACHINE, "unexpected")
    monkeypatch.setattr(storage, "entries", lambda _: [remaining, full])
    assert storage.lasting(storage.RunFolder(files.Path())) == [remaining] and not cache.lasts(full)


def test_what_is_no_report_ends_the_cell_and_not_the_command(monkeypatch):
    """Breaks when a rank that writes into its pipe ends everything with a traceback."""
    with RankServer(sys.executable) as ranks:
        monkeypatch.setattr(ranks, "_process", SimpleNamespace(stdout=True))
        for line in (b"{garbage\n", b'{"rank": "x"}\n', b"[" * 100_000 + b"\n", b"\xff\n"):
            ranks._buffer = line
            with pytest.raises(ServerDied, match=r"something else than its report"):
                ranks._message(0)
        ranks._buffer = server.encoded(Message(done=True))
        assert ranks._message(0) == Message(done=True)
        ranks._process = None


def test_a_report_without_an_end_is_cut(monkeypatch):
    monkeypatch.setattr(server, "MOST", 100)
    reading, writing = os.pipe()
    rank = server.Rank(0, os.getpid(), reading, os.pidfd_open(os.getpid()))
    os.write(writing, b"x" * 90)
    assert rank.events([reading]) == b""
    os.write(writing, b"x" * 90)
    assert rank.events([reading]) == b"no end of its line\n" and reading not in rank.watched
    rank.close()
    os.close(writing)


def test_a_model_that_changed_the_process_is_to_blame():
    """Breaks when a limit that a model sets is booked as a fault of Faultline."""
    torch = pytest.importorskip("torch")
    before = report.process_settings()
    stated = report.error_report(ValueError("x"))
    ours = replace(stated, fault="compare.py:1 in digest")
    assert report.blame_settings(ours, before, of_user=True) == ours
    torch.set_default_device("meta")
    try:
        blamed = report.blame_settings(ours, before, of_user=False)
        assert not blamed.fault and "meta" in blamed.message
        assert "default device from cpu to meta" in report.blame_settings(ours, before, of_user=True).message
    finally:
        torch.set_default_device(None)
