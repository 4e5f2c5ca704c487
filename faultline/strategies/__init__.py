"""How training is distributed: one file per family, found by looking into this folder.

For others: `native`, `naming`, `shared`.

A file here that has a FAMILY is one. The page docs/add-a-strategy.md says what a `Family` is given.

Files import torch inside their functions, so that this list is free of it.
"""

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

ROWS_VARIABLE = "FAULTLINE_ROWS"  # makes the global batch larger, for eight ranks
ROWS = 8 if os.environ.get(ROWS_VARIABLE) == "8" else 4
"""Rows of the global batch, which the ranks share."""

Config = dict[str, Any]
"""A DeepSpeed config, or a part of it, as its JSON has it."""

Tensors: TypeAlias = "dict[str, torch.Tensor]"
Gradients: TypeAlias = "dict[str, torch.Tensor | None]"
Evidence = Mapping[str, Any]
"""What the live objects of a rank showed, as its report has it."""

Table = Mapping[str, tuple[str, ...]]
"""Regular expressions, each with the strategies that it stands for, which are patterns as well."""


class Holds(StrEnum):
    """What a rank holds of the weights, between the passes of what it trains."""

    WHOLE = "all of each"
    UNITS = "all, as views that each unit's own pass sets up"
    SHARDS = "a part: all ranks together have one copy"
    PARTS = "a part of what is sharded, and all of the rest"
    NODE_SHARDS = "a part: each node has a copy"


@dataclass(frozen=True)
class Wrapped:
    """A model under an engine: `backward` takes the loss and `retain_graph`, `step` applies and clears the gradients.

    `accumulate(last)` is held open around each micro-batch's forward and backward pass and says whether it is the
    step's last: the engine's own gradient accumulation. `accelerator` is there when accelerate prepared the model. An
    engine whose `backward` steps as well leaves no gradients to read. `optimizer` and `scheduler` are those that `step`
    steps, where the loop has to save them itself.
    """

    model: Any
    backward: Callable[..., None]
    step: Callable[[], None]
    accelerator: Any = None
    gradients_remain: bool = True
    accumulate: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext()
    optimizer: Any = None
    scheduler: Any = None


@dataclass(frozen=True)
class Setup:
    """Where a rank finds itself: what its cell asks for, and the device that it was given.

    `deepspeed` changes the config that a ZeRO strategy takes from its file (None takes a key out), and `keywords` are
    more arguments of torch's engines. `micro_batches` are what the engine itself accumulates for a step; it divides
    their losses by their number. `reference` says that this is the run that the others are held against: what goes
    wrong in one process too, it is built without. If it is `scheduled`, each step has a smaller learning rate (see
    `shared.schedule`). `strategy` is the cell's.

    Of a global batch a rank trains on the rows of `data_rank`, one of `data_world`, which several ranks may share.
    """

    rank: int
    world_size: int
    checkpointing: str
    precision: str
    device: Any
    folder: str
    deepspeed: Config
    micro_batches: int = 1
    reference: bool = False
    scheduled: bool = False
    strategy: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def data_rank(self) -> int:
        return data_place(self.strategy, self.rank, self.world_size)[0]

    @property
    def data_world(self) -> int:
        return data_place(self.strategy, self.rank, self.world_size)[1]


