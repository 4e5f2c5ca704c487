"""The supervisor and its rank server, on ranks without torch: what ends a cell, and that nothing of it is left."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from faultline.base import traces
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.ranks.job import Job
from faultline.runs import hangs, nodes, oracle, runner, supervisor
from faultline.runs.supervisor import NeverReady, RankServer, ServerDied
from lab.proofs import reliability
from tests.support import light
from tests.support.light import have_ended, survivors
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

CELL = Cell.parse("grpo_lora_no_grad/check_graph/ddp/off/fp32/w2/cpu")
DEADLINE = 60.0  # far beyond what any of these cells takes, so that none may end by it


@pytest.fixture
def server(tmp_path):
    with RankServer(light.command(tmp_path), DEADLINE) as server:
        yield server
        light.left_nothing(server)
    assert not server.folder.exists(), "closing the server leaves its folder behind"


def run(server, deed, world_size=2):
    return nodes.run(server, Job(CELL, world_size, inject=deed))


def outcome(ended):
    judged = oracle.judge(replace(CELL, world_size=len(ended.ranks)), failures()[CELL.failure], ended)
    return str(judged.outcome), judged.signature, judged.detail


# How a server starts.


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        ("time.sleep(600)", "slept for 2 s before it was ready"),
        ("while True: pass", "worked for 1 s and was not ready"),
        ("sys.exit('no torch here')", "the rank server ended: no torch here"),
    ],
)
def test_a_server_that_never_gets_ready_is_given_up(tmp_path, monkeypatch, deed, expected):
    """Breaks when a stack that can't start holds a campaign up for ever."""
    monkeypatch.setattr(supervisor, "START_LOOKS", 8)
    monkeypatch.setattr(supervisor, "START_WORK", 1.0)
    with RankServer(program(tmp_path, deed), DEADLINE) as server, pytest.raises(NeverReady, match=expected):
        server.start()


def test_a_server_that_works_for_long_gets_ready(tmp_path, monkeypatch):
    """Breaks when a busy machine makes a stack unusable."""
    monkeypatch.setattr(supervisor, "START_LOOKS", 2)
    deed = 'while time.process_time() < 2: pass\nprint(\'{"versions": {"torch": "2"}}\', flush=True)\nsys.stdin.read()'
    with RankServer(program(tmp_path, deed), DEADLINE) as server:
        server.start()
        assert server.versions == {"torch": "2"}


def program(folder, deed):
    """An executable that does something else than to serve ranks."""
    file = folder / "program"
    file.write_text(f"#!{sys.executable}\nimport sys, time\n{deed}\n")
    file.chmod(0o755)
    return str(file)


# How ranks end.


EXIT = "rank 1 was left with exit code {} and no report"


def test_a_rank_that_closes_its_pipe_is_heard_of_when_it_ends_and_hangs_if_it_lives(server, monkeypatch):
    ended = run(server, "closes_its_pipe")
    assert ended.ranks[1].exit == 70, "a rank without its pipe was lost, or held up the server"
    assert "Bad file descriptor" in ended.ranks[1].log, "a rank that can't report leaves no reason in its log"
    ended = run(server, "long_report")
    lengths = [len(end.report.evidence["found"]) for end in ended.ranks]
    assert lengths == [5_000_000] * 2, "a report is longer than a pipe"
    monkeypatch.setattr(hangs, "QUIET", 4)
    ended = run(server, "closes_its_pipe_and_waits")
    assert outcome(ended)[0] == "hangs", "the end of a pipe was taken for the end of its rank"
    assert "wait_for_ever" in ended.ranks[1].stack
    assert "in reported" in ended.ranks[0].stack, "a rank that has reported looks like one that hangs"


