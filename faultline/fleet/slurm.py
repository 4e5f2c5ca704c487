"""Jobs for Slurm: a run's shards as an array and a job that merges them, or one job that is a Ray cluster."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faultline.base.errors import UsageError
from faultline.base.paths import PACKAGE
from faultline.fleet.cluster import SETTINGS, STORE

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters.update(quote=lambda value: shlex.quote(str(value)), words=shlex.join)
PROGRAM = (sys.executable, "-P", str(PACKAGE / "__main__.py"))
SET_HERE = ("array", "cpus-per-task", "gres", "nodes", "open-mode", "output", "ntasks", "ntasks-per-node", "dependency")
OF_THE_NODE = ("exclusive", "gpus", "gpus-per-node", "gpu-bind", "mem", "mem-per-cpu", "mem-per-gpu", "constraint")
OPTION = re.compile(r"[a-z][a-z-]*(=.+)?")


@dataclass(frozen=True)
class Nodes:
    """What is asked of Slurm: so many nodes, with GPUs and processors on each; `ray` makes a cluster of them.

    `options` are of sbatch, without hyphens: ``time=04:00:00``.
    """

    count: int
    gpus: int = 0
    cpus: int = 4
    options: Sequence[str] = ()
    ray: bool = False


@dataclass(frozen=True)
class Run:
    """What the jobs run: options of `faultline run`, in the folder `here`; scripts, logs and results go to `folder`."""

    asked: Sequence[str]
    here: Path
    folder: Path


def scripts(nodes: Nodes, run: Run) -> dict[str, str]:
    """The text of each script by its file's name.

    Raises UsageError for an option of sbatch that is none, or is set by the scripts.
    """
    options = [checked(option) for option in nodes.options]
    values = {
        **asdict(run),
        "nodes": nodes.count,
        "gpus": nodes.gpus,
        "cpus": nodes.cpus,
        "ray": nodes.ray,
        "options": options,
        "program": PROGRAM,
        "python": sys.executable,
        "settings": SETTINGS,
        "store": STORE,
    }
    if nodes.ray:
        return {"run.sbatch": _text("ray.sbatch", values), "submit.sh": _text("submit.sh", values)}
    to_merge = [option for option in options if option.partition("=")[0] not in OF_THE_NODE]
    return {
        "shards.sbatch": _text("shards.sbatch", values),
        "merge.sbatch": _text("merge.sbatch", {**values, "options": to_merge}),
        "submit.sh": _text("submit.sh", values),
    }


def _text(name: str, values: dict[str, object]) -> str:
    return TEMPLATES.get_template(f"{name}.j2").render(values)


def checked(option: str) -> str:
    """An option of sbatch as a line of a script has it."""
    option = option.removeprefix("--")
    name, equals, value = option.partition("=")
    if not OPTION.fullmatch(option) or not option.isprintable():
        raise UsageError(f"--sbatch takes an option's long name and its value, such as time=04:00:00, not {option!r}")
    if name in SET_HERE:
        raise UsageError(f"--sbatch {name} is set by the script: it follows from --nodes, --gpus and --cpus")
    return f"{name}{equals}{shlex.quote(value)}" if equals else name


def write(nodes: Nodes, run: Run) -> Path:
    """Write the scripts into the run's folder, which must be new; gives the one that submits the others."""
    texts = scripts(nodes, run)
    for value in (run.here, run.folder):
        if not str(value).isprintable():
            raise UsageError(f"a script can't name this folder: {str(value)!r}")
    if run.folder.exists() and any(run.folder.iterdir()):
        raise UsageError(f"{run.folder} is not empty: bash {run.folder}/submit.sh goes on with a run that is there")
    (run.folder / "logs").mkdir(parents=True)
    for name, text in texts.items():
        (run.folder / name).write_text(text, encoding="utf-8")
    return run.folder / "submit.sh"


def shards(folder: Path) -> list[Path]:
    """The results of the shards that have begun; raises UsageError where none has."""
    begun = sorted(file.parent for file in folder.glob("shard-*/run.json"))
    if not begun:
        raise UsageError(f"no shard has begun in {folder}: its logs folder has what Slurm and the shards printed")
    return begun
