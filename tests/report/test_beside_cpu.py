"""A run on GPUs ends beside the CPU: every cell is in one column, and what nobody measured comes first."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.cells import on_gpus as store
from faultline.cells.cell import Cell
from faultline.cells.expected import Basis
from faultline.cells.on_gpus import GpuMachine, GpuRow, GpuRuns
from faultline.cells.selection import Selection
from faultline.maintain.on_gpus import read_received
from faultline.matrix import command
from faultline.observations import measured
from faultline.report import on_gpus
from faultline.report.on_gpus import GpuKind, compared, rows
from faultline.runs import gpus, storage
from faultline.runs.results import Rounding
from faultline.runs.storage import RunInfo
from tests.support.nvml import Nvml
from tests.support.on_gpus import CELLS, MACHINE, MODEL, NAME, did, folder, on


@pytest.fixture(autouse=True)
def _observations(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "FOLDER", tmp_path / "gpus")
    store._by_cell.cache_clear()
    yield
    store._by_cell.cache_clear()


def shown(every, info=None, missing=()):
    console = Console(file=io.StringIO(), width=160)
    on_gpus.show(console, compared(every), info or RunInfo(machine=MACHINE), missing)
    return console.file.getvalue()


def finished(capsys, run):
    """The exit code and the output of a run that ends."""
    code = command.finish(run, run.results(), ran_here=True)
    return code, capsys.readouterr().out


def test_each_cell_is_in_one_column():
    """Breaks when a difference hides among cells that did as on the CPU, or counts twice."""
    teacher = Cell("distillation_teacher_not_sharded", "gkd-broken", "fsdp2", device="cuda")
    every = [
        did(on("ddp")),
        did(on("zero2"), "diverges", "differs"),
        did(on("zero3"), "invalid", "evidence"),
        did(on("fsdp2"), "impossible"),
        did(teacher, "raises", "two-devices"),
        did(replace(teacher, strategy="fsdp1-full"), "misplaced", "reference-model"),
    ]
    kinds = {each.result.cell: each.kind for each in compared(every)}
    wanted = [GpuKind.SAME, GpuKind.NEW, GpuKind.NOT_RUN, GpuKind.NOT_RUN, GpuKind.KNOWN, GpuKind.AGAINST]
    assert [kinds[each.cell] for each in every] == wanted
    missing = [on("zero1").id, "buffers_never_synchronised/broken/ddp/off/fp32/w2/cuda"]
    numbers = rows(compared(every), missing)
    assert numbers[NAME] == [1, 0, 1, 0, 3] and numbers[teacher.failure] == [0, 1, 0, 1, 0]
    assert numbers["buffers_never_synchronised"] == [0, 0, 0, 0, 1]
    assert sum(map(sum, numbers.values())) == len(every) + len(missing)
    assert {*on_gpus.BASES} == {*Basis} and {*on_gpus.MEANING} == {*GpuKind} - {GpuKind.SAME}, (
        "one of them has no words"
    )


def test_a_difference_is_shown_with_both_outcomes_its_detail_and_its_command():
    """Breaks when somebody can't tell from the end of a run what changed where, or how to see it again."""
    text = shown([did(on("ddp")), did(on("zero2"), "diverges", "differs", detail="gradient of a differs by 12 %")])
    assert f"Run on 2 x {MODEL}, driver 580.65.06, CUDA 13.0, NCCL 2.27.7, 16 cores." in text
    assert "1 cell other than on the CPU, and nobody had measured it on a GPU:" in text
    line = next(line for line in text.splitlines() if line.startswith(on("zero2").id))
    assert line.endswith("-> diverges (differs)") and "gradient of a differs by 12 %" in text
    assert f"run --cell {on('zero2').id}" in text and on("ddp").id not in text
    # How near healthy cells come to the limits: something to hold the tolerance against.
    every = [replace(did(on("ddp")), relative_error=2e-5, rounding=Rounding(3, None, 4.25)), did(on("single"))]
    text = shown(every)
    assert "fp32: the largest error of 1 cell that trained is 2.0e-05 (tolerance 0.001)" in text
    assert "up to 4.2 times the noise (margin 20)." in text and "bf16" not in text
    # A rule that only a report gave doesn't look as if it had been measured before this run.
    teacher = Cell("distillation_teacher_not_sharded", "gkd-broken", "fsdp2", device="cuda")
    text = shown([did(teacher, "raises", "two-devices", detail="Expected all tensors to be on the same device")])
    assert "as reported, not measured: Expected all tensors" in text
    assert "as reported, not measured" in shown([did(teacher)]) and compared([did(teacher)])[0].kind == GpuKind.KNOWN


