"""The file of a run on GPUs that can be sent: all that its cells did, and nothing of whose machine it was."""

import getpass
import json
import platform
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from faultline.runs import results, sendable
from faultline.runs.storage import Machine
from tests.support.on_gpus import MACHINE, did, folder, on

SECRET = "hf_AbCdEf0123456789"


@pytest.fixture
def alice(monkeypatch, tmp_path):
    """A machine and a user with names, and with a variable that is secret."""
    home = tmp_path / "alice.smith"
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(platform, "node", lambda: "trainbox7.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice.smith")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return home


def unpacked(file):
    with zipfile.ZipFile(file) as whole:
        return {name: whole.read(name).decode() for name in whole.namelist()}


def test_the_file_names_no_machine_no_user_and_no_secret(alice, tmp_path):
    """Breaks when somebody who sends results also sends who they are, where their files lie, or a token."""
    words = f"alice.smith on trainbox7: /mnt/a-b/my.models, {alice}/x/y.bin and {SECRET} failed at 10.11.12.13<4567>"
    library = "/scratch/alice/.venv/lib/python3.12/site-packages/torch/x.py"
    traceback = f'  File "{library}", line 1\n  File "{alice}/train.py"'
    raised = did(on("zero2"), "raises", "other", detail=words, text=f"{traceback}\nRuntimeError: {words}", seen=words)
    hung = did(on("ddp"), "hangs", "no-progress")
    changes = {"stack": traceback, "log": f"{words}\nPATH={alice}"}
    hung = replace(hung, ranks=tuple(replace(rank, **changes) for rank in hung.ranks))
    run = folder(tmp_path / "run", raised, hung, request={"python": str(alice)}, asked=str(alice))
    text = "".join(unpacked(sendable.write(run, run.results())).values())
    for private in ("alice", "trainbox7", SECRET, "10.11.12.13", "/mnt", "/scratch", "GPU-11223344", "smith", "PATH="):
        assert private not in text, private
    assert "site-packages/torch/x.py" in text and "failed at <address><4567>" in text and ": <path>, " in text


def test_what_was_measured_stays(alice, tmp_path):
    """Breaks when cleaning changes an outcome, a number, the evidence or the machine, tells when it was done, or can't
    say which NCCL ran where."""
    assert sendable.machine(Machine(("A",)), [did(on("ddp"))]) == Machine(("A",), cuda="13.0", nccl="2.27.7")
    assert sendable.machine(Machine(("A",)), [did(on("ddp"), gpu="")]) == Machine(("A",))
    every = [did(on("zero2"), "diverges", "differs", detail="gradient of a.b differs by 12 %"), did(on("ddp"))]
    run = folder(tmp_path / "run", *every)
    file = sendable.write(run, run.results())
    first, content = file.read_bytes(), unpacked(file)
    assert sendable.write(run, run.results()).read_bytes() == first
    assert content.keys() == {"run.json", "cells.jsonl"}
    info = json.loads(content["run.json"])
    drivers = {"driver": "580.65.06", "cuda": "13.0", "nccl": "2.27.7"}
    assert info["machine"] == {"gpus": list(MACHINE.gpus), **drivers, "cores": 16}
    again = {entry.cell: entry for entry in map(results.read, content["cells.jsonl"].splitlines())}
    for entry in every:
        shown = {k: v for k, v in entry.evidence.items() if k not in sendable.OF_ONE_MACHINE}
        same = {name: getattr(entry, name) for name in ("did", "detail", "stack", "expected")} | {"evidence": shown}
        assert {name: getattr(again[entry.cell], name) for name in same} == same


def test_what_names_nobody_is_left_as_it_is():
    """Breaks when an error's words change so much that no pattern knows them any more."""
    texts = [
        "see https://github.com/huggingface/trl/issues/2580",
        "Expected all tensors to be on the same device, cuda:0 and cpu",
        "zero2/off/fp32/w2 and /dev/shm/torch_1 of 2.27.7",
        "the root unit of alice",
    ]
    assert [sendable.clean(text, ()) for text in texts] == texts
