"""GPUs lent to cells: each to one cell at a time, near to each other, and to who waits longest first."""

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import platformdirs
import pytest

from faultline.base import machine
from faultline.base.errors import ServerDied, UsageError
from faultline.cells.cell import Cell
from faultline.ranks.job import Job
from faultline.runs import cache, engines, gpus, measurement, nodes
from faultline.runs.driver import Batch
from faultline.runs.engines import LOCAL, Pool
from faultline.stacks.environments import Environment
from tests.support import entries, light
from tests.support.nvml import Nvml

CELL = Cell("grpo_lora_no_grad", "broken", "ddp", device="cuda")
FOUR = replace(CELL, world_size=4)


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """A machine with as many GPUs as the test says; their locks are its own."""

    def has(count, **more):
        seen = gpus.read(Nvml(count, **more))
        monkeypatch.setattr(gpus, "here", lambda: seen)
        return [gpu.uuid for gpu in seen.gpus]

    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path)
    return has


def test_what_nvml_says_is_read_and_nvml_is_closed():
    """Breaks when a GPU is left out, NVLink counts as a host bridge, NVML stays open, or no driver is a traceback."""
    with pytest.raises(UsageError, match="NVML Shared Library Not Found"):
        gpus.read(Nvml(0, fails="NVML Shared Library Not Found"))
    nvml = Nvml(3, linked=[(0, 2)])
    seen = gpus.read(nvml)
    assert [gpu.uuid for gpu in seen.gpus] == ["GPU-0000", "GPU-0001", "GPU-0002"] and seen.driver == "580.65.06"
    assert seen.nearest(["GPU-0000", "GPU-0001", "GPU-0002"], 2) == ("GPU-0000", "GPU-0002")
    assert nvml.open == 0
    without = gpus.read(Nvml(4)).nearest(["GPU-0000", "GPU-0002", "GPU-0003"], 2)
    assert without == ("GPU-0002", "GPU-0003"), "where NVML refuses the question, the topology decides"


def test_only_what_somebody_made_visible_is_used():
    """Breaks when a run takes the GPUs that a batch system gave to another job, or a wrong name gives it any."""
    visible = {"0,2": [0, 2], "GPU-0001": [1], " 1 , GPU-0000": [1, 0], "": []}
    assert {text: [gpu.number for gpu in gpus.read(Nvml(3), text).gpus] for text in visible} == visible
    refused = dict.fromkeys(("3", "GPU-ffff", "GPU-000", "two", "-1"), "none of the 3 GPUs here")
    for name, words in {**refused, "MIG-1": r"names 'MIG-1', a part of a GPU \(MIG\)"}.items():
        with pytest.raises(UsageError, match=words):
            gpus.read(Nvml(3), name)


def test_no_two_ranks_of_cells_at_a_time_see_one_gpu(cards, tmp_path):
    """Breaks when cells beside each other share GPUs, or DeepSpeed, which reads numbers alone, is told their names."""
    every = cards(4)
    cells = [CELL, CELL, FOUR, CELL, FOUR, CELL, CELL]
    cells = [replace(cell, variant=f"v{number}") for number, cell in enumerate(cells)]
    seen, lock = [], threading.Lock()

    def run(server, references, cell):
        began = time.monotonic()
        ended = nodes.run(server, Job(cell, cell.world_size, inject="environment"))
        shown = [rank.report.evidence["found"] for rank in ended.ranks]
        assert {each["CUDA_DEVICE_ORDER"] for each in shown} == {"PCI_BUS_ID"}
        visible = {each["CUDA_VISIBLE_DEVICES"] for each in shown}
        with lock:
            seen.append((began, time.monotonic(), cell, visible))
        return entries.entry(cell)

    measurement.run_batches([Batch(cells, Environment(light.command(tmp_path), ""), run=run)], 3)
    assert len(seen) == len(cells)
    sets = [
        (began, end, cell, {every[int(number)] for number in next(iter(visible)).split(",")})
        for began, end, cell, visible in seen
    ]
    assert all(len(visible) == 1 for *_, visible in seen), "ranks of one cell see different GPUs"
    assert all(len(has) == cell.world_size and has <= {*every} for _, _, cell, has in sets)
    for (one, end, _, has), (other, other_end, _, others) in itertools.combinations(sets, 2):
        assert end < other or other_end < one or not has & others


