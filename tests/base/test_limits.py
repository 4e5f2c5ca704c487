"""What a machine gives: the memory of a container is not that of its host."""

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base import machine

FREE = psutil.virtual_memory().total // 2


@pytest.fixture
def half_free(monkeypatch):
    memory = psutil.virtual_memory()._replace(available=FREE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


@pytest.mark.parametrize(
    ("files", "pages"),
    [
        ("memory.max memory.current memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes memory/memory.usage_in_bytes memory/memory.stat", "total_inactive_file"),
    ],
)
@pytest.mark.parametrize(
    ("limit", "expected"), [("4000", 4000 - 3000 + 500), ("2000", 0), ("max", FREE), (str(1 << 62), FREE)]
)
def test_a_container_has_what_its_limit_leaves(half_free, tmp_path, files, pages, limit, expected):
    """Breaks when more workers start than a container has memory for, or fewer for pages that Linux gives back."""
    (tmp_path / "memory").mkdir()
    for name, text in zip(files.split(), (limit, "3000", f"anon 7\n{pages} 500\nfile 9\n"), strict=True):
        (tmp_path / name).write_text(f"{text}\n")
    assert machine.memory(tmp_path) == expected


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 64))
def test_workers_share_the_processors_out(every, workers):
    """Breaks when two workers are kept to one processor while another one is idle, or a batch system's job of two
    processors starts a worker for each of the node's hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.os, "sched_getaffinity", lambda _: every)
        shares = machine.shares(workers)
        assert machine.cores() == len(every)
    assert len(shares) == workers
    if len(every) < workers:
        assert {*shares} == {frozenset(every)}
    else:
        assert sorted(core for share in shares for core in share) == sorted(every)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
