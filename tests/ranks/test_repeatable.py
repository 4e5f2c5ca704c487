"""On a GPU fp32 is fp32 and numbers repeat: what ranks set there, and what becomes of a cell that undid it."""

import json
import subprocess
import sys

import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.ranks import preload
from faultline.ranks.report import Report
from faultline.runs import oracle

SETTINGS = """
import json, sys, torch
from faultline.ranks import repeatable
before = repeatable.tf32()
repeatable.begin()
off = repeatable.tf32()
exec(sys.argv[1])
deterministic = torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
fills = torch.utils.deterministic.fill_uninitialized_memory
print(json.dumps([before, off, repeatable.tf32(), deterministic, fills, repeatable.software()]))
"""


def settings(then="pass"):
    """What torch's settings are in a fresh process, before, once a rank began, and after a library's line."""
    ran = subprocess.run(
        [sys.executable, "-c", SETTINGS, then], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_ranks_switch_tf32_off_and_compute_deterministically():
    """Breaks when convolutions on a GPU round to 10 bits, as torch's default has it, or a kernel may take any order."""
    before, off, after, deterministic, fills, software = settings()
    assert before and not off and not after and deterministic and not fills
    assert software.keys() == {"cuda", "nccl"}


@pytest.mark.slow
def test_a_trainers_flag_does_not_switch_tf32_on():
    """Breaks when TrainingArguments(tf32=True) changes what a cell in fp32 measures: it asks for TF32 from above."""
    assert settings("from transformers.utils.import_utils import enable_tf32; enable_tf32(True)")[2] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["torch.backends.cuda.matmul.allow_tf32 = True", "torch.backends.cudnn.conv.fp32_precision = 'tf32'"]
)
def test_tf32_that_something_else_switched_on_is_seen(line):
    """Breaks when a library that sets TF32 by itself, as accelerate does with dynamo, isn't noticed."""
    assert settings(line)[2] is True


@pytest.mark.parametrize(("precision", "tf32", "doubted"), [("fp32", True, 1), ("bf16", True, 0), ("fp32", False, 0)])
def test_a_cell_in_fp32_that_ran_with_tf32_is_doubted(precision, tf32, doubted):
    """Breaks when numbers with 10 bits count as those of fp32, or a cell in bf16 is refused for a setting of fp32."""
    cell = Cell("grpo_lora_no_grad", "broken", "single", precision=precision, world_size=1, device="cuda")
    report = Report(0, evidence={"wrapper": "Module", "tf32": tf32, "checkpointing_seen": "off"})
    doubts = oracle.evidence_doubts(cell, [report])
    assert sum("TF32" in doubt for doubt in doubts) == doubted


def test_cublas_repeats_on_a_gpu_and_the_cpu_hides_gpus():
    """Breaks when cuBLAS may take another workspace in each run, or libraries move to a GPU that nobody asked for."""
    assert preload.environment("cuda")["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUDA_VISIBLE_DEVICES" not in preload.environment("cuda")
    assert preload.environment("cpu")["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUBLAS_WORKSPACE_CONFIG" not in preload.environment("cpu")
