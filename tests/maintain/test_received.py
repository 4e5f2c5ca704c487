"""Results from somebody's GPUs are merged into the observations, and anything else is refused in a line."""

import json
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.text import matches
from faultline.catalogue.loading import failures
from faultline.cells import expected, on_gpus
from faultline.cells.expected import Basis
from faultline.cells.on_gpus import GpuRow
from faultline.maintain import on_gpus as merging
from faultline.maintain import record
from faultline.observations import measured, store
from faultline.runs import sendable
from faultline.runs.storage import Machine
from tests.support.on_gpus import CELLS, MACHINE, MODEL, NAME, did, folder, on


@pytest.fixture
def observations(monkeypatch, tmp_path):
    """A folder of observations for one test, with none in it."""
    monkeypatch.setattr(store, "FOLDER", tmp_path / "observations")
    monkeypatch.setattr(on_gpus, "FOLDER", tmp_path / "observations" / "gpus")
    store.forget()
    on_gpus._by_cell.cache_clear()
    yield tmp_path / "observations"
    monkeypatch.undo()
    store.forget()
    on_gpus._by_cell.cache_clear()


def packed(tmp_path, **files):
    """A zip file with these files; `run` and `cells` are the two that it should have."""
    names = {"run": "run.json", "cells": "cells.jsonl"}
    file = tmp_path / "strange.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole:
        for name, content in files.items():
            whole.writestr(names.get(name, name), content)
    return file


def line(result, **changes):
    return json.dumps({**result.as_json(), **changes})


def refuses(file, words):
    with pytest.raises(UsageError) as refused:
        merging.read_received(file)
    message = str(refused.value)
    assert words in message and "\n" not in message and len(message) < 700, message


def expectation(cell):
    return expected.expect(expected.rules(failures()[NAME]), cell, measured.pinned())


def test_what_somebody_measured_is_expected_in_later_runs(capsys, observations, tmp_path):
    """Breaks when a file that was recorded leaves the next run with the same difference as news."""
    every = [did(on("zero2"), "diverges", "differs"), did(on("ddp")), did(on("single"))]
    every.append(did(on("zero3"), "raises", "other", detail="RuntimeError: something new", share=2))
    run = folder(tmp_path / "run", *every)
    file = sendable.write(run, run.results())
    assert record.run([str(file)]) == EXIT_AS_EXPECTED
    assert "4 cells on GPUs: nvidia-h100-80gb-hbm3-" in capsys.readouterr().out
    should = expectation(on("zero2"))
    assert (should.outcome, should.signatures, should.basis) == ("diverges", ("differs",), Basis.MEASURED)
    assert expectation(on("ddp")).basis == Basis.MEASURED and expectation(on("zero1")).basis == Basis.CPU
    [(machine, row)] = on_gpus.runs_of(on("zero3"), measured.pinned())
    assert row.backend == "gloo" and (machine.gpu, machine.nccl, machine.driver) == (MODEL, "2.27.7", "580.65.06")
    assert [error.text for error in store.errors().values()] == ["RuntimeError: something new"]
    before = {path: path.read_bytes() for path in observations.rglob("*.jsonl")}
    record.run([str(run.path)])  # the folder itself, which says the same
    assert {path: path.read_bytes() for path in observations.rglob("*.jsonl")} == before, "recording twice adds nothing"


def test_what_proves_nothing_is_not_recorded():
    """Breaks when a cell without evidence, or of another stack, or on nobody knows what GPU counts as measured."""
    old = replace(did(on("ddp")), stack={"torch": "1.0"})
    several = Machine(("A", "B"))
    assert not merging.rows_of(MACHINE, [did(on("ddp"), "invalid", "evidence"), old])
    assert not merging.rows_of(several, [did(on("ddp"), gpu="")]) and not merging.rows_of(
        Machine(), [did(on("ddp"), gpu="")]
    )
    # Of a variant that was renamed since, no run can ever renew a row.
    renamed = [f"{NAME}/no_such_variant/ddp/off/fp32/w2/cuda", "no_such_failure/broken/ddp/off/fp32/w2/cuda"]
    rows = [on_gpus.GpuRow(name, "nccl", "trains") for name in renamed]
    [each] = merging.merge_rows([on_gpus.GpuRuns(MACHINES[0], rows)], [])
    assert not each.rows
    [(machine, row)] = merging.rows_of(MACHINE, [did(on("ddp"), "impossible", gpu="")])
    assert machine.gpu == MODEL and row.backend == ""
    unfinished = Machine(MACHINE.gpus, MACHINE.driver)  # as of an interrupted run, without CUDA and NCCL
    rows = merging.rows_of(unfinished, [did(on("ddp")), did(on("zero2"), "impossible", gpu="")])
    assert len(rows) == 2 and rows[0][0] == rows[1][0], "a cell without ranks is of another machine"


