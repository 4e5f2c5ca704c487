"""The file of a run on GPUs that can be sent: what its cells did, and nothing that says whose machine it was."""

import contextlib
import getpass
import json
import os
import platform
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from faultline.base.traces import shorten_paths
from faultline.runs.results import Result
from faultline.runs.storage import Machine, RunFolder, RunInfo
from faultline.strategies import Evidence

NAME = "gpu-results.zip"
RUN, CELLS = "run.json", "cells.jsonl"
# Evidence that names one GPU among all that were ever made, and lists of what is on the machine.
OF_ONE_MACHINE = ("gpu_uuid", "gpus_lent")
# Fields whose words are those of libraries and of the system; the others are names of the catalogue and of parameters.
TEXTS = ("detail", "message", "traceback", "stack")

_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|AUTH|CREDENTIAL")
_SYSTEM = "dev|proc|sys|usr|lib|lib64|etc"  # folders that every machine has
_PATH = re.compile(rf"(?<![\w./>~])/(?!(?:{_SYSTEM})/)(?:[\w.+@-]+/)+[\w.+@-]*")
_ADDRESS = re.compile(r"\b(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
NAMED = ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")
LEAST = 3  # letters of a name that may be hidden: of a shorter one, every second word would be


def write(folder: RunFolder, results: Iterable[Result]) -> Path:
    """Write the file beside a run's results. Texts keep what an error says; logs and the request are left out."""
    info, every = folder.info(), sorted(results, key=lambda result: result.cell.id)
    private = names()
    about = RunInfo(cells=info.cells, stack=info.stack, finished=info.finished, machine=info.machine)
    lines = "".join(json.dumps(without_names(result.as_json(), private), allow_nan=False) + "\n" for result in every)
    file = folder.path / NAME
    partial = file.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as whole:
        for name, content in {RUN: msgspec.json.format(msgspec.json.encode(about)), CELLS: lines.encode()}.items():
            whole.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # whose date is always the same
    partial.replace(file)
    return file


def names() -> list[str]:
    """What only this machine and its user are called, the longest first; and what variables keep secret."""
    user = ""
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name, as in some containers
        user = getpass.getuser()
    host = platform.node()
    known = {str(Path.home()), user, host, host.partition(".")[0], *(os.environ.get(name, "") for name in NAMED)}
    known |= {value for name, value in os.environ.items() if _SECRET.search(name.upper()) and len(value) > 2 * LEAST}
    usual = {"root", "localhost", "/", "/root"}
    return sorted((name for name in known if len(name) >= LEAST and name not in usual), key=len, reverse=True)


def without_names(line: Mapping[str, Any], private: Collection[str]) -> dict[str, Any]:
    """A line of cells.jsonl whose texts name no machine, no user and no folder; logs are left out."""
    return {name: _clean(name, value, private) for name, value in line.items()}


def clean(text: str, private: Collection[str]) -> str:
    """A text without paths, without names that are private, and without addresses of a network."""
    text = _PATH.sub("<path>", shorten_paths(text))
    for name in private:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text)
    return _ADDRESS.sub("<address>", text)


def _clean(name: str, value: Any, private: Collection[str], free: bool = False) -> Any:
    if name == "log":
        return ""
    if isinstance(value, Mapping):
        free = free or name == "evidence"
        shown = {key: each for key, each in value.items() if not (free and key in OF_ONE_MACHINE)}
        return {key: _clean(key, each, private, free) for key, each in shown.items()}
    if isinstance(value, str):
        return clean(value, private) if free or name in TEXTS else value
    return [_clean(name, each, private, free) for each in value] if isinstance(value, list | tuple) else value


def machine(known: Machine, results: Iterable[Result]) -> Machine:
    """A machine with what its ranks reported: the versions of CUDA and NCCL, and of a fleet, its GPUs and driver."""
    shown = [rank.evidence for result in results for rank in result.ranks]
    seen = {str(each.get("gpu_uuid")): str(each["gpu"]) for each in shown if each.get("gpu")}
    driver = known.driver or reported(shown, "driver")
    gpus = known.gpus or tuple(sorted(seen.values()))
    cuda, nccl = reported(shown, "cuda", known.cuda), reported(shown, "nccl", known.nccl)
    return msgspec.structs.replace(known, gpus=gpus, driver=driver, cuda=cuda, nccl=nccl)


def reported(shown: Iterable[Evidence], what: str, known: str = "") -> str:
    """What the first rank says that says it; what is `known` of it where none does."""
    return next((str(evidence[what]) for evidence in shown if evidence.get(what)), known)
