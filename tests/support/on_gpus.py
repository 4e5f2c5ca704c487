"""Results of cells on GPUs that nobody ran: of a real failure, as a run on one machine would have them."""

from dataclasses import replace

from faultline.base.errors import OTHER
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.runs import storage
from faultline.runs.results import RankError, RankResult
from faultline.runs.storage import Machine
from tests.support import entries

NAME = "grpo_lora_no_grad"
MODEL = "NVIDIA H100 80GB HBM3"
MACHINE = Machine((MODEL, MODEL), "580.65.06", "13.0", "2.27.7", 16)
CELLS = select(failures(), Selection(failure=(NAME,), device="cuda"))


def did(cell, *what, detail="", gpu=MODEL, share=1, text="", **evidence):
    """A cell's result: what the rules expect, unless it says otherwise."""
    should = expected.expect(expected.rules(failures()[cell.failure]), cell, measured.pinned())
    outcome, signature = (*what, "")[:2] if what else (should.outcome, "".join(should.signatures[:1]))
    backend = "none" if cell.world_size == 1 else "gloo" if share > 1 else "nccl"
    shown = {"gpu": gpu, "backend": backend, "ranks_per_device": share, "cuda": "13.0", "nccl": "2.27.7"} | evidence
    shown |= {"gpu_uuid": "GPU-11223344", "gpus_lent": ["GPU-11223344"]}
    error = RankError("RuntimeError", detail, text or detail, kind=OTHER) if outcome == "raises" else None
    ranks = tuple(RankResult(rank, error=error, evidence=shown) for rank in range(cell.world_size))
    verdict = expected.verdict(should, outcome, signature)
    return entries.entry(
        cell,
        outcome,
        signature,
        verdict,
        stack=measured.pinned(),
        expected=should,
        evidence=shown if gpu else {},
        ranks=ranks if gpu else (),
        detail=detail,
        rank=0 if error else None,
    )


def folder(path, *results, cells=(), **info):
    """A finished run's folder with these results."""
    run = storage.RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    ids = tuple(cell.id for cell in cells or [result.cell for result in results])
    run.describe(**{"cells": ids, "finished": True, "machine": MACHINE} | info)
    writer = storage.Writer(run)
    writer.add(*results)
    writer.close()
    return run


def on(strategy, variant="broken", **axes):
    return replace(Cell(NAME, variant, strategy, world_size=1 if strategy == "single" else 2, device="cuda"), **axes)
