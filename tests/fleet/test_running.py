"""The actors of a run, on a stand-in for Ray: what is lost, refused and waited for as nodes and slots fail."""

import errno
import threading
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.errors import NeverReady, NoRoom, Uninstallable
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.fleet import actors, cluster, running
from faultline.fleet.actors import Actor
from faultline.fleet.cluster import Node
from faultline.fleet.places import held
from faultline.fleet.rays import Rays
from faultline.fleet.running import Fleet
from faultline.fleet.slot import Answer
from faultline.runs import cache
from faultline.runs.driver import Batch, Driver
from faultline.runs.results import Result
from faultline.stacks.environments import Environment
from tests.support.entries import entry

STACK = Environment("python", "")
CELLS = [Cell("example", f"v{number}", "ddp", checkpointing="off") for number in range(6)]
NOT_YET = object()
FULL, GONE = OSError(errno.ENOSPC, "No space left on device"), ray.exceptions.RayError("gone")


@dataclass
class Cluster:
    """A stand-in for Ray: `does(node, method, cell)` is what an actor there gives or raises."""

    nodes: list[Node]
    does: object
    exceptions = ray.exceptions

    def __post_init__(self):
        self.util = SimpleNamespace(remove_placement_group=lambda group: None)
        self.most = Counter()  # slots that each node had at a time
        self.now = []

    def put(self, value):
        return value

    def kill(self, handle):
        if handle in self.now:
            self.now.remove(handle)

    def wait(self, answers, num_returns=1, timeout=None):
        there = [each for each in answers if each() is not NOT_YET]
        return there, [each for each in answers if each not in there]

    def get(self, answers):
        given = [self.value(each) for each in (answers if isinstance(answers, list) else [answers])]
        return given if isinstance(answers, list) else given[0]

    def value(self, answer):
        value = answer()
        if isinstance(value, ray.exceptions.RayError):
            raise value
        if isinstance(value, BaseException):
            raise ray.exceptions.RayTaskError("method", "", value)
        return value

    def started(self, _, kit, slot, nodes, gpus):
        handles = [Handle(self, node) for node in nodes]
        self.now += handles
        count = Counter(handle.node.id for handle in self.now)
        self.most |= count
        return Actor(slot, nodes, gpus, handles, None, running.time.monotonic(), len(nodes))


class Handle:
    def __init__(self, ray, node):
        self.ray, self.node = ray, node

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *given: Once(lambda: self.answer(method, *given)))

    def answer(self, method, *given):
        does = self.ray.does(self.node.id, method, given[0] if given else "")
        if does is not None:
            return does
        if method == "run":
            return Answer(entry(Cell.parse(given[0])), ()).packed()
        return cache.machinery() if method == "greet" else None


class Once:
    """A reference of Ray's: it has one value, whoever asks."""

    def __init__(self, make):
        self.make, self.made = make, []

    def __call__(self):
        if not self.made or self.made == [NOT_YET]:
            self.made = [self.make()]
        return self.made[0]


def nodes(*names, slots=1):
    return [Node(name, f"node {name}", slots) for name in names]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Waits that are over soon."""
    for name, seconds in {"NOBODY": 0.4, "SOON": 0.1, "NODES": 0.01, "LOOK": 0.01, "GOODBYE": 0.1}.items():
        monkeypatch.setattr(running, name, seconds)


def ran(there, cells=CELLS, workers=9):
    """What becomes of cells on a cluster: results by cell, how often a part was refused, and what ended the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actors, "started", there.started)
        patch.setattr(cluster, "nodes", lambda *_: there.nodes)
        driver = Driver([Batch(cells, STACK)])
        fleet = Fleet(there, workers, driver, 1)
        thread = threading.Thread(target=fleet.run)
        thread.start()
        thread.join(20)
        fleet.ended.set()
        assert not thread.is_alive(), "it waits for ever"
    events = []
    while not driver.events.empty():
        events.append(driver.events.get())
    results = [event[1] for event in events if isinstance(event, tuple) and isinstance(event[1], Result)]
    assert max(Counter(each.cell for each in results).values(), default=0) <= 1, "a cell has two results"
    refused = [event[1] for event in events if isinstance(event, tuple) and not isinstance(event[1], Result)]
    ends = [event for event in events if isinstance(event, BaseException)]
    return {each.cell: each for each in results}, refused, ends


def all_ran(there, cells=CELLS, workers=9):
    """What becomes of cells that all have to have a result."""
    results, refused, ends = ran(there, cells, workers)
    assert results.keys() == {*cells} and not refused and not ends
    return results


@pytest.mark.parametrize(
    ("bad", "error"), [*(("run", each) for each in (FULL, NeverReady("no"), GONE)), ("greet", FULL), ("greet", GONE)]
)
def test_a_node_on_which_cells_fail_or_no_slot_begins_costs_no_run(bad, error):
    """Breaks when one full disk ends what all other nodes could do, or slots are started on a bad node for ever."""
    tries = Counter()

    def does(node, method, cell):
        tries[node, method] += 1
        return error if (node, method) == ("a", bad) else None

    assert {each.outcome for each in all_ran(Cluster(nodes("a", "b"), does)).values()} == {"trains"}
    assert bad == "run" or 0 < tries["a", "greet"] <= running.BELIEVED


