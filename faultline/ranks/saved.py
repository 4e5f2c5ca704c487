"""A checkpoint's round trip: saved as a user would, loaded in a process of its own, held against the live weights."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from faultline.base.paths import REPROS
from faultline.catalogue import loading
from faultline.cells.cell import STEPS, Cell
from faultline.ranks import compare, parameters, state, tensor_file
from faultline.ranks.report import Checkpoint, Report
from faultline.ranks.run import Run
from faultline.strategies.shared import clean

SAVED_AFTER = STEPS - 1  # of a scenario's steps: one more shows whether training survives it
LIVE, SAVED = "live", "saved"


def save(run: Run, trained: Any, tied: list[list[str]]) -> None:
    """On every rank: have the failure's `save` write what it writes, and rank 0 the live weights beside it."""
    folder = Path(run.checkpoint)
    if run.setup.rank == 0:
        buffers = run.trace.buffers[-1] if run.trace.buffers else {}
        tensor_file.write((run.trace.weights[-1] | buffers, tied), folder / LIVE)
    run.inject.save(lambda: run.module.save(run.variant, trained, folder / SAVED), folder / SAVED, run.setup)
    run.report.evidence["saved"] = True


def load(cell: Cell, folder: Path, report: Report) -> None:
    """In one process without a process group: load what was saved, and report what it lacks (see `held_against`)."""
    module = loading.load_module(REPROS / cell.failure)
    variant = module.FAILURE.variant(cell.variant)
    live, tied = tensor_file.read(folder / LIVE)
    report.evidence |= {"process_group": torch.distributed.is_initialized(), "live": len(live)}
    try:
        loaded = module.load(variant, folder / SAVED)
    except Exception as error:  # noqa: BLE001 - whatever a user would see
        first = next(iter(str(error).strip().splitlines()), "")
        known = held_against(live, contents(folder / SAVED), [], cell.precision)
        report.checkpoint = replace(known, error=f"{type(error).__name__}: {first}")
        return
    weights = loaded if isinstance(loaded, Mapping) else _parts(loaded)
    checkpoint = held_against(live, weights, tied, cell.precision)
    written = {clean(name) for name in contents(folder / SAVED)}
    if written & live.keys():  # a model makes up what its files lack
        made_up = sorted(checkpoint.differs.keys() - written)
        differs = {name: error for name, error in checkpoint.differs.items() if name not in made_up}
        checkpoint = replace(checkpoint, missing=(*checkpoint.missing, *made_up), differs=differs)
    report.checkpoint = checkpoint


def _parts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **state.buffers(model)}


def held_against(
    live: compare.Tensors, loaded: Mapping[str, torch.Tensor], tied: Iterable[Iterable[str]], precision: str
) -> Checkpoint:
    """What of the live weights a checkpoint lacks; a file has only a shard of a tensor that was sharded."""
    tensors = {clean(name): parameters.local(tensor.detach()) for name, tensor in loaded.items()}
    there = {name: tensors[name] for name in live if name in tensors}
    filled = {name: tensor for name, tensor in there.items() if tensor.numel() or not live[name].numel()}
    same = {name: tensor for name, tensor in filled.items() if tensor.shape == live[name].shape}
    errors = {name: _error(live[name], tensor.to(live[name].device).float()) for name, tensor in same.items()}
    return Checkpoint(
        names=len(live),
        missing=tuple(sorted(live.keys() - there.keys())),
        empty=tuple(sorted(there.keys() - filled.keys())),
        misshapen=tuple(sorted(filled.keys() - same.keys())),
        differs={name: error for name, error in errors.items() if not error <= compare.EPSILON[precision]},
        untied=tuple(tuple(group) for group in tied if len({_place(tensors.get(name)) for name in group}) > 1),
    )


def contents(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors in a folder's files, without what it takes to load them into a model."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        tensors |= safetensors.torch.load_file(file)
    for file in sorted([*folder.rglob("*.bin"), *folder.rglob("*.pt")]):
        state = torch.load(file, weights_only=False)
        if isinstance(state, dict):
            tensors |= {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    return tensors


def _error(live: torch.Tensor, saved: torch.Tensor) -> float:
    """How far a saved tensor is from the live one, relative to its largest element."""
    if not live.numel():
        return 0.0
    return float((live - saved).abs().max() / live.abs().max().clamp_min(1e-30))


def _place(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
