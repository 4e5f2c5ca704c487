"""Cache results: found again as long as nothing changes that they hang on, and never anything else."""

import gzip
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.axes import NAMES
from faultline.base.paths import PACKAGE, REPROS, ROOT
from faultline.cells.cell import Cell
from faultline.runs import cache
from faultline.runs.cache import Cache
from faultline.stacks.environments import Environment
from tests.support import entries
from tests.support.program import python

CELL = Cell("zero3_dummy_loss", "broken", "zero3")
ENTRY = entries.entry(CELL, "diverges", "unmoved", detail="w never moved")
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5)


@given(TEXTS, TEXTS)
def test_a_digest_is_that_of_its_texts_in_their_order(one, other):
    """Breaks when two different lists of inputs share results, or one list has two places."""
    assert (cache.digest(*one) == cache.digest(*other)) == (one == other)


def test_each_input_of_a_place_changes_it():
    """Breaks when a result is taken for a cell although its stack, its cell or its number is another."""
    axes = {name: name for name in NAMES} | {"failure": "grpo_lora_no_grad", "world_size": 4, "device": "cuda"}
    cells = [replace(CELL, **{axis: value}) for axis, value in axes.items()]
    others = [Cache("stack", 1).file(cell) for cell in cells]
    others += [Cache("stacks", 1).file(CELL), Cache("stack", 2).file(CELL)]
    assert Cache("stack", 1).file(replace(CELL)) == Cache("stack", 1).file(CELL)
    assert len({Cache("stack", 1).file(CELL), *others}) == len(others) + 1


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The folder of one failure, and a part of the machinery, that a test may change."""
    repros = tmp_path / "repros"
    for name in ("zero3_dummy_loss", "ddp_unused_vision_tower"):
        shutil.copytree(REPROS / name, repros / name)
    (tmp_path / "faultline" / "ranks").mkdir(parents=True)
    (tmp_path / "faultline" / "ranks" / "main.py").write_text("pass\n")
    places = {"REPROS": repros, "ROOT": tmp_path, "PACKAGE": tmp_path / "faultline", "MACHINERY": ["ranks"]}
    for name, value in places.items():
        monkeypatch.setattr(cache, name, value)
    forget()
    yield tmp_path
    forget()


def forget():
    """As another process would be: nothing is known of any file."""
    for remembered in (cache.of_failure, cache._digested):
        remembered.cache_clear()


def test_a_change_in_a_failure_runs_that_failure_and_one_of_the_machinery_all(copied):
    """Breaks when an edited failure or engine is answered with what the one before it did."""
    other = replace(CELL, failure="ddp_unused_vision_tower")
    before = [Cache("s").file(each) for each in (CELL, other)]
    for name in ("README.md", "expected.toml"):
        (copied / "repros" / CELL.failure / name).write_text("another")
    forget()
    assert [Cache("s").file(each) for each in (CELL, other)] == before, "neither is part of a run"
    (copied / "repros" / CELL.failure / "failure.py").write_text("another")
    forget()
    after = [Cache("s").file(each) for each in (CELL, other)]
    assert after[0] != before[0] and after[1] == before[1]
    (copied / "faultline" / "ranks" / "main.py").write_text("raise\n")
    forget()
    assert not {Cache("s").file(each) for each in (CELL, other)} & {*before, *after}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("edited", [f"repros/{CELL.failure}/failure.py", "faultline/ranks/main.py"])
def test_what_is_edited_while_it_runs_is_not_kept(copied, edited, fresh):
    """Breaks when the result of code that was written during a run is kept as that of the code before or after."""
    store = Cache("s")
    assert fresh or store.take([CELL]) == []
    store.begin([CELL])
    (copied / edited).write_text("another text, of another length")
    store.add(ENTRY)
    assert store.take([CELL]) == []
    forget()
    assert store.take([CELL]) == [], "nor is it the result of the code that was written"


def test_what_was_added_is_taken_and_held_against_the_expectations_of_now():
    """Breaks when a kept result loses something, or keeps a verdict on rules that have changed."""
    store = Cache("s")
    store.add(replace(ENTRY, verdict="expected"))
    [taken] = store.take([CELL, replace(CELL, strategy="zero2")])
    assert replace(taken, expected=ENTRY.expected, verdict=ENTRY.verdict) == ENTRY
    assert taken.verdict == "changed" and taken.expected.outcome != "trains"


def test_only_what_another_run_would_repeat_is_kept():
    """Breaks when a machine's lack of memory or time, or a cell without evidence, is taken for what cells do."""
    lasting = [{}, {"outcome": "crashes", "signature": "SIGABRT"}]
    lasting += [{"outcome": "hangs", "detail": "rank 0 waits in all_reduce"}]
    others = [{"outcome": "crashes", "signature": "SIGKILL"}, {"outcome": "invalid", "signature": "evidence"}]
    others += [{"outcome": "hangs", "detail": "still running after 120 s"}]
    for changes in (*lasting, *others):
        Cache(str(changes)).add(replace(ENTRY, **changes))
    assert [changes for changes in (*lasting, *others) if Cache(str(changes)).take([CELL])] == lasting
    assert not Cache("").take([CELL])


