"""The target of a check: somebody's function or config, read from the words of the command line."""

import ast
import hashlib
import inspect
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline import strategies
from faultline.base.errors import UNREADABLE, UsageError
from faultline.base.paths import PACKAGE, content, real
from faultline.base.text import one_line, plain, similar_names
from faultline.cells.cell import Cell
from faultline.ranks import job


@dataclass(frozen=True)
class CheckTarget:
    """The target of a check: a function of a Python file, or a config (`function` is empty), with an adapter or
    without.

    `path` has the folders in which it looks for modules beside its own. `trainer` is empty for a plain loop, and
    `sketched`, `together`, `units` and `micro_batches` are as in `job.Target`.
    """

    file: Path
    function: str
    lora: Mapping[str, object]
    path: tuple[str, ...] = ()
    trainer: str = ""
    sketched: bool = False
    together: bool = False
    units: tuple[str, ...] = ()
    micro_batches: int = 1

    @property
    def digest(self) -> str:
        """Of the file's content: a check is only resumed on the same."""
        return hashlib.sha256(content(self.file)).hexdigest()

    def for_ranks(self, cell: Cell) -> job.Target:
        lora, here = dict(self.lora), str(Path.cwd())
        how = self.path, self.trainer, self.sketched, self.together, self.units, self.micro_batches
        world = strategies.data_world(cell.strategy, cell.world_size)
        return job.Target(str(self.file), self.function, lora, here, world, *how)


def target_name(build: Callable[[], object]) -> str:
    """A function as the command line names it, ``train.py:build``; raises UsageError for one that ranks can't load."""
    function = inspect.unwrap(build)
    name = getattr(function, "__qualname__", "")
    if not (inspect.isfunction(function) and name.isidentifier()):
        raise UsageError(
            f"{plain(name or build)} is no function at the top level of a file, so no rank can load it: write one that"
            " takes nothing and returns the model"
        )
    file = Path(inspect.getsourcefile(function) or "")
    if not file.is_file():
        raise UsageError(f"{name} stands in no file, so no rank can load it: write it into one")
    if needed := needs(function):
        raise UsageError(takes_nothing(name, needed))
    file = file.resolve()
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{name}"


def takes_nothing(name: str, needed: Sequence[str]) -> str:
    """The message for a function that can't be called as it is."""
    return (
        f"{plain(name)} is called without arguments, and needs {', '.join(map(plain, needed))}: give a function that"
        " takes none and returns the model, or (model, loss, batch)"
    )


def needs(function: Callable[..., object]) -> list[str]:
    """The arguments of a function that have no default."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def search_path() -> tuple[str, ...]:
    """The folders in which this process looks for modules beside what is installed: ranks look there too."""
    folders = [Path(folder or os.curdir).resolve() for folder in sys.path]
    installed = (PACKAGE, Path(sysconfig.get_path("stdlib")))
    return tuple(
        str(folder)
        for folder in folders
        if folder.is_dir()
        and not any(map(folder.is_relative_to, installed))
        and not {"site-packages", "dist-packages"} & {*folder.parts}
    )


def parse(text: str, lora: str, path: tuple[str, ...] = (), units: str = "") -> CheckTarget:
    """Read TARGET, --lora and --units; raises UsageError for what can't be one."""
    classes = tuple(filter(None, units.split(",")))
    if not all(name.isidentifier() for name in classes) or (job.ROOT in classes and len(classes) > 1):
        raise UsageError(f"--units {plain(units)!r}: write the classes of modules, Block,Head, or {job.ROOT} alone")
    name, _, function = text.partition(":")
    file = real(os.path.expanduser(name))
    if file.is_dir():
        inside = file / "config.json"
        if not inside.exists():
            raise UsageError(
                f"{plain(name)} has no config.json: give a model's folder, its config.json, or train.py:build"
            )
        file = inside
    if not file.exists():
        on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not file.suffix.startswith((".j", ".p"))
        hub = f"; of a model on the Hub: `hf download {text} config.json --local-dir model`" if on_hub else ""
        raise UsageError(
            f"{plain(name)} does not exist, and nothing is downloaded: "
            f"give a config.json, a folder or train.py:build{hub}"
        )
    if file.suffix == ".py":
        return CheckTarget(file, _function(file, name, function), adapter(lora), path, units=classes)
    try:
        config = json.loads(content(file).decode())
        known = isinstance(config["model_type"], str)
    except (OSError, *UNREADABLE):
        known = False
    if not known:
        raise UsageError(f"{plain(name)} is neither a Python file nor a config.json of transformers with a model_type")
    if function:
        raise UsageError(f"{plain(name)} is a config, which has no function {plain(function)!r}")
    return CheckTarget(file, "", adapter(lora), units=classes)