@pytest.mark.parametrize(
    ("deed", "patience", "ended"),
    [
        ("silent", nodes.PATIENCE, ("crashes", "silent-exit", EXIT.format(0))),
        ("dies_but_its_fork_lives", nodes.PATIENCE, ("crashes", "silent-exit", EXIT.format(7))),
        ("reports_and_aborts", nodes.PATIENCE, ("raises", "other", "ValueError: the cause")),
        ("victim_before_cause", nodes.PATIENCE, ("raises", "other", "ValueError: the cause")),
        ("fails_after_its_peer_died", DEADLINE, ("crashes", "silent-exit", EXIT.format(3))),
        ("aborts_after_its_peer_failed", DEADLINE, ("raises", "other", "ValueError: the cause")),
    ],
)
def test_what_came_first_is_the_cause(server, monkeypatch, deed, patience, ended):
    """Breaks when a rank's silent end is not noticed; an abort after a report hides its error; a clock ends a cell of
    which all that is known is that a peer is gone; or a rank that a failure brought down is named for it."""
    monkeypatch.setattr(nodes, "PATIENCE", patience)
    results = run(server, deed)
    assert outcome(results) == ended
    if patience == DEADLINE:
        assert all(end.exit is not None or end.report.error for end in results.ranks), "the second end was not seen"


def test_a_failure_waits_no_longer_when_its_peer_sleeps(server, monkeypatch):
    monkeypatch.setattr(nodes, "PATIENCE", DEADLINE)
    assert run(server, "last_waits_first_fails").seconds < DEADLINE, "each failed cell takes seconds for nothing"


def test_a_failure_does_not_wait_for_a_peer_that_spins(server, monkeypatch):
    """Breaks when a rank that spins, as one that waits in NCCL does, keeps a failed cell open beyond a second."""
    looks = []  # a busy machine makes them fewer; a coarse clock ends ticks early, and may make twice as many
    asleep = hangs.Progress.asleep
    monkeypatch.setattr(hangs.Progress, "asleep", lambda *args: looks.append(args) or asleep(*args))
    monkeypatch.setattr(nodes, "TICK", DEADLINE)  # no look before the failure
    ended = run(server, "fails_beside_a_spinning_rank")
    assert outcome(ended)[::2] == ("raises", "ValueError: the cause")
    assert nodes.PATIENCE < 1
    assert not ended.hang and 0 < len(looks) < 2 * nodes.PATIENCE / nodes.SETTLE_TICK


def test_ranks_keep_to_the_processors_of_their_worker(tmp_path):
    """Breaks when the ranks of two workers wait for each other's processors."""
    [core, *_] = os.sched_getaffinity(0)
    with RankServer(light.command(tmp_path), cores=frozenset({core})) as server:
        ended = run(server, "processors")
    assert [rank.report.evidence["found"] for rank in ended.ranks] == [[core]] * 2


def test_a_cell_does_not_see_the_launcher_around_the_run(server, monkeypatch):
    """Breaks when a cell in a shell of a launcher's or of a cluster's job is another one than elsewhere."""
    names = """
        RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE GROUP_RANK ROLE_RANK CROSS_RANK MASTER_ADDR TORCHELASTIC_RUN_ID
        ACCELERATE_USE_FSDP FSDP_VERSION PARALLELISM_CONFIG_TP_SIZE DEEPSPEED_USE_HPU DS_ALLOW_DEPRECATED_FP16
        SLURM_PROCID PMI_RANK OMPI_COMM_WORLD_SIZE MPI_LOCALRANKID MV2_COMM_WORLD_RANK
    """.split()
    for name in [*names, "NCCL_DEBUG"]:
        monkeypatch.setenv(name, "1")
    results = run(server, "environment", 1).ranks[0].report.evidence["found"]
    assert not results.keys() & {*names}
    assert results["NCCL_DEBUG"] == "1", "what has nothing to do with launchers is lost"
    assert results["DS_ACCELERATOR"] == "cpu", "the server's own settings are lost"


