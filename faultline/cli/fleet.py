"""The commands for many machines."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_USAGE, UsageError
from faultline.base.packages import TODAY
from faultline.base.paths import RESULTS
from faultline.base.text import count
from faultline.cli.options import WHOLE, Axes, File, Fresh, Python, Stack, at_least, at_most_one

if TYPE_CHECKING:
    from faultline.cells.cell import Cell

EXAMPLES = """\
Examples:
  faultline fleet slurm --nodes 4            scripts for a Slurm cluster
  faultline fleet merge results/slurm-...    its shards as one run"""


def slurm(
    *,
    nodes: Annotated[int, Parameter(validator=at_least(1, "--nodes"), help="Nodes, each of which runs a shard.")],
    gpus: Annotated[
        int, Parameter(validator=at_least(0, "--gpus"), help="GPUs of each node; the cells' device is then cuda.")
    ] = 0,
    cpus: Annotated[int, Parameter(validator=at_least(1, "--cpus"), help="Processors of each node (default: 4).")] = 4,
    ray: Annotated[bool, Parameter(help="Run on one Ray cluster of all these nodes, without shards.")] = False,
    spread: Annotated[
        int,
        Parameter(
            validator=at_least(1, "--spread"),
            help="Of these nodes, over which the ranks of each cell are spread, with --ray (default: 1).",
        ),
    ] = 1,
    sbatch: Annotated[
        tuple[str, ...],
        Parameter(metavar="OPTION=VALUE", help="An option of sbatch, such as time=04:00:00; may be repeated."),
    ] = (),
    results: Annotated[
        File, Parameter(metavar="FOLDER", help="A new folder for scripts, logs and results, which all nodes share.")
    ] = "",
    submit: Annotated[bool, Parameter(help="Hand them to Slurm at once.")] = False,
    axes: Axes = WHOLE,
    stack: Annotated[Stack, Parameter(help="As of `faultline run`.")] = TODAY,
    python: Python = "",
    workers: Annotated[
        int | None,
        Parameter(validator=at_least(1, "--workers"), help="Cells that run at a time; by default, one for each core."),
    ] = None,
    fresh: Fresh = False,
    quick: Annotated[bool, Parameter(help="Run one cell of each variant, where its failure shows.")] = False,
) -> int:
    """Write the scripts that run cells on the nodes of a Slurm cluster.

    The last job merges the shards. Its exit code is that of the whole run.

    Examples:
      faultline fleet slurm --nodes 4 --gpus 2 --sbatch time=04:00:00
      faultline fleet slurm --nodes 2 --ray --failure zero3_dummy_loss
    """
    from faultline.fleet import slurm as jobs

    stack = "" if stack == TODAY else stack
    at_most_one(stack=stack, python=python)
    if spread > (nodes if ray else 1):
        raise UsageError(f"--spread {spread} needs --ray, and as many --nodes at least")
    if submit and not shutil.which("sbatch"):
        raise UsageError("there is no sbatch here: leave out --submit, and submit the scripts where Slurm is")
    if ray and not importlib.util.find_spec("ray"):
        raise UsageError("--ray needs Ray beside Faultline: in a clone, `make fleet`, and then .fleet/bin/faultline")
    if gpus and not axes.cell and not axes.places.device:
        axes = replace(axes, places=replace(axes.places, device="cuda"))
    cells = selected(axes, quick)
    if {cell.device for cell in cells} != {"cuda" if gpus else "cpu"}:
        raise UsageError("cells on GPUs need --gpus, and no other cells do")

    options = {name: value for name, value in vars(axes).items() if name != "places"} | vars(axes.places)
    options |= {"stack": stack, "python": python, "workers": workers, "nodes": spread if spread > 1 else 0}
    asked = [f"--{name}={value}" for name, value in options.items() if value]
    asked += [f"--{name}" for name, on in (("fresh", fresh), ("quick", quick)) if on]
    folder = Path(results) if results else RESULTS / time.strftime("slurm-%Y-%m-%dT%H-%M-%S")
    given = jobs.Nodes(nodes if ray else min(nodes, len(cells)), gpus, cpus, sbatch, ray)
    script = jobs.write(given, jobs.Run(asked, Path.cwd(), Path(os.path.abspath(folder))))
    command = ["bash", str(script)]
    if submit:
        return subprocess.run(command, check=False).returncode and EXIT_USAGE
    print(f"the scripts for {count(len(cells), 'cell')} are there; this submits them:\n{shlex.join(command)}")
    return EXIT_AS_EXPECTED


def selected(axes: Axes, quick: bool) -> list[Cell]:
    """The cells that the nodes are to run; the machine that writes the scripts need not be able to."""
    from faultline.catalogue.loading import failures
    from faultline.cells.selection import select
    from faultline.observations import measured

    cells = select(failures(), axes.selection())
    if not cells:
        raise UsageError("no cell matches all of these options")
    return measured.quick(cells) if quick else cells


def merge(
    folders: Annotated[
        list[File],
        Parameter(metavar="FOLDER", help="That of the scripts, logs and shards, or the shards' own folders."),
    ],
    /,
) -> int:
    """Put the shards of a run together.

    It reports what is missing. The result of a run on Slurm is in the folder's `merged`.

    Examples:
      faultline fleet merge results/slurm-2026-11-26T10-00-00
      faultline fleet merge shard-1 shard-2
    """
    from faultline.fleet import slurm
    from faultline.matrix import command

    path = Path(folders[0]).absolute()
    if len(folders) > 1 or (path / "run.json").exists():
        return command.merge([*map(str, folders)])
    return command.merge([str(shard) for shard in slurm.shards(path)], path / "merged")