def _function(path: Path, name: str, function: str) -> str:
    """The function of a file that is meant: there has to be one, and it must be able to run without arguments."""
    try:
        tree = ast.parse(content(path).decode(), filename=name)
    except SyntaxError as error:
        raise UsageError(f"{plain(name)}:{error.lineno}: {one_line(error.msg)}") from None
    except (*UNREADABLE, MemoryError) as error:  # the last is said of brackets that are nested too deeply
        raise UsageError(f"{plain(name)}: {one_line(error)}") from None
    known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not function:
        raise UsageError(f"name the function that builds the model, as {plain(name)}:{known[0] if known else 'build'}")
    if (names := _names(tree)) is not None and function not in names:
        meant = f"did you mean {' or '.join(alike)}?" if (alike := similar_names(function, known)) else ""
        has = f"it has {', '.join(map(plain, known)) or 'none'}"
        raise UsageError(f"{plain(name)} has no function {plain(function)}; {meant or has}")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != function:
            continue
        inside = _constructor(node, classes) if isinstance(node, ast.ClassDef) else [node]
        for each in inside:
            bare = not (node.decorator_list or each.decorator_list)
            if bare and (needed := _needed(each.args)[0 if each is node else 1 :]):
                raise UsageError(takes_nothing(function, needed))
    return function


def _names(tree: ast.Module) -> set[str] | None:
    """The names that a file may give to something anywhere in it; None where another file's are all imported."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("globals", "exec"):
            return None
    return names


def _constructor(of: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.FunctionDef]:
    """The `__init__` of a class, or of the nearest class of the same file that it inherits from."""
    seen: set[str] = set()
    node: ast.ClassDef | None = of
    while node and node.name not in seen:
        seen.add(node.name)
        if initialisers := [
            each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        ]:
            return [*initialisers]
        node = next(
            (classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes), None
        )
    return []


def _needed(arguments: ast.arguments) -> list[str]:
    """The arguments that have no default."""
    positional = arguments.posonlyargs + arguments.args
    needed = [each.arg for each in positional[: len(positional) - len(arguments.defaults)]]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return needed + [each.arg for each, default in keywords if default is None]


def adapter(text: str) -> dict[str, object]:
    """Keywords for PEFT's LoraConfig from ``r=8,target=all-linear``; several targets have a + between them."""
    if not text:
        return {}
    words = dict(pair.partition("=")[::2] for pair in text.split(","))
    target = words.get("target") or "all-linear"
    try:
        rank = int(words.get("r") or 8)
        alpha, dropout = float(words.get("alpha") or 2 * rank), float(words.get("dropout") or 0)
        valid = rank >= 1 and words.keys() <= {"r", "alpha", "dropout", "target"}
    except (ValueError, OverflowError):
        valid = False
    if not valid:
        raise UsageError(
            f"--lora {plain(text)!r}: write r=8,target=all-linear, or alpha=16, dropout=0.05, target=q_proj+v_proj"
        )
    targets = target if target == "all-linear" else target.split("+")
    return {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "target_modules": targets}