def test_another_stack_keeps_its_bytecode(monkeypatch):
    """Breaks when each start on another stack compiles all its libraries again, or .venv gets what nobody wants."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in supervisor.inherited("/another/stack/bin/python")
    assert "PYTHONDONTWRITEBYTECODE" in supervisor.inherited(sys.executable)


# What counts as a hang.


def test_ranks_that_wait_for_a_program_do_not_hang(server, monkeypatch):
    monkeypatch.setattr(hangs, "QUIET", 4)
    monkeypatch.setattr(hangs, "STUCK", 8)
    assert not run(server, "waits_for_a_program").hang, "a rank that waits for its compiler was called a hang"


@pytest.mark.parametrize("deed", ["spins", "spins_in_library"])
def test_ranks_that_stand_at_one_place_hang_busy_or_not(server, monkeypatch, deed):
    """Breaks when a rank that spins, in Python or in a library, runs until the deadline, or is said to sleep."""
    monkeypatch.setattr(hangs, "QUIET", 4)
    monkeypatch.setattr(hangs, "STUCK", 8)
    ended = run(server, deed, 1)
    assert ended.hang.startswith("every rank stood at the same place")
    assert "in spins" in ended.ranks[0].stack and "write_stack" not in ended.ranks[0].stack


def test_a_stopped_rank_shows_where_it_was_stopped(server, monkeypatch):
    """Breaks when another of its threads answers, and the main one shows what it does after it was woken for that."""
    monkeypatch.setattr(hangs, "QUIET", 4)
    ended = run(server, "stops_among_threads", 4)
    assert ended.hang
    for end in ended.ranks:
        assert traces.innermost(end.stack).startswith("stops_among_threads"), end.stack


def test_a_supervisor_that_was_held_up_sees_no_hang(tmp_path, monkeypatch):
    with subprocess.Popen(["sleep", "5"]) as child, monkeypatch.context() as patched:
        seen = hangs.Progress([child.pid], tmp_path)
        patched.setattr(hangs.time, "monotonic", itertools.count(0, 1000).__next__)
        assert not any(seen.stalled([0]) for _ in range(5)), "time in which it did not look counts as a hang"
        child.kill()


def test_the_deadline_ends_what_nothing_else_ends(server):
    server.deadline = 1.0
    ended = run(server, "fails_beside_a_spinning_rank", 1)
    assert ended.hang == "still running after 1 s"
    assert "fails_beside_a_spinning_rank" in ended.ranks[0].stack, "a hang without the place where it hangs"


# Nothing is left.


@pytest.mark.parametrize("deed", ["starts_programs", "leaves_its_group"])
def test_nothing_that_a_rank_started_outlives_the_cell(server, deed):
    ended = run(server, deed)
    assert all(end.report and not end.report.error for end in ended.ranks)
    started = [pid for end in ended.ranks for pid in end.report.evidence["found"] or ()]
    assert len(started) == (6 if deed == "starts_programs" else 0)
    assert have_ended([*started, *ended.pids]), "a program that a rank started, or a rank itself, outlives the cell"


def test_an_exception_in_the_supervisor_ends_the_cell_and_the_next_one_runs(server, monkeypatch):
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    (server.folder / "server.log").write_text("")
    with monkeypatch.context() as patched:
        patched.setattr(hangs.Progress, "stalled", interrupt)
        with pytest.raises(Interrupted):
            run(server, "waits")
    assert not survivors(server), "ranks outlive the supervisor's exception"
    assert not run(server, "nothing").hang, "no cell runs after one that was interrupted"


def test_a_server_that_dies_takes_its_ranks_along_and_its_cell_runs_again(server, tmp_path):
    server.start()
    first = server._process.pid
    entry = runner.run_cell(server, runner.References(tmp_path), CELL, "kills_the_server")
    assert (entry.outcome, entry.signature) == ("invalid", "server"), "the server's death counts as the cell's"
    assert not survivors(server), "ranks, or programs that they started, outlive the server"
    assert not psutil.pid_exists(first)
    assert not run(server, "nothing").hang, "no cell runs after one whose server died twice"


def test_a_server_that_was_killed_on_purpose_does_not_start_again(server, tmp_path):
    """Breaks when a cell that an interruption ended runs once more before the run ends, on another server."""
    threading.Timer(0.5, server.kill).start()
    references = runner.References(tmp_path)
    with pytest.raises(ServerDied):
        runner.run_cell(server, references, CELL, "spins")
    with pytest.raises(ServerDied, match="killed"):
        runner.run_cell(server, references, CELL, "nothing")
    assert not server._process and not survivors(server)


def test_what_is_left_is_found(tmp_path, monkeypatch):
    """Breaks when the chaos run says that nothing is left behind without having looked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = reliability.leftovers()
    with monkeypatch.context() as patched, tempfile.TemporaryDirectory(prefix="faultline-") as folder:
        patched.setenv("TMPDIR", folder)
        pid, port = light.listens(0)
        memory = Path("/dev/shm") / Path(folder).name
        memory.touch()
        try:
            results = reliability.leftovers()
        finally:
            psutil.Process(pid).kill()
            memory.unlink()
    new = {kind: names - before[kind] for kind, names in results.items()}
    assert pid in {int(name.split()[0]) for name in new["processes"]}, "an orphan is not found"
    assert str(port) in new["ports"] and Path(folder).name in new["folders"] & new["shared memory"]
    assert have_ended([pid])


