"""Cache results: what a cell did, found again as long as nothing changes of what it hangs on."""

import contextlib
import functools
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.base.interpreters import ask, command
from faultline.base.paths import PACKAGE, REPROS, ROOT
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.ranks import preload
from faultline.runs import gpus, results, supervisor
from faultline.runs.results import Result
from faultline.stacks.environments import Environment

VARIABLE = "FAULTLINE_CACHE"  # names another folder for them
LIMIT = 1 << 30  # bytes that all of them may take
# What ranks run and what judges them. tests/runs/test_cache.py holds it against what a rank imports.
MACHINERY = """
    base catalogue cells ranks strategies __init__.py scenario.py trainers.py
    runs/rank_reports.py runs/hangs.py runs/nodes.py runs/oracle.py
    runs/results.py runs/runner.py runs/scratch.py runs/supervisor.py
""".split()
BESIDE = ("tiny_models/*.py", "ds_configs/*", "fixtures/*.jsonl")
# What libraries under test act on, of the variables that ranks inherit.
VARIABLES = (
    *("PYTHON", "TORCH", "PYTORCH_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "MKL_", "OPENBLAS_", "TRITON_", "C10D_"),
    strategies.ROWS_VARIABLE,
    *("HF_", "TRANSFORMERS_", "TRL_", "PEFT_", "DATASETS_", "TOKENIZERS_", "XLA_", "USE_", "ATEN_", "KMP_", "JE_"),
)
# A story is no part of a run, and what was expected is held against a result anew whenever that is taken.
NOT_RUN = ("README.md", "expected.toml", "symptoms.toml")

# What an interpreter is asked: what it is, where the libraries under test would be imported from, and the sizes and
# times of their files there: somebody may have changed an installed line.
LOOK = """
import hashlib, importlib.util, json, os, pathlib, platform, sys

seen, elsewhere = hashlib.blake2b(digest_size=16), []
for name in "torch transformers trl peft accelerate deepspeed datasets tokenizers safetensors PIL".split():
    spec = importlib.util.find_spec(name)
    if not spec or not spec.origin:
        continue
    package = pathlib.Path(spec.origin).parent
    if package.parent.name not in ("site-packages", "dist-packages"):
        elsewhere.append(name)
    for folder, folders, files in os.walk(package):
        folders.sort()
        for file in sorted(files):
            if file.endswith((".py", ".so")):
                status = os.stat(os.path.join(folder, file))
                place = os.path.relpath(os.path.join(folder, file), package.parent)
                seen.update(f"{place} {status.st_size} {status.st_mtime_ns}\\n".encode())
kind = f"{platform.python_implementation()} {platform.python_version()} {sys.platform} {platform.machine()}"
print(json.dumps([kind, seen.hexdigest(), elsewhere]))
"""


@dataclass(frozen=True)
class Cache:
    """The results of one stack; `again` counts the earlier measurements of its cells that one is to stand beside.

    `stack` is a digest of an environment and of this machine, and empty where nothing may be kept.
    """

    stack: str
    again: int = 0

    def take(self, cells: Iterable[Cell]) -> list[Result]:
        """What is kept of cells, held against today's expectations; a damaged entry counts as none."""
        entries = ((cell, results.read(self.read(cell))) for cell in cells)
        return [results.with_verdict(entry) for cell, entry in entries if entry and entry.cell == cell]

    def add(self, entry: Result) -> None:
        """Keep a result, unless another run might have another; where nothing can be written, nothing is kept."""
        if lasts(entry):
            self.write(entry.cell, json.dumps(entry.as_json(), allow_nan=False))

    def read(self, cell: Cell, what: str = "result") -> str:
        """A text that is kept of a cell; empty where there is none, or a damaged one."""
        file = self.file(cell, what)
        try:
            name, text = gzip.decompress(file.read_bytes()).decode().split("\n", 1) if self.stack else ("", "")
        except (OSError, EOFError, zlib.error, ValueError):
            return ""
        if name != file.name:
            return ""
        with contextlib.suppress(OSError):
            os.utime(file)  # what is used stays longest
        return text

    def has(self, cell: Cell, what: str) -> bool:
        """Whether a text is kept of a cell, without a look into it."""
        return bool(self.stack) and self.file(cell, what).exists()

    def begin(self, cells: Iterable[Cell]) -> None:
        """Digest the code that these cells are about to run: what is edited from now on, `write` doesn't keep."""
        for name in {"", *(cell.failure for cell in cells)} if self.stack else ():
            _digested(name)

    def write(self, cell: Cell, text: str, what: str = "result") -> None:
        """Keep a text, unless code was written since its cell ran."""
        if not self.stack or _edited(cell.failure):
            return
        file = self.file(cell, what)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            # A draft beside its place: others may write the same, and a reader sees all or nothing.
            with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".partial", delete=False) as partial:
                try:
                    partial.write(gzip.compress(f"{file.name}\n{text}".encode(), 6))
                    partial.flush()
                    os.replace(partial.name, file)
                except BaseException:
                    os.unlink(partial.name)
                    raise

    def file(self, cell: Cell, what: str = "result") -> Path:
        name = digest(self.stack, machinery(), of_failure(cell.failure), cell.id, str(self.again), what)
        return folder() / name[:2] / name


