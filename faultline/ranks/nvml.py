"""NVIDIA's management library (NVML), kept out of the process that forks ranks: there it starts a thread of CUDA's."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from faultline.base.interpreters import ask, command

# What a child is asked: the UUIDs of all GPUs, a line each. Nothing is imported for it, since a stack may lack pynvml.
LOOK = """
import ctypes

nvml, number, name = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint(), ctypes.create_string_buffer(96)
if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)):
    raise SystemExit(1)
for index in range(number.value):
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetUUID(handle, name, len(name))
    print(name.value.decode())
"""

_replaced: list[tuple[Any, Callable[[], None]]] = []  # pynvml, and how it is initialised
_asked: list[bool] = []  # once for each time that a library did


def keep_out() -> None:
    """Answer what torch and DeepSpeed ask of NVML as they are imported, without initialising it in this process.

    Since driver 580, ``nvmlInit`` loads CUDA's library and starts a thread, and only a process with one thread forks
    safely. torch asks for the number of GPUs (torch/cuda/__init__.py, _raw_device_count_nvml), and DeepSpeed
    initialises pynvml to ask for memory later (accelerator/cuda_accelerator.py); ranks do that when they `begin`.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # the CPU's: no GPU is seen, and nothing asks
        return
    cuda, uuids = importlib.import_module("torch").cuda, seen()
    if uuids:
        cuda._raw_device_count_nvml = lambda: len(uuids)
        cuda._raw_device_uuid_nvml = lambda: uuids
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return
    _replaced.append((pynvml, pynvml.nvmlInit))
    pynvml.nvmlInit = lambda: _asked.append(True)


def seen() -> list[str]:
    """The UUIDs of this machine's GPUs in the order of NVML, which a child asks for; none where it can't."""
    look = ask(command(sys.executable, "-c", LOOK))
    return look.stdout.split() if look.returncode == 0 else []


def begin() -> None:
    """In a rank: initialise NVML where a library believes that it has done so."""
    for pynvml, initialise in _replaced:
        pynvml.nvmlInit = initialise
        if _asked:
            initialise()
