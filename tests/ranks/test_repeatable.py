"""On a GPU fp32 is fp32 and numbers repeat: what ranks set there, and what becomes of a cell that undid it."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import PartialState

from faultline.base.errors import Impossible
from faultline.catalogue import Variant
from faultline.cells.cell import Cell
from faultline.ranks import accelerate, main, plain_loop, preload, repeatable
from faultline.ranks.job import Job
from faultline.ranks.report import Report
from faultline.ranks.run import Run
from faultline.runs import rank_reports
from faultline.strategies import Setup
from tests.support.program import python

SETTINGS = """
import json, torch
from transformers.utils.import_utils import enable_tf32
from faultline.ranks import repeatable

seen = [repeatable.tf32()]
for line in ("pass", "enable_tf32(True)", *LINES):
    repeatable.begin()
    exec(line)
    seen.append(repeatable.tf32())
deterministic = torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
fills = torch.utils.deterministic.fill_uninitialized_memory
print(json.dumps([seen, deterministic, fills, repeatable.software()]))
"""
BY_OTHERS = "torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cudnn.conv.fp32_precision = 'tf32'"


@pytest.mark.slow
def test_ranks_switch_tf32_off_and_compute_deterministically():
    """Breaks when convolutions on a GPU round to 10 bits, as torch's default has it; when a kernel may take any order;
    when TrainingArguments(tf32=True), which asks for TF32 from above, changes what a cell in fp32 measures; or when a
    library that sets TF32 by itself, as accelerate does with dynamo, isn't noticed."""
    code = SETTINGS.replace("LINES", repr(BY_OTHERS))
    seen, deterministic, fills, software = json.loads(python("-c", code, check=True).stdout)
    assert seen == [True, False, False, True, True]
    assert deterministic and not fills
    assert software.keys() == {"driver", "cuda", "nccl"}


def test_the_driver_is_named_as_the_kernel_has_it(tmp_path, monkeypatch):
    """Breaks when results of a fleet's GPUs say of no driver, or of a sentence, that it drove them."""
    file = tmp_path / "version"
    monkeypatch.setattr(repeatable, "DRIVER", file)
    assert repeatable.software()["driver"] == ""
    for kind in ("NVIDIA UNIX x86_64 Kernel Module ", "NVIDIA UNIX Open Kernel Module for x86_64 "):
        file.write_text(f"NVRM version: {kind} 580.159.04  Release Build\nGCC version: 12.2.0\n")
        assert repeatable.software()["driver"] == "580.159.04"


@pytest.mark.parametrize(("precision", "tf32", "doubted"), [("fp32", True, 1), ("bf16", True, 0), ("fp32", False, 0)])
def test_a_cell_in_fp32_that_ran_with_tf32_is_doubted(precision, tf32, doubted):
    """Breaks when numbers with 10 bits count as those of fp32, or a cell in bf16 is refused for a setting of fp32."""
    cell = Cell("grpo_lora_no_grad", "broken", "single", precision=precision, world_size=1, device="cuda")
    report = Report(0, evidence={"wrapper": "Module", "tf32": tf32, "checkpointing_seen": "off"})
    doubts = rank_reports.unproven(cell, [report])
    assert sum("TF32" in doubt for doubt in doubts) == doubted


def test_cublas_repeats_on_a_gpu_and_the_cpu_hides_gpus():
    """Breaks when cuBLAS may take another workspace in each run, or libraries move to a GPU that nobody asked for."""
    assert preload.environment("cuda")["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUDA_VISIBLE_DEVICES" not in preload.environment("cuda")
    assert preload.environment("cpu")["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUBLAS_WORKSPACE_CONFIG" not in preload.environment("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """Two GPUs as torch would describe them; `calls` has what a rank did to the settings."""
    calls = []
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid="1122")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 7))
    monkeypatch.setattr(repeatable, "begin", lambda: calls.append("begin"))
    monkeypatch.setattr(repeatable, "tf32", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1122,GPU-3344")
    return calls


ALONE = Cell("grpo_lora_no_grad", "broken", "single", world_size=1, device="cuda")


def test_a_rank_on_a_gpu_says_which_cuda_and_nccl_it_has_and_sets_its_arithmetic_first(gpu):
    """Breaks when a rank on a GPU trains with torch's defaults, or its versions are missing from what is sent."""
    report = Report(0)
    main._set_up(Job(ALONE, gpus=("GPU-1122",)), report)
    assert "begin" in gpu
    assert {"gpu": "NVIDIA H100 80GB HBM3", "cuda": "13.0", "nccl": "2.27.7"}.items() <= report.evidence.items()
    on_cpu = Report(0)
    main._set_up(Job(replace(ALONE, device="cpu")), on_cpu)
    assert gpu.count("begin") == 1 and "cuda" not in on_cpu.evidence


def test_a_rank_reports_tf32_also_where_training_raises(gpu, monkeypatch):
    """Breaks when TF32 goes unseen in a cell that ends with an error, or a cell on the CPU speaks of it."""

    def fails(run):
        raise RuntimeError("as it happens")

    monkeypatch.setattr(plain_loop, "train", fails)
    for device, evidence in (("cuda", {"tf32": True}), ("cpu", {})):
        cell, report = replace(ALONE, device=device), Report(0)
        with pytest.raises(RuntimeError):
            main._train(Run(main, Variant("broken"), cell, Setup(0, 1, "off", "fp32", None, "", {}), report))
        assert report.evidence == evidence


def test_accelerate_uses_gloo_where_ranks_share_a_gpu(monkeypatch):
    """Breaks when trainers on one GPU fail in their first log: accelerate gathers in ways that only NCCL has."""

    def init(self):
        self.__dict__ = self._shared_state
        self.backend = "nccl"

    monkeypatch.setattr(PartialState, "__init__", init)
    monkeypatch.setattr(PartialState, "_shared_state", {})
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    accelerate.honest_on_shared_gpus()
    PartialState()
    assert PartialState._shared_state["backend"] == "gloo"


def test_a_process_alone_on_a_gpu_has_no_ddp_through_accelerate():
    """Breaks when such a cell is called invalid, as if something had gone wrong, or one that can be run is refused."""
    alone = Setup(0, 1, "off", "fp32", SimpleNamespace(type="cuda"), "", {})
    with pytest.raises(Impossible, match="a single process has a GPU"):
        accelerate.check_wraps("ddp-static-graph", alone)
    accelerate.check_wraps("fsdp2", alone)
    accelerate.check_wraps("ddp", replace(alone, world_size=2))
    accelerate.check_wraps("ddp", replace(alone, device=SimpleNamespace(type="cpu")))