def of(environment: Environment, device: str, again: int = 0, here: bool = True) -> Cache:
    """Where the results of an environment are kept, but for GPUs that aren't `here`, as nobody knows their kind."""
    if device == "cuda" and not here:
        return Cache("")
    kind, files, elsewhere = _looked_at(environment.python)
    if elsewhere or " @ file:" in environment.lock:
        return Cache("")  # a folder changes, and its version stays
    inherited = supervisor.inherited(environment.python) | preload.environment(device)
    variables = [f"{name}={value}" for name, value in sorted(inherited.items()) if name.startswith(VARIABLES)]
    kinds = _gpus() if device == "cuda" else ""
    return Cache(digest(kind, environment.lock, files, device, kinds, "\n".join(variables)), again)


def lasts(entry: Result) -> bool:
    """Whether a result says something of the cell: it has evidence, and neither memory nor time ran out."""
    out_of_memory = entry.outcome == Outcome.CRASHES and entry.signature == "SIGKILL"
    return entry.outcome != Outcome.INVALID and not out_of_memory and not entry.out_of_time


def folder() -> Path:
    """The folder of all results: in the user's cache, unless a variable names another."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path("faultline") / "results"


def digest(*parts: str) -> str:
    """One name for several texts, in their order; others have another."""
    seen = hashlib.blake2b(digest_size=20)
    for part in map(str.encode, parts):
        seen.update(len(part).to_bytes(8, "big") + part)
    return seen.hexdigest()


def of_files(files: Iterable[Path]) -> str:
    """A digest of files below the catalogue's folder, or the package's, with their places there."""
    parts = []
    for file in files:
        base = ROOT if file.is_relative_to(ROOT) else PACKAGE.parent
        parts += [str(file.relative_to(base)), file.read_bytes().hex()]
    return digest(*parts)


def machinery() -> str:
    """A digest of the code that runs and judges cells, and of the models, configs and data that they share."""
    return _digested("").digest


@functools.cache
def of_failure(name: str) -> str:
    """A digest of a failure's folder, and of the patterns by which its errors are known: some are those of others."""
    patterns = (text for pair in failures()[name].errors.items() for text in pair)
    return digest(_digested(name).digest, *patterns)


def machinery_files() -> list[Path]:
    inside = (PACKAGE / name for name in MACHINERY)
    files = [file for each in inside for file in (each.rglob("*.py") if each.is_dir() else [each])]
    return sorted(files + [file for pattern in BESIDE for file in ROOT.glob(pattern) if file.is_file()])


def failure_files(name: str) -> list[Path]:
    every = (file for file in (REPROS / name).rglob("*") if file.is_file())
    return sorted(file for file in every if file.name not in NOT_RUN and "__pycache__" not in file.parts)


@dataclass(frozen=True)
class Code:
    """Files as they were digested, with the place, size and time of each: they show cheaply that it was written since.

    Ranks would have run what was written, and not what was digested.
    """

    stamps: tuple[tuple[str, int, int], ...]
    digest: str


@functools.cache
def _digested(failure: str) -> Code:
    """The code of a failure, or of the machinery, as it is when it is first asked for."""
    files = failure_files(failure) if failure else machinery_files()
    return Code(_stamps(files), of_files(files))  # in this order: what is written in between differs


def _stamps(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    statuses = ((file, file.stat()) for file in files)
    return tuple((str(file), status.st_size, status.st_mtime_ns) for file, status in statuses)


def _edited(failure: str) -> bool:
    """Whether code that this failure's cells run was written since it was digested."""
    now = (_stamps(machinery_files()), _stamps(failure_files(failure)))
    return now != (_digested("").stamps, _digested(failure).stamps)


def prune(limit: int = LIMIT) -> None:
    """Remove what was used least lately, as far as all that is kept takes more than so many bytes."""
    files: list[tuple[float, int, Path]] = []
    for file in folder().glob("??/*"):
        with contextlib.suppress(OSError):  # another process removed it
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            file.unlink()
        total -= size


@functools.cache
def _looked_at(python: str) -> tuple[str, str, bool]:
    """What an interpreter is, a digest of its libraries' files, and whether one of these is anywhere else."""
    try:
        look = ask(command(python, "-c", LOOK), env=supervisor.inherited(python))
        kind, files, elsewhere = msgspec.json.decode(look.stdout, type=tuple[str, str, list[str]])
    except (UsageError, ValueError):
        return "", "", True
    return kind, files, bool(elsewhere)


@functools.cache
def _gpus() -> str:
    """The kinds of GPUs here, and their driver."""
    return gpus.here().kind