MACHINES = [on_gpus.GpuMachine(gpu, driver, stack=measured.pinned()) for gpu in ("A", "B") for driver in ("1", "2")]
IDS, BACKENDS, OUTCOMES = [cell.id for cell in CELLS[:6]], ["nccl", "gloo"], ["trains", "diverges"]
ROWS = st.builds(GpuRow, st.sampled_from(IDS), st.sampled_from(BACKENDS), st.sampled_from(OUTCOMES))
FOUND = st.lists(
    st.tuples(st.sampled_from(MACHINES), ROWS), max_size=8, unique_by=lambda found: (found[0].name, found[1].cell)
)


@given(FOUND, FOUND, st.randoms(use_true_random=False))
def test_law_merging_twice_changes_nothing_and_the_newest_run_counts(before, found, random):
    """Breaks when a file that comes twice doubles a row, an older run outlives a newer one, or the order matters."""
    once = merging.merge_rows(merging.merge_rows([], before), found)
    assert merging.merge_rows(once, found) == once
    rows = {(each.machine.name, row.cell): row for each in once for row in each.rows}
    newest = {(machine.name, row.cell): row for machine, row in (*before, *found)}
    assert rows == newest and sum(len(each.rows) for each in once) == len(newest)
    apart = []
    for one in random.sample(found, len(found)):
        apart = merging.merge_rows(apart, [one])
    assert apart == merging.merge_rows([], found) == merging.merge_rows([], random.sample(found, len(found)))


def test_whatever_a_gpu_did_otherwise_has_a_reason():
    """Breaks when nobody says why a recorded cell did what no rule says, or a reason is of no row, or of any row."""
    known = merging.differing()
    assert not [row.cell for reason, rows in known.items() if reason.why == merging.UNKNOWN for row, _ in rows]
    for reason in on_gpus.reasons():
        cells = [row.cell for row, _ in known[reason]]
        assert not [pattern for pattern in reason.cells if not any(matches(cell, (pattern,)) for cell in cells)]
        row = GpuRow(cells[0], reason.backend, reason.outcome, reason.signature)
        others = [{"backend": "nccl"}, {"outcome": "hangs"}, {"signature": "other"}, {"cell": "a/broken/fsdp2/off"}]
        assert [reason.explains(row._replace(**each)) for each in ({}, *others)] == [True, *[False] * 4]


OTHER = did(on("zero2"))
NOT_THERE = [replace(OTHER.cell, **change) for change in ({"device": "cpu"}, {"variant": "no"}, {"failure": "no"})]


def with_line(text):
    """A file of a run with one line more than it wrote."""
    return {"run": "{}", "cells": f"{line(did(on('ddp')))}\n{text}\n"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (with_line(line(OTHER, id="x")), "no result of this version"),
        (with_line(line(OTHER, outcome="wins")), "no result of this version"),
        (with_line(line(OTHER, outcome="raises", signature="<script>")), "raises has no signature '<script>'"),
        (with_line(line(OTHER, outcome="trains", signature="differs")), "trains has no signature 'differs'"),
        (with_line(line(OTHER, stack={"torch": "2.0.0"})), "with torch 2.0.0, and no file of stacks/ has"),
        (with_line(line(OTHER, detail="x" * 30_000)), "a text is longer than 20,000 characters"),
        (with_line(line(OTHER, ranks=[{"rank": 0, "evidence": {"gpu": "../../x\n<b>"}}])), "names a machine as no"),
        *((with_line(line(replace(OTHER, cell=cell))), "is no cell of the matrix on GPUs") for cell in NOT_THERE),
        ({"run": "{}"}, "must hold run.json and cells.jsonl, and nothing else"),
        ({"run": "{}", "cells": "", "../evil.py": "x"}, "nothing else"),
        ({"run": "{}", "cells": ""}, "there is no result in it"),
        ({"run": "[]", "cells": ""}, "can't be read"),
        ({"run": "{}", "cells": b"\xff\xfe"}, "can't be read"),
        ({"run": '{"machine": {"gpus": ["<script>"]}}', "cells": ""}, "names a machine as no driver does"),
        ({"run": "{}", "cells": "[" * 100_000}, "no result of this version"),
    ],
    ids=lambda given: given[:20] if isinstance(given, str) else "",
)
def test_what_no_run_writes_is_refused(tmp_path, files, words):
    """Breaks when a stranger's file can put into the observations what no run would, or ends in a traceback."""
    refuses(packed(tmp_path, **files), words)


def test_a_bomb_a_damaged_file_and_one_that_contradicts_itself_are_refused(monkeypatch, tmp_path):
    """Breaks when a small file takes all memory, a cut one ends in a traceback, or the last of two lines counts."""
    cells = f"{line(did(on('ddp')))}\n{line(did(on('ddp'), 'diverges', 'differs'))}\n"
    whole = packed(tmp_path, run="{}", cells=cells)
    refuses(whole, "is there twice")
    content = whole.read_bytes()
    for damaged in (b"", b"hello", content[: len(content) // 2], content.replace(content[60:80], bytes(20))):
        whole.write_bytes(damaged)
        refuses(whole, "it can't be unpacked")
    refuses(tmp_path / "not-there.zip", "it can't be unpacked")
    monkeypatch.setattr(merging, "LARGEST", {"run.json": 1000, "cells.jsonl": 1000})
    refuses(packed(tmp_path, run="{}", cells=" " * 1001), "cells.jsonl is larger than")
