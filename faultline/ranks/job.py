"""What the ranks of a cell are given to do, as the supervisor sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from faultline.cells.cell import Cell

LOOPBACK = "127.0.0.1"
ROOT = "root"  # in place of the classes of FSDP's units: the model is the only one
FIRST, SECOND = 1, 2
"""The halves of an interrupted life: one is trained and saved, the other loaded and trained on."""


@dataclass(frozen=True)
class Target:
    """Somebody's own model: a function of a file, or a file that is a config.

    `lora` are keywords of LoraConfig, empty without; `cwd` is the folder that its ranks work in. Among `world_size`
    ranks the rows of a batch are shared, in the reference too. `path` has folders in which it looks for modules.
    `trainer` names what trains it, if it isn't a plain loop. With `sketched`, ranks report a sketch of what it did.
    `together`: its reference has all rows in one batch, and isn't the mean over the ranks' rows. `units` are the
    classes of FSDP's units, or ROOT alone; if there are none, they are chosen. A rank trains `micro_batches` a step.
    """

    file: str
    function: str
    lora: Mapping[str, object]
    cwd: str
    world_size: int
    path: Sequence[str] = ()
    trainer: str = ""
    sketched: bool = False
    together: bool = False
    units: Sequence[str] = ()
    micro_batches: int = 1


def importable(file: Path, path: Sequence[str]) -> tuple[str, list[str]]:
    """The name by which a file may import what stands beside it in its package, and the folders that have its modules:
    its own, that of its package, and those of `path`."""
    package = [folder.name for folder in takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents)]
    folders = dict.fromkeys((str(file.parent), str(file.parents[len(package)]), *path))
    return ".".join((*reversed(package), file.stem)), [*folders]


@dataclass(frozen=True)
class Written:
    """What a script that builds a target again has to know of it.

    `units` are the classes of its blocks, of which FSDP makes units; `cast`, whether its weights are cast to fp32. Of a
    config there is the small model's `config` as JSON, and its `model_class`; where the target brings no loss, the
    generated `batch` as an expression. `refused` says why there is none of it.
    """

    units: Sequence[str] = ()
    config: str = ""
    model_class: str = ""
    batch: str = ""
    cast: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Job:
    """What the ranks of a cell are given to do.

    - `folder`: what they write goes there
    - `reference`: the file to compare with; with `record`, to write
    - `checkpoint`: the folder that a failure with a `save` saves to; with `load`, it is loaded and nothing else is done
    - `half`: of an interrupted life, FIRST or SECOND; `state` is the folder of what is saved between them
    - `target`: trained in place of the catalogue's failure
    - `inject`: names a change to what is run (see `injection`)
    - `executed`: report which functions run, which makes it slower
    - `gpus`: the UUIDs of those that it has, none for the CPU; `visible` has their numbers, by which CUDA takes them
    - `times`: do it all so many times in the same ranks, and report the last: how long the bare work takes
    - `first_rank`, `ranks_here`: those of this node, if the cell is on several; `node` is its name, `address` its own
    - `meeting`, `port`: where all ranks meet; over loopback, and at a socket of the server, unless it is said
    - `listening`, `at_fork`: from the server, that socket and what it says of itself
    """

    cell: Cell
    world_size: int = 1
    folder: str = ""
    reference: str = ""
    record: bool = False
    checkpoint: str = ""
    load: bool = False
    half: int = 0
    state: str = ""
    target: Target | None = None
    inject: str = ""
    executed: bool = False
    gpus: Sequence[str] = ()
    visible: Sequence[int] = ()
    times: int = 1
    first_rank: int = 0
    ranks_here: int = 0
    node: str = ""
    address: str = ""
    meeting: str = ""
    port: int = 0
    listening: int = 0
    at_fork: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(values: Mapping[str, Any]) -> Job:
        target = values.get("target")
        return Job(**{**values, "cell": Cell(**values["cell"]), "target": target and Target(**target)})