def test_a_slot_that_keeps_its_gpus_and_who_lends_them_wait_for_each_other(cards):
    """Breaks when cells of a fleet and of a run without one are on a GPU at a time."""
    cards(2)
    [first, _] = gpus.here().gpus
    with gpus.taken([first]), gpus.lent(replace(CELL, world_size=1)) as lent:
        assert lent == (gpus.here().gpus[1],)
        with pytest.raises(ServerDied, match="before a GPU was free"), gpus.lent(CELL, ended=lambda: True):
            pass
    with gpus.lent(CELL), pytest.raises(ServerDied, match="before"), gpus.taken([first], ended=lambda: True):
        pass
    with gpus.taken([]), gpus.lent(CELL) as lent:
        assert len(lent) == 2, "the locks are given back"


def test_who_wants_four_is_not_passed_by_those_who_want_two(cards):
    """Breaks when a cell of four ranks starves beside cells of two."""
    cards(4)
    order, started = [], threading.Event()

    def take(cell):
        started.set()
        with gpus.lent(cell):
            order.append(cell.world_size)

    with ThreadPoolExecutor() as pool, gpus.lent(CELL):
        pool.submit(take, FOUR)
        assert started.wait(10)
        time.sleep(4 * gpus.LOOK)  # it has to be the first to wait; if it isn't, the test can't fail by mistake
        pool.submit(take, CELL)
        time.sleep(4 * gpus.LOOK)
        assert order == []
    assert order == [4, 2]


def test_a_gpu_has_as_many_cells_as_may_share_it(cards):
    """Breaks when a shared GPU has fewer cells than asked for, or more, or ranks wait for ever for a second one."""
    every = cards(1)
    with gpus.lent(FOUR) as lent:
        assert [gpu.uuid for gpu in lent] == every
    with gpus.lent(CELL, per_gpu=2), gpus.lent(CELL, per_gpu=2):
        looks = iter(range(3))
        with pytest.raises(ServerDied), gpus.lent(CELL, lambda: next(looks, None) is None, per_gpu=2):
            pass
    with gpus.lent(CELL, per_gpu=2) as again:
        assert len(again) == 1
    cards(4)
    with gpus.lent(CELL, per_gpu=8) as first, gpus.lent(CELL, per_gpu=8) as second:
        assert len({*first, *second}) == 4, "a GPU without a cell comes before one that is shared"


@pytest.mark.parametrize(
    ("count", "cells", "per_gpu", "asked", "expected"),
    [
        (8, [CELL] * 9, 1, 16, 4),
        (8, [CELL] * 9, 1, 3, 3),
        (8, [CELL] * 2, 1, 16, 2),
        (8, [FOUR] * 9, 1, 16, 2),
        (8, [CELL, CELL, FOUR], 1, 16, 3),
        (3, [CELL] * 9, 1, 16, 1),
        (1, [CELL] * 9, 1, 16, 1),
        (1, [CELL] * 20, 8, 16, 8),
    ],
)
def test_as_many_workers_as_sets_of_gpus_fit(cards, monkeypatch, count, cells, per_gpu, asked, expected):
    """Breaks when GPUs stay idle, more servers start than can have GPUs at a time, or nobody hears that they share."""
    cards(count)
    monkeypatch.setattr(machine, "memory", lambda: 1 << 40)
    number, why = Pool(per_gpu).workers(cells, asked)
    assert number == expected and bool(why) == (expected < min(asked, len(cells)))
    assert not why or per_gpu == 1 or why == "8 workers, not 16: 8 at a time share a GPU, and there is 1"


def test_a_worker_is_not_started_beyond_what_the_machine_has(monkeypatch):
    """Breaks when a machine with many cores and little memory ends in the kernel's killing ranks."""
    monkeypatch.setattr(machine, "memory", lambda: 4 << 30)
    cells = [replace(CELL, device="cpu")] * 99
    words = "2 workers, not 64: each may take 1.5 GB of memory, and 4.0 GB are free"
    assert LOCAL.workers(cells, 64) == (2, words)
    monkeypatch.setattr(machine, "memory", lambda: 1 << 20)
    assert LOCAL.workers(cells, 64)[0] == 1, "one worker is always tried"
    monkeypatch.setattr(machine, "memory", lambda: 6 << 30)
    larger = [*cells, replace(cells[0], world_size=4)]
    assert [LOCAL.workers(each, 64)[0] for each in (cells, larger)] == [4, 3], "each rank takes its part"


def test_gpus_of_a_fleet_are_not_looked_for_here(monkeypatch):
    """Breaks when cells for the CPU or a cluster's head look for GPUs, or a fleet's results are kept as one's own."""
    monkeypatch.setattr(engines, "ask", lambda *_, **__: pytest.fail("this machine was asked for a GPU"))
    engines.check_cells([replace(CELL, device="cuda")], SimpleNamespace(here=False))
    with gpus.lent(replace(CELL, device="cpu")) as lent:
        assert lent == ()
    assert cache.of(Environment(sys.executable, ""), "cuda", here=False).stack == ""
