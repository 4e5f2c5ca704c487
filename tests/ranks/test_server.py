"""The rank server's protocol, on ranks without torch, and what it does when its supervisor goes."""

import json
import os
import select
import signal
import subprocess
import time

import psutil
import pytest

from faultline.ranks import preload
from tests.support import light
from tests.support.light import have_ended
from tests.support.program import python


@pytest.fixture
def bare(tmp_path):
    """A server and its pipes, without a supervisor."""
    folder = tmp_path / "folder"
    folder.mkdir()
    process = subprocess.Popen(
        [light.command(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # or an event may wait in a buffer where select does not see it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
        env={**os.environ, "TMPDIR": str(folder)},
    )
    process.folder = folder
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def request(process, *requests):
    os.write(process.stdin.fileno(), b"".join(json.dumps(each).encode() + b"\n" for each in requests))


def event(process):
    assert select.select([process.stdout], [], [], 20)[0], "the server said nothing for 20 s"
    return json.loads(process.stdout.readline())


def job(process, deed, world_size=2):
    cell = dict.fromkeys(("failure", "variant", "strategy"), "")
    return {"job": {"cell": cell, "inject": deed, "folder": str(process.folder), "world_size": world_size}}


def test_requests_may_come_in_pieces_or_together_and_a_cell_ends_the_one_before_it(bare):
    assert event(bare)["ready"]
    for byte in json.dumps(job(bare, "waits")).encode() + b"\n":
        os.write(bare.stdin.fileno(), bytes([byte]))
        time.sleep(0.002)  # for the server to read it
    first = event(bare)["pids"]
    assert len(first) == 2, "a request that came byte by byte was not put together"
    request(bare, job(bare, "waits"), {}, job(bare, "waits", 4))
    second = event(bare)["pids"]
    assert have_ended(first), "a cell that nobody ended runs beside the next one"
    assert event(bare)["done"], "the second of three requests in one write went wrong"
    third = event(bare)["pids"]
    assert len(third) == 4 and all(map(psutil.pid_exists, third)), "the third of three requests in one write was lost"
    assert have_ended(second)


def test_what_is_told_of_the_fork_was_seen_before_it(bare):
    """In a child there is one thread, and CUDA looks untouched, whatever the server has."""
    assert event(bare)["ready"]
    request(bare, job(bare, "nothing", 1))
    assert event(bare)["pids"]
    assert event(bare)["report"]["evidence"]["at_fork"] == {"described": bare.pid}


def test_a_supervisor_that_says_goodbye_keeps_its_folder(bare):
    assert event(bare)["ready"]
    request(bare, job(bare, "waits"), {"end": True})
    assert bare.wait(20) == 0
    assert bare.folder.exists(), "the folder of a supervisor that may start another server is missing: references too"


def test_a_supervisor_that_is_gone_before_the_server_is_ready_leaves_nothing(bare):
    bare.stdin.close()
    bare.stdout.close()
    assert bare.wait(20) == 0, "the server breaks on its greeting"
    assert not bare.folder.exists(), "the folder stays when the supervisor ends during the imports"


def test_the_server_survives_what_is_meant_for_ranks(bare):
    """A rank that has no handler for the stack signal yet inherits what the server does with it."""
    assert event(bare)["ready"]
    bare.send_signal(signal.SIGUSR1)
    bare.send_signal(signal.SIGINT)
    request(bare, {})
    assert event(bare)["done"], "asking a rank for its stack can kill it, or Ctrl-C a server"


def test_a_rank_puts_no_question_to_a_name_server():
    """What c10d asks for each peer: the name of an address that no hosts file has."""
    asks = """
import socket
def sent():
    names, counts = [line.split() for line in open("/proc/net/snmp") if line.startswith("Udp:")]
    return int(counts[names.index("OutDatagrams")])
before = sent()
try:
    socket.getnameinfo(("::ffff:127.77.77.77", 80, 0, 0), 0)
except socket.gaierror:
    pass
print(sent() - before)
"""
    counts = set()
    for _ in range(5):  # the counter is the whole machine's: another process may have sent something
        counts.add(int(python("-c", asks, check=True, **preload.environment()).stdout))
    assert 0 in counts, "a rank asks a name server: cells touch the network, and hang where it is slow"