def test_slots_that_die_between_others_that_begin_cost_no_node():
    """Breaks when a long run loses its only node to three deaths that were hours apart."""
    tries = Counter()

    def does(node, method, cell):
        tries[method] += 1
        dies = (method == "greet" and tries[method] % 2) or (method == "run" and tries[method] % 3 == 0)
        return GONE if dies else None

    cells = [Cell("example", f"v{number}", "ddp") for number in range(20)]
    all_ran(Cluster(nodes("a"), does), cells)
    assert tries["greet"] > 2 * running.BELIEVED


def test_a_stack_that_no_node_can_have_is_refused_at_once():
    lacks = Uninstallable("no wheel")
    results, [refused], ends = ran(
        Cluster(nodes("a", "b"), lambda _, method, cell: lacks if method == "greet" else None)
    )
    assert not results and not ends
    assert isinstance(refused, NeverReady) and "no node can run these cells: node node a: no wheel" in str(refused)


def test_cells_wait_for_another_node_if_the_only_good_one_is_gone():
    """Breaks when a node that lacks the stack ends what waits for the place of one that has it."""
    alive, seen = nodes("a", "b"), []

    def does(node, method, cell):
        if method == "run" and node == "b":
            seen.append(cell)
            if len(seen) == 2:
                alive[:] = nodes("a")
                threading.Timer(0.2, lambda: alive.extend(nodes("c"))).start()
                return GONE
        return Uninstallable("no wheel") if node == "a" and method == "greet" else None

    all_ran(Cluster(alive, does))


def test_a_slot_that_waits_for_a_node_that_goes_is_given_up():
    """Breaks when cells wait for a slot whose node died before it could begin."""
    alive = nodes("a")
    there = Cluster(alive, lambda node, method, cell: NOT_YET if node == "a" else None)
    threading.Timer(0.1, lambda: alive.__setitem__(0, nodes("b")[0])).start()
    all_ran(there, workers=1)


def test_a_cluster_without_room_is_waited_for_and_then_named(capsys):
    """Breaks when a busy cluster is waited for without a word, or is called a stack that can't run."""
    results, refused, [end] = ran(Cluster([], lambda *_: None))
    assert not results and not refused and isinstance(end, NoRoom)
    assert str(end).startswith("the cluster had no room for these cells") and not end.what
    assert capsys.readouterr().err.count("waiting for room on the cluster") == 1


def test_a_rank_server_that_dies_is_not_the_cells_doing_until_it_did_so_elsewhere():
    """Breaks when one bad node makes a cell invalid that runs on every other one."""

    def on(bad):
        def does(node, method, cell):
            if node in bad and method == "run":
                return Answer(entry(Cell.parse(cell), Outcome.INVALID, Signature.SERVER, "invalid"), ()).packed()

        return Cluster(nodes("a", "b"), does)

    assert {each.outcome for each in all_ran(on("a")).values()} == {"trains"}
    results, _, ends = ran(on("ab"), CELLS[:1])
    assert [each.signature for each in results.values()] == [Signature.SERVER] and not ends


def test_an_error_of_our_own_ends_the_run():
    """Breaks when a mistake in the code that runs cells is taken for a node's, and tried on each."""
    results, _, [end] = ran(Cluster(nodes("a"), lambda node, method, cell: KeyError("x") if method == "run" else None))
    assert not results and isinstance(end, KeyError)


FAILS = [None, FULL, GONE, NeverReady("no")]
CALLS = st.tuples(st.sampled_from("ab"), st.integers(1, 9))
GREETINGS = st.dictionaries(CALLS, st.sampled_from([*FAILS, Uninstallable("no")]))


@settings(deadline=None, max_examples=60)
@given(GREETINGS, st.dictionaries(CALLS, st.sampled_from(FAILS)))
def test_law_every_cell_has_one_result_while_a_node_is_good(greetings, runs):
    """Breaks when a cell is lost, doubled or given up though a node could run it."""
    calls = Counter()

    def does(node, method, cell):
        calls[node, method] += 1
        return {"greet": greetings, "run": runs}.get(method, {}).get((node, calls[node, method]))

    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in {"NOBODY": 5.0, "NODES": 0.001, "LOOK": 0.001}.items():
            patch.setattr(running, name, seconds)
        there = Cluster(nodes("a", "b", "good", slots=2), does)
        all_ran(there)
    assert max(there.most.values()) <= 2, "a node has more slots than room"


def test_cells_that_want_more_gpus_than_a_node_has_share_those(monkeypatch):
    """Breaks when cells of four ranks wait for ever on a cluster of nodes with two GPUs."""
    monkeypatch.setattr(cluster, "connect", lambda address: None)
    monkeypatch.setattr(cluster, "nodes", lambda *_: [Node("a", "a", 8, 2), Node("b", "b", 8, 1)])
    cells = [Cell("example", "broken", "ddp", world_size=size, device="cuda") for size in (1, 2, 4)]
    for rays, four in ((Rays(), 2), (Rays(nodes=2), 4)):  # four on two nodes are two on each
        parts = rays.batches(Batch(cells, STACK))
        assert {cell.world_size: part.gpus for part in parts for cell in part.cells} == {1: 1, 2: 2, 4: four}


def test_what_actors_have_is_counted_by_node():
    one, two = Node("a", "a", 4, 4), Node("b", "b", 4, 4)
    both = [Actor(None, (one,), 1, [], None, 0.0), Actor(None, (one, two), 2, [], None, 0.0)]
    assert held(both) == {"a": cluster.Held(2, 3), "b": cluster.Held(1, 2)}
