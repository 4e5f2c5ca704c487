"""Which modules of somebody's own model are units of FSDP."""

from collections.abc import Sequence

import torch

from faultline.base.errors import Refused
from faultline.cells.finding import first_names
from faultline.ranks.job import ROOT
from faultline.ranks.parameters import tied
from faultline.strategies.shared import ONLY_UNIT, SHARES, blocks


def choose(model: torch.nn.Module, classes: Sequence[str]) -> None:
    """Mark the modules of a model that are units: those of `classes`, or else its blocks."""
    keep_together(model)
    if classes:
        name_units(model, classes)
    else:
        name_blocks(model)


def name_blocks(model: torch.nn.Module) -> None:
    """Give a model that names no blocks for FSDP those that it has in lists, else its parts; never itself."""
    if blocks(model):
        return
    inside = [layer for module in model.modules() if isinstance(module, torch.nn.ModuleList) for layer in module]
    names: set[str] = set()
    # PEFT calls the model that it wraps, and none of what is around that.
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    for among in (inside, whole.children()):
        names = names or {type(module).__name__ for module in among if _wrappable(module, model)}
    model._no_split_modules = sorted(names)


def name_units(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Let modules of these classes be FSDP's units, and no others; the model alone if it is ROOT."""
    classes = {type(module).__name__ for module in model.modules()}
    if names[0] != ROOT and (unknown := [name for name in names if name not in classes]):
        known = [name for name in sorted(classes) if name != type(model).__name__]
        raise Refused(f"--units: no module of the model is a {unknown[0]}; there are {first_names(known)}")
    for module in model.modules():
        if getattr(module, "_no_split_modules", None):
            module._no_split_modules = None
    model._no_split_modules = [] if names[0] == ROOT else [*names]
    setattr(model, ONLY_UNIT, names[0] == ROOT)


def _wrappable(module: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Whether it can be a unit: it has a forward pass and parameters of its own, and is of another class than all."""
    without_forward = type(module).forward is torch.nn.Module.forward  # lists of modules or parameters
    if without_forward or type(module) is type(model):
        return False
    return any(True for _ in module.parameters()) and not getattr(module, SHARES, False)


def keep_together(model: torch.nn.Module) -> None:
    """Mark the modules that can't be an FSDP unit: one of their parameters is in a module outside of them as well, or
    is read by it.

    `fully_shard` and FSDP1 ask for shared parameters to be in one unit, which the root then is. Attention of torch
    reads the weight of its `out_proj`, whose own forward pass never runs.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            setattr(module.out_proj, SHARES, True)
    prefixes: dict[torch.nn.Module, tuple[str, ...]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        prefixes[module] = (*prefixes.get(module, ()), f"{name}." if name else "")
    for names in tied(model):
        for module, places in prefixes.items():
            if 0 < sum(name.startswith(places) for name in names) < len(names):
                setattr(module, SHARES, True)
