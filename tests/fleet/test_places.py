"""Where slots of a cluster start: within each node's room, on nodes that have the stack, and shared out."""

from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from faultline.fleet.cluster import Node
from faultline.fleet.places import Room, best


def node(number, slots=8, gpus=0):
    return Node(f"{number}", f"node {number}", slots, gpus)


def started(nodes, waiting, sizes=None, spread=1, workers=100, refused=()):
    """The slots that start on a cluster for parts with so many cells each."""
    rooms = {each.id: Room(each, each.slots, each.gpus) for each in nodes}
    slots, stacks, places = Counter(), {}, []
    sizes = sizes or [0] * len(waiting)
    for _ in range(workers):
        parts = enumerate(zip(waiting, sizes, strict=True))
        needs = [
            SimpleNamespace(waiting=max(0, cells - slots[number]), slots=slots[number], gpus=size)
            for number, (cells, size) in parts
        ]
        place = best(rooms.values(), needs, spread, stacks, refused)
        if not place:
            break
        slots[place.batch] += 1
        places.append(place)
        for each in place.nodes:
            rooms[each.id] = rooms[each.id].without(-(-sizes[place.batch] // spread))
            stacks.setdefault(each.id, set()).add(place.batch)
    return places


def test_a_node_keeps_one_stack_and_every_stack_has_nodes():
    """Breaks when each node has to make every stack's environment, or a stack has no node while others have several."""
    nodes = [node(number) for number in range(12)]
    places = started(nodes, [500] * 10)
    assert len(places) == 96, "a slot is free though cells wait"
    parts = {each.id: {place.batch for place in places if each in place.nodes} for each in nodes}
    assert all(len(parts[each]) == 1 for each in parts) and set().union(*parts.values()) == {*range(10)}


def test_large_cells_have_a_slot_before_small_ones_have_all_and_none_where_no_room_or_stack_is():
    """Breaks when cells of four GPUs wait until all of two are done, or a slot starts where it can't run."""
    places = started([node(0, gpus=8)], [100, 100], [2, 4])
    assert Counter(place.batch for place in places) == {1: 1, 0: 2}
    small, other = node(0, gpus=1), node(1, gpus=2)
    assert {place.nodes for place in started([small, other], [9], [2])} == {(other,)}
    assert not started([small], [9], [2])
    assert {place.nodes for place in started([small, other], [9], refused={("0", 0)})} == {(other,)}


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), max_size=5),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 2, 4])), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_law_no_node_has_more_than_it_has_room_for(sizes, parts, spread):
    """Breaks when a node gets more slots or GPUs than it has, a slot is twice on one, or a part has too many slots."""
    nodes = [node(number, *size) for number, size in enumerate(sizes)]
    waiting, gpus = [cells for cells, _ in parts], [size for _, size in parts]
    places = started(nodes, waiting, gpus, spread)
    for each in nodes:
        here = [place for place in places if each in place.nodes]
        assert len(here) <= each.slots and sum(-(-gpus[place.batch] // spread) for place in here) <= each.gpus
    assert all(len({*place.nodes}) == len(place.nodes) == spread for place in places)
    slots = Counter(place.batch for place in places)
    assert all(slots[number] <= cells for number, cells in enumerate(waiting))