def test_a_run_on_gpus_ends_with_the_table_and_code_1_for_news_alone(capsys, tmp_path):
    """Breaks when a difference that nobody measured passes in CI, or one that was measured fails there."""
    same = folder(tmp_path / "same", *map(did, CELLS[:6]))
    code, out = finished(capsys, same)
    assert code == EXIT_AS_EXPECTED and "On GPUs, beside the CPU" in out and "Every cell did what was expected" in out
    assert "same/gpu-results.zip" in out
    news = [did(on("zero2"), "diverges", "differs"), did(on("ddp"))]
    code, out = finished(capsys, folder(tmp_path / "news", *news))
    assert code == EXIT_UNEXPECTED and "1 cell" in out and "Every cell" not in out
    machine = GpuMachine(MODEL, "580.65.06", "13.0", "2.27.7", measured.pinned())
    store.write(GpuRuns(machine, [GpuRow(on("zero2").id, "nccl", "diverges", "differs")]))
    known = [did(on("zero2"), "diverges", "differs"), did(on("ddp"))]
    code, out = finished(capsys, folder(tmp_path / "known", *known))
    assert code == EXIT_AS_EXPECTED and "1 cell other than on the CPU, as expected:" in out
    code, out = finished(capsys, folder(tmp_path / "against", did(on("zero2"), "trains")))
    assert code == EXIT_UNEXPECTED and "expected there: diverges (differs), measured on a GPU" in out
    code, out = finished(capsys, folder(tmp_path / "some", did(CELLS[0]), cells=CELLS[:3]))
    assert code == EXIT_UNEXPECTED and "1 of 3 cells ran" in out and "--resume" in out
    assert [NAME, "1", "2"] in [line.split() for line in out.splitlines()], "cells that never ran are not counted"


@pytest.mark.parametrize(("count", "share"), [(1, 2), (2, 1), (4, 1)])
def test_a_run_on_any_number_of_gpus_ends_with_a_file_that_says_how_many(capsys, monkeypatch, tmp_path, count, share):
    """Breaks when a run ends without its table, or one GPU passes for several on which NCCL ran."""

    def ran(batches, workers, engine):
        writer = storage.Writer(batches[0].folder)
        writer.add(*(did(cell, share=share if cell.world_size > 1 else 1) for cell in batches[0].cells))
        writer.close()

    seen = gpus.read(Nvml(count))
    monkeypatch.setattr(gpus, "here", lambda: seen)
    monkeypatch.setattr(command, "chosen", lambda request: [on("ddp"), on("zero2"), on("single")])
    monkeypatch.setattr(storage.new_run, "__defaults__", (tmp_path,))
    monkeypatch.setattr(command.measurement, "measure", ran)
    request = command.RunRequest(Selection(failure=(NAME,), device="cuda"), fresh=True)
    assert command.run(request) == EXIT_AS_EXPECTED
    out = capsys.readouterr().out
    assert f"Run on {count} x {MODEL}, driver 580.65.06, CUDA 13.0, NCCL 2.27.7" in out
    assert ("2 cells ran with several ranks on one GPU, over gloo and not NCCL" in out) == (share > 1)
    machine, sent = read_received(tmp_path / "latest" / "gpu-results.zip")
    assert machine.gpus == (MODEL,) * count and {entry.cell for entry in sent} == {on("ddp"), on("zero2"), on("single")}


def test_only_the_machine_that_ran_on_gpus_writes_a_file_to_send(capsys, tmp_path):
    """Breaks when a machine writes a file without knowing what to leave out of it, or a CPU's run is to be sent."""
    run = folder(tmp_path / "elsewhere", did(on("ddp")))
    assert command.report(str(run.path)) == EXIT_AS_EXPECTED
    assert "On GPUs, beside the CPU" in capsys.readouterr().out and not (run.path / "gpu-results.zip").exists()
    run = folder(tmp_path / "cpu", did(replace(on("ddp"), device="cpu"), gpu=""))
    code, out = finished(capsys, run)
    assert code == EXIT_AS_EXPECTED and "GPU" not in out and not (run.path / "gpu-results.zip").exists()


@pytest.mark.slow
def test_show_and_list_say_what_is_known_of_gpus(capsys):
    """Breaks when a guess, or a run on an older stack, passes for measured on today's, or what was measured is lost."""

    def printed(name):
        command.show(name)
        return " ".join(capsys.readouterr().out.split())

    none = "No cell was measured on a GPU with this stack."
    assert f"{none} All are expected to do there what they do on the CPU." in printed(NAME)
    assert "As reported, not measured: raises (two-devices) under fsdp1-full, " in printed("fsdp_reference_model")
    rows = [GpuRow(on("zero2").id, "gloo", "diverges", "differs"), GpuRow(on("ddp").id, "nccl", "trains")]
    store.write(GpuRuns(GpuMachine(MODEL, stack=measured.pins("torch-2.11.0")), rows))
    why = {"cells": "*/zero2/*", "backend": "gloo", "outcome": "diverges", "signature": "differs", "why": "shared"}
    (store.FOLDER / "reasons.toml").write_text("[[reason]]\n" + "\n".join(f'{key} = "{why[key]}"' for key in why))
    text = printed(NAME)
    assert "zero2 (off) in broken; shared." in text
    ran = f"With torch-2.11.0, 2 of {len(CELLS)} cells were measured on a GPU: {MODEL}, which ranks shared in 1."
    assert none in text and ran in text
    assert not on_gpus.count_measured([replace(CELLS[0], device="cpu")], measured.pinned())
    command.list_cells(Selection(failure=(NAME,), device="cuda"))
    assert "0 of them were measured on a GPU" in capsys.readouterr().out
    store.write(GpuRuns(GpuMachine(MODEL, stack=measured.pinned()), rows[:1]))
    text = printed(NAME)
    assert f"1 of {len(CELLS)} cells were measured on a GPU: {MODEL}" in text and "Otherwise than on the CPU" in text
