"""What is checked: somebody's function or config, read from the words of the command line."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.text import one_line, plain
from faultline.ranks import job


@dataclass(frozen=True)
class Target:
    """What is checked: a function of a Python file, or a config (`function` is empty), with an adapter or without."""

    file: Path
    function: str
    lora: Mapping[str, object]

    def for_ranks(self, world_size: int) -> job.Target:
        return job.Target(str(self.file), self.function, dict(self.lora), str(Path.cwd()), world_size)


def parse(text: str, lora: str) -> Target:
    """Read TARGET and --lora; raises UsageError for what can't be one."""
    name, _, function = text.partition(":")
    path = Path(name).expanduser().resolve()
    if path.is_dir():
        inside = path / "config.json"
        if not inside.exists():
            raise UsageError(
                f"{plain(name)} has no config.json: give a model's folder, its config.json, or train.py:build"
            )
        path = inside
    if not path.exists():
        on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not path.suffix.startswith((".j", ".p"))
        hub = f"; of a model on the Hub: `hf download {text} config.json --local-dir model`" if on_hub else ""
        raise UsageError(
            f"{plain(name)} does not exist, and nothing is downloaded: "
            f"give a config.json, a folder or train.py:build{hub}"
        )
    if path.suffix == ".py":
        return Target(path, _function(path, name, function), adapter(lora))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = isinstance(content["model_type"], str)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise UsageError(f"{plain(name)} is neither a Python file nor a config.json of transformers with a model_type")
    if function:
        raise UsageError(f"{plain(name)} is a config, which has no function {plain(function)!r}")
    return Target(path, "", adapter(lora))


def _function(path: Path, name: str, function: str) -> str:
    """The function of a file that is meant: there has to be one, and it must be able to run without arguments."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
    except SyntaxError as error:
        raise UsageError(f"{plain(name)}:{error.lineno}: {one_line(error.msg)}") from None
    except ValueError as error:
        raise UsageError(f"{plain(name)}: {one_line(error)}") from None
    known = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not function:
        raise UsageError(f"name the function that builds the model, as {plain(name)}:{known[0] if known else 'build'}")
    return function


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
