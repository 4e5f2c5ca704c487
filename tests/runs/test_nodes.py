"""A cell whose ranks are on several nodes: two rank servers stand for them, and once two network namespaces."""

import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from faultline.base.errors import ServerDied
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.ranks.job import Job
from faultline.ranks.report import ErrorReport, Message, Report
from faultline.runs import nodes, oracle
from faultline.runs.nodes import Ended, RankEnd, Watched
from faultline.runs.runner import References, run_cell
from faultline.runs.supervisor import RankServer
from tests.support import light
from tests.support.light import have_ended
from tests.support.waiting import wait_until

CELL = Cell.parse("grpo_lora_no_grad/check_graph/ddp/off/fp32/w2/cpu")


@pytest.fixture
def pair(tmp_path):
    """Two servers, of which the first has the second for a peer; nothing of a cell is left on either."""
    python = light.command(tmp_path)
    with RankServer(python, name="first") as first, RankServer(python, name="second") as second:
        first.peers = [second]
        yield first, second
        for server in (first, second):
            light.left_nothing(server)


def run(server, deed, world_size=2):
    return nodes.run(server, Job(CELL, world_size, inject=deed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "outcome", "words"),
    [
        ("fails_after_its_peer", "raises", "rank 1 on second: ValueError: the cause"),
        ("dies_after_its_peer", "crashes", "rank 1 on second was killed by SIGKILL"),
        ("victim_of_a_hang", "hangs", "every rank slept"),
    ],
)
def test_the_first_cause_is_named_with_its_node(pair, deed, outcome, words):
    """Breaks when a death or a hang on either node isn't seen, or a rank that only suffers from it is blamed."""
    ended = run(pair[0], deed)
    judged = oracle.judge(CELL, failures()[CELL.failure], ended)
    assert judged.outcome == outcome and words in judged.detail, judged
    assert [end.node for end in ended.ranks] == ["first", "second"]


@pytest.mark.slow
def test_a_node_that_works_is_waited_for(pair):
    """Breaks when a cell hangs as soon as the ranks of one node sleep, though those of another work."""
    ended = run(pair[0], "waits_for_a_program")
    assert not ended.hang and all(end.report for end in ended.ranks)


@pytest.mark.slow
def test_ranks_know_their_place_on_their_node(pair):
    """Breaks when the second node's ranks take the first one's numbers or files, or one rank is on two nodes."""
    for ranks, spread in ((1, [""]), (2, ["first", "second"]), (3, [""] * 3)):
        assert [end.node for end in run(pair[0], "nothing", ranks).ranks] == spread
    ended = run(pair[0], "listens", 4)
    assert [end.report.rank for end in ended.ranks] == [0, 1, 2, 3]
    assert [end.node for end in ended.ranks] == ["first", "first", "second", "second"]
    assert len({*ended.pids}) == 4 and have_ended([end.report.evidence["found"][0] for end in ended.ranks])


@pytest.mark.slow
def test_a_second_node_that_dies_is_no_result(pair):
    """Breaks when a cell whose second node is gone is judged, waits for ever, or leaves the first one's ranks."""
    first, second = pair
    second.start()
    with ThreadPoolExecutor() as pool:
        cell = pool.submit(run, first, "waits")
        wait_until(lambda: psutil.Process(second._process.pid).children(), 20)
        os.kill(second._process.pid, signal.SIGKILL)
        with pytest.raises(ServerDied):
            cell.result(20)


# What needs no ranks.


def test_causes_are_compared_by_one_clock():
    """Breaks when a node whose clock is behind seems to have failed first."""
    watched = Watched(2, 60.0)
    watched.on_message(Message(rank=0, report=Report(0, error=ErrorReport("E", "first", "", at=5.0))), ahead=0.0)
    watched.on_message(Message(rank=1, report=Report(1, error=ErrorReport("E", "late", "", at=1.0))), ahead=-6.0)
    watched.on_message(Message(rank=1, exit=-9, at=2.0), ahead=-6.0)
    assert [watched.reports[rank].error.at for rank in (0, 1)] == [5.0, 7.0]
    assert watched.exits[1].at == 8.0
    assert oracle.first_cause([*watched.reports.values()])[1].message == "first"


def shown(name, server, host="h"):
    return {"device": "cpu", "node": {"name": name, "host": host, "server": server}}


@pytest.mark.parametrize(
    ("ends", "doubt"),
    [
        ([("a", shown("a", 1)), ("b", shown("b", 2))], ""),
        ([("a", shown("a", 1)), ("b", shown("b", 1, "other"))], ""),
        ([("a", shown("a", 1)), ("b", {})], ""),  # it ended before it could show any
        ([("", {"device": "cpu"})] * 2, ""),
        ([("a", shown("a", 1)), ("b", shown("a", 1))], "rank 1 on b: it ran on a"),
        ([("a", shown("a", 1)), ("b", shown("b", 1))], "rank 1 on b: its rank server has ranks of a"),
        ([("a", shown("a", 1)), ("b", {"device": "cpu"})], "rank 1 on b: it ran on a node without a name"),
    ],
)
def test_ranks_must_show_the_nodes_they_were_sent_to(ends, doubt):
    """Breaks when a cell of two nodes that ran on one is believed."""
    ended = Ended([RankEnd(Report(rank, evidence=dict(has)), node=node) for rank, (node, has) in enumerate(ends)])
    assert ended.elsewhere() == ([doubt] if doubt else [])
    if doubt:
        assert oracle.judge(CELL, failures()[CELL.failure], ended).outcome == "invalid"


# Two addresses for real.

SPREAD = (
    "zero3_dummy_loss/no_dummy/fsdp2/off/fp32/w4/cpu",
    "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu",
    "grpo_lora_no_grad/sft-broken/zero3/off/fp32/w2/cpu",
)


@contextlib.contextmanager
def namespaces(folder):
    """Two network namespaces that a cable joins, as programs that run Python in each, by their addresses."""
    one, other = names = [f"fl{os.getpid() % 10**6}{letter}" for letter in "ab"]
    steps = [f"ip netns add {one}", f"ip netns add {other}", f"ip link add {one} type veth peer name {other}"]
    programs = {}
    for number, name in enumerate(names, 1):
        steps += [f"ip link set {name} netns {name}", f"ip -n {name} addr add 10.9.0.{number}/24 dev {name}"]
        steps += [f"ip -n {name} link set {device} up" for device in (name, "lo")]
        program = folder / f"python{number}"
        program.write_text(f'#!/bin/sh\nexec ip netns exec {name} "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        programs[f"10.9.0.{number}"] = str(program)
    try:
        made = subprocess.run(["sh", "-ec", "\n".join(steps)], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no network namespace can be made here, which takes root and iproute2: {made.stderr}")
        yield programs
    finally:
        for name in names:
            subprocess.run(["sh", "-c", f"ip netns del {name}"], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.nightly
def test_two_addresses_carry_a_cell(tmp_path):
    """Breaks when ranks on two nodes meet only over loopback, do something else there, or don't show where they ran."""
    with contextlib.ExitStack() as stack:
        programs = stack.enter_context(namespaces(tmp_path))
        first, second = (stack.enter_context(RankServer(python, address=at)) for at, python in programs.items())
        first.peers = [second]
        references = References(first.folder)
        for each in SPREAD:
            entry = run_cell(first, references, Cell.parse(each))
            assert entry.verdict == "expected", entry.detail
            places = [rank.evidence["node"]["address"] for rank in entry.ranks]
            assert places == sorted(programs) if len(places) == 2 else places == sorted([*programs] * 2)
            assert len({rank.evidence["node"]["server"] for rank in entry.ranks}) == 2