@dataclass(frozen=True, eq=False)
class Family:
    """The strategies that one file is about, with the options of each, and all that is special about them.

    `module` is the name of the file's module. docs/add-a-strategy.md says what each field means.
    """

    module: str
    order: int
    strategies: Mapping[str, Any]
    wrap: Callable[[Any, Callable[[Any], Any], Any, Setup], Wrapped]
    arguments: Callable[[Any, Setup], dict[str, object]]
    accelerate: Callable[[Any, Setup], dict[str, object]]
    parameters: Callable[[Any], Tensors]
    gradients: Callable[[Any], Gradients]
    save: Callable[[Wrapped, Path], None]
    load: Callable[[Wrapped, Path], None]
    evidence: Callable[[Any], dict[str, object]]
    prepared: Callable[[Any], dict[str, object]]
    doubts: Callable[[Any, Evidence], list[str]]
    load_model: Callable[[Any, Any, Setup], Any] | None = None
    used: Callable[[Any], int] | None = None
    configured: Callable[[Mapping[str, Any]], list[str]] = lambda settings: []
    holds: Callable[[Any], Holds] = lambda options: Holds.WHOLE
    data_place: Callable[[Any, int, int], tuple[int, int]] = lambda options, rank, world_size: (rank, world_size)

    package: str = "torch"
    distributed: bool = True
    casts: bool = False
    resizes: bool = False
    broadcasts_buffers: bool = False
    mechanism_only: bool = False
    named_only: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    one_rank: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    least_ranks: Mapping[str, int] = field(default_factory=dict)

    argument_names: tuple[str, ...] = ()
    settings: Table = field(default_factory=dict)
    engine_settings: Table = field(default_factory=dict)
    messages: Table = field(default_factory=dict)
    frames: Table = field(default_factory=dict)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)

    buffers: str = ""
    same_start: str = ""
    moved_by_hand: str = ""

    @property
    def name(self) -> str:
        """What its file is called."""
        return self.module.rpartition(".")[2]

    @property
    def code(self) -> ModuleType:
        """Its file as a module, of which exports take functions."""
        return sys.modules[self.module]

    @property
    def template(self) -> Path:
        """Where its way into exported files is, if it has one of its own."""
        return Path(str(self.code.__file__)).with_suffix(".py.j2")

    def doubt_rows(self, name: str, rows: Mapping[int, Hashable], world_size: int, *, same: bool = False) -> list[str]:
        """What contradicts that ranks which share a batch saw the same rows, and others saw others, unless they were to
        see the `same`: of each rank a digest of its rows, or else its losses, which rounding may set apart."""
        sharing: dict[int, dict[Hashable, list[int]]] = {}
        for rank, seen in rows.items():
            place, _ = self.data_place(self.strategies[name], rank, world_size)
            sharing.setdefault(place, {}).setdefault(seen, []).append(rank)
        doubts = []
        for by_rows in sharing.values():
            if len(by_rows) > 1 and all(isinstance(seen, str) for seen in by_rows):
                some = " and ".join(str(ranks[0]) for ranks in by_rows.values())
                doubts.append(f"ranks {some} share a batch, and trained on different rows")
        if len(sharing) > 1 and (len(set().union(*sharing.values())) == 1) is not same:
            doubts.append("ranks trained on different rows" if same else "every rank trained on the same rows")
        return doubts


def merged(content: Config, changes: Config) -> Config:
    """A DeepSpeed config with changes to it, in its sections too; None takes a key out."""
    new = {
        key: {**content.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return {key: value for key, value in {**content, **new}.items() if value is not None}


@functools.cache
def families() -> dict[str, Family]:
    """The families by the names of their files: those beside this one that have a FAMILY."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.FAMILY.name: module.FAMILY for module in modules if hasattr(module, "FAMILY")}


@functools.cache
def _index() -> dict[str, Family]:
    ordered = sorted(families().values(), key=lambda family: (family.order, family.name))
    return {name: family for family in ordered for name in family.strategies}


@functools.cache
def distributed(name: str) -> bool:
    """Whether a strategy has a process group, as one had that there is none of any more."""
    return name not in _index() or family(name).distributed


def package(name: str) -> str:
    """The package whose engine a strategy is; torch for one that there is none of any more."""
    return family(name).package if name in _index() else "torch"


@functools.cache
def least_ranks(name: str) -> int:
    """How many ranks a strategy needs to be what its name says."""
    return family(name).least_ranks.get(name, 1) if name in _index() else 1


@functools.cache
def usual_ranks(name: str) -> int:
    """The world size at which a strategy is run unless another is asked for."""
    return max(2, least_ranks(name)) if distributed(name) else 1


@functools.cache
def mechanism_only(name: str) -> bool:
    """Whether the default matrix has a strategy for broken variants at scenario level, and those that name it."""
    return family(name).mechanism_only or usual_ranks(name) > 2


@functools.cache
def usual_names() -> tuple[str, ...]:
    """The strategies that the default matrix also runs in bf16 and on four ranks."""
    return tuple(name for name in names() if name in family(name).usual)


@functools.cache
def one_rank_names() -> tuple[str, ...]:
    """The strategies that the default matrix also runs on a single rank."""
    return tuple(name for name in names() if name in family(name).one_rank)


def names() -> list[str]:
    """Every strategy, from one process to the most sharded."""
    return list(_index())


def family(name: str) -> Family:
    return _index()[name]


def family_name(name: str) -> str:
    """A strategy's family, as its file is called."""
    return family(name).name


def holds(name: str) -> Holds:
    """What a rank holds of the weights under a strategy."""
    return family(name).holds(options(name))


def data_place(name: str, rank: int, world_size: int) -> tuple[int, int]:
    """Whose rows of a global batch a rank trains on, and among how many they are shared out: its own if no strategy is
    named."""
    return family(name).data_place(options(name), rank, world_size) if name else (rank, world_size)


def data_world(name: str, world_size: int) -> int:
    """Among how many the rows of a global batch are shared out."""
    return data_place(name, 0, world_size)[1]


def engine(name: str) -> str:
    """What the names of a strategy and of its options begin with, such as zero2 or fsdp1."""
    return name.partition("-")[0]


def options(name: str) -> Any:
    """What its family knows of a strategy: a record of the family's own."""
    return family(name).strategies[name]


def wrap(built: Any, name: str, setup: Setup) -> Wrapped:
    """Put a scenario's model under the bare engine of a strategy."""
    from faultline.scenario import sgd

    return family(name).wrap(built.model, built.optimizer or sgd, options(name), setup)