@given(data=st.data())
def test_a_damaged_entry_is_none(data, tmp_path_factory):
    """Breaks when a file cut short or with a flipped bit ends a run, or is taken for a result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, str(tmp_path_factory.mktemp("damaged")))
        store = Cache("s")
        store.add(ENTRY)
        file = store.file(CELL)
        content = file.read_bytes()
        cut = data.draw(st.integers(0, len(content) - 1))
        bit = data.draw(st.integers(0, 7))
        flipped = content[:cut] + bytes([content[cut] ^ 1 << bit]) + content[cut + 1 :]
        for damaged in (content[:cut], flipped):
            file.write_bytes(damaged)
            assert all(entry.did == ENTRY.did and entry.detail == ENTRY.detail for entry in store.take([CELL]))
        file.write_bytes(content[:cut])
        assert store.take([CELL]) == []
        store.add(ENTRY)
        assert len(store.take([CELL])) == 1


def test_an_entry_in_the_place_of_another_is_none():
    """Breaks when a file that was copied to another cell's or stack's place is taken."""
    store, other = Cache("s"), replace(CELL, strategy="zero2")
    store.add(ENTRY)
    for place in (store.file(other), Cache("t").file(CELL)):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(store.file(CELL).read_bytes())
    assert store.take([other]) == Cache("t").take([CELL]) == []
    store.file(other).write_bytes(gzip.compress(f"{store.file(other).name}\n{json.dumps(ENTRY.as_json())}".encode()))
    assert store.take([other]) == []


def test_many_may_write_at_a_time(cached):
    """Breaks when a reader sees half of an entry, or a writer leaves its draft behind."""
    store = Cache("s")
    store.add(ENTRY)
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(store.add, ENTRY) for _ in range(160)]
        while not all(writer.done() for writer in writers):
            assert len(store.take([CELL])) == 1
    assert len([*cached.rglob("*.*")]) == 0 and len([file for file in cached.rglob("*") if file.is_file()]) == 1


def test_what_cannot_be_written_is_not_kept(cached, monkeypatch):
    """Breaks when a full disk or a cache that can't be written ends a run."""
    (cached / "file").write_text("")
    monkeypatch.setenv("FAULTLINE_CACHE", str(cached / "file"))
    Cache("s").add(ENTRY)
    assert Cache("s").take([CELL]) == []


def test_the_least_used_goes_first(cached):
    """Breaks when the cache grows without end, or loses what is used."""
    store, cells = Cache("s"), [replace(CELL, strategy=name) for name in ("zero1", "zero2", "zero3", "ddp")]
    for age, cell in enumerate(cells):
        store.add(replace(ENTRY, cell=cell))
        os.utime(store.file(cell), (1000 - age, 1000 - age))
    store.take(cells[3:])
    cache.prune(sum(file.stat().st_size for file in cached.rglob("*") if file.is_file()) - 1)
    assert {entry.cell for entry in store.take(cells)} == {cells[0], cells[1], cells[3]}


def test_a_stack_is_its_versions_its_files_its_device_and_its_variables(monkeypatch):
    """Breaks when an edited library, another version or a switch gets results of before, or all environments that can't
    be looked at share a place."""
    assert not cache.of(Environment("no such program", "trl==1\n"), "cpu").stack
    looks = {"one": ("cpython 3.11", "files", False), "other": ("cpython 3.12", "files", False)}
    looks |= {"edited": ("cpython 3.11", "others", False), "editable": ("cpython 3.11", "files", True)}
    monkeypatch.setattr(cache, "_looked_at", looks.__getitem__)
    monkeypatch.setattr(cache, "_gpus", lambda: "H100")
    one = cache.of(Environment("one", "trl==1\n"), "cpu").stack
    assert one and one == cache.of(Environment("one", "trl==1\n"), "cpu").stack
    changed = [("other", "trl==1\n", "cpu"), ("one", "trl==2\n", "cpu"), ("edited", "trl==1\n", "cpu")]
    changed += [("one", "trl==1\n", "cuda")]
    others = [cache.of(Environment(name, lock), device).stack for name, lock, device in changed]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    others.append(cache.of(Environment("one", "trl==1\n"), "cpu").stack)
    assert len({one, *others}) == 6
    assert not cache.of(Environment("editable", "trl==1\n"), "cpu").stack
    assert not cache.of(Environment("one", "trl @ file:///a.whl\n"), "cpu").stack


def test_a_changed_line_of_a_library_is_seen(tmp_path):
    """Breaks when a library that somebody edits to try a repair is taken for the release."""
    package = tmp_path / "site-packages" / "trl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")

    def look(path):
        return json.loads(python("-S", "-c", cache.LOOK, check=True, PYTHONPATH=str(path)).stdout)

    before = look(package.parent)
    (package / "__init__.py").write_text("a = 12\n")
    after = look(package.parent)
    assert before[0] == after[0] and before[1] != after[1] and before[2] == after[2] == []
    package.parent.rename(tmp_path / "clone")
    assert look(tmp_path / "clone")[2] == ["trl"]


@pytest.mark.slow
def test_the_machinery_is_what_ranks_and_judges_import():
    """Breaks when a file takes part in a cell and a change of it leaves results as they are."""
    program = """
import sys
from faultline.ranks import preload
preload.everything()
import faultline.ranks.launched, faultline.runs.runner
print(*(module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)), sep="\\n")
"""
    done = python("-c", program, check=True)
    files = [line for line in done.stdout.splitlines() if Path(line).is_relative_to(ROOT) and ".venv" not in line]
    files = {file for file in files if Path(file).is_relative_to(PACKAGE) or "tiny_models" in file}
    described = {str(PACKAGE / "runs/__init__.py")}  # it runs nothing
    assert len(files) > 20 and files - {str(file) for file in cache.machinery_files()} <= described, files