ENDED = """
import signal
import sys
from faultline.cells.cell import Cell
from faultline.runs import hangs, measurement
from faultline.runs.driver import Batch
from faultline.runs.runner import run_cell
from faultline.stacks.environments import Environment

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test in the background ignores it
hangs.STUCK = 10**9  # the cells are no hang for as long as this test may last
cells = [Cell.parse(id) for id in sys.argv[2:]]
stack = Environment(sys.argv[1], "")
run = lambda server, references, cell: run_cell(server, references, cell, "spins")
try:
    batch = Batch(cells, stack, run=run)
    measurement.run_batches([batch], 2, on_result=lambda _, entry: print(entry.cell.id, flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("how", "everybody", "moment"),
    [
        (signal.SIGINT, False, "servers start"),
        (signal.SIGINT, False, "cells run"),
        (signal.SIGKILL, False, "cells run"),
        pytest.param(signal.SIGTERM, False, "cells run", marks=pytest.mark.nightly),  # ends it as SIGKILL does
        (signal.SIGTERM, True, "cells run"),  # as a batch system cancels a job, in whichever order
    ],
)
def test_a_run_that_is_ended_leaves_nothing(tmp_path, how, everybody, moment):
    """Breaks when a killed run leaves something, or Ctrl-C waits for a cell, starts another or prints a traceback."""
    cells = [CELL.id.replace("w2", f"w{world}") for world in (2, 2, 4, 4)]
    process = subprocess.Popen(
        [sys.executable, "-c", ENDED, light.command(tmp_path), *cells],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    with process:
        while len(servers := psutil.Process(process.pid).children()) < 2:
            time.sleep(0.01)
        pids = [server.pid for server in servers]
        pids += [rank for pid in pids for rank in wait_for_ranks(pid)] if moment == "cells run" else []
        for each in pids if everybody else ():
            os.kill(each, how)
        process.send_signal(how)
        process.wait(DEADLINE)
        assert process.stdout.read() == ("interrupted\n" if how == signal.SIGINT else "")
    assert have_ended(pids), f"a server or its ranks outlive a run that was ended by {how!r}"
    assert not list(tmp_path.glob("faultline-*")), "a folder outlives the run"


def wait_for_ranks(pid):
    """The ranks of a server, once both are there."""
    wait_until(lambda: len(psutil.Process(pid).children()) == 2, 30)
    return [process.pid for process in psutil.Process(pid).children()]


def test_a_process_of_which_one_thread_waits_for_the_disk_is_not_asleep(tmp_path):
    """Breaks when a rank that waits for its pages on a busy disk is taken for one that hangs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # posix_spawn's parent sleeps as one that waits for a disk does, until the child has opened its files.
    spawn = f"os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {str(fifo)!r}, 0, 0)])"
    code = f"import os, threading, time; threading.Thread(target=lambda: {spawn}).start(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        wait_until(lambda: hangs.waits_for_disk(process.pid))
        with open(fifo, "w"):
            pass
        wait_until(lambda: not hangs.waits_for_disk(process.pid))
        process.kill()
