"""What makes numbers of a GPU repeat: no TF32, and deterministic kernels where there are any."""

import contextlib
import re
from pathlib import Path
from typing import Any

import torch

DRIVER = Path("/proc/driver/nvidia/version")


def begin() -> None:
    """Have CUDA compute fp32 in fp32, and the same numbers in each run.

    TF32 rounds the inputs of convolutions to 10 bits, and torch allows it unasked. It is switched off by both of
    torch's interfaces: since torch 2.9, ``TrainingArguments(tf32=True)`` sets what holds for all operations, and what
    an operation has of its own stays. An operation without a deterministic kernel only warns: models may need it. In
    this mode torch also keeps NCCL from reducing within the switch (NVLS), whose order changes from call to call.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    for operations in _operations():
        operations.fp32_precision = "ieee"
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Memory that upstream code reads before it wrote there is no NaN on the CPU, nor in anybody's training.
    with contextlib.suppress(AttributeError):  # before torch 2.2
        torch.utils.deterministic.fill_uninitialized_memory = False


def tf32() -> bool:
    """Whether CUDA may compute fp32 in TF32 by now: something in the run may have switched it on."""
    if operations := _operations():
        return any(each.fp32_precision == "tf32" for each in operations)
    return torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32


def software() -> dict[str, str]:
    """The driver's version, and those of CUDA and NCCL that torch brings; empty where there is none."""
    driver = nccl = ""
    with contextlib.suppress(OSError, IndexError):
        driver = re.findall(r"Kernel Module.*?\s(\d+\.[\d.]+)", DRIVER.read_text())[0]
    with contextlib.suppress(AttributeError, RuntimeError, ImportError):
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version() if str(part))
    return {"driver": driver, "cuda": torch.version.cuda or "", "nccl": nccl}


def _operations() -> list[Any]:
    """What has a precision of its own; nothing before torch 2.9."""
    cudnn = torch.backends.cudnn
    every = (torch.backends.cuda.matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None))
    return [each for each in every if hasattr(each, "fp32_precision")]
