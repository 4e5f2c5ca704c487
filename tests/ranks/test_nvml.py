"""NVML stays out of the rank server, and ranks have it."""

import importlib
from types import ModuleType, SimpleNamespace

import pytest

from faultline.ranks import nvml


@pytest.fixture
def libraries(monkeypatch):
    """torch and pynvml as far as they are asked here; `calls` has each real start of NVML."""
    calls = []
    pynvml = ModuleType("pynvml")
    pynvml.nvmlInit = lambda: calls.append("started")
    torch = SimpleNamespace(cuda=SimpleNamespace(_raw_device_count_nvml=pynvml.nvmlInit))
    modules = {"torch": torch, "pynvml": pynvml}
    monkeypatch.setattr(importlib, "import_module", lambda name: modules[name])
    monkeypatch.setattr(nvml, "seen", lambda: ["GPU-0", "GPU-1"])
    monkeypatch.setattr(nvml, "_replaced", [])
    monkeypatch.setattr(nvml, "_asked", [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return SimpleNamespace(torch=torch, pynvml=pynvml, calls=calls)


def test_the_server_counts_gpus_and_a_rank_starts_what_a_library_asked_for(libraries):
    """Breaks when each cell on a GPU is invalid, as NVML's thread is in the process that forks; when DeepSpeed asks a
    library for free memory that was never started; or when each rank pays for one that nothing uses."""
    nvml.keep_out()
    assert libraries.torch.cuda._raw_device_count_nvml() == 2
    assert libraries.torch.cuda._raw_device_uuid_nvml() == ["GPU-0", "GPU-1"]
    nvml.begin()
    assert libraries.calls == [], "nobody asked for it"
    nvml._replaced.clear()
    nvml.keep_out()
    libraries.pynvml.nvmlInit()
    assert libraries.calls == []
    nvml.begin()
    assert libraries.calls == ["started"]
    libraries.pynvml.nvmlInit()
    assert libraries.calls == ["started", "started"], "the real one is back"


def test_for_the_cpu_all_stays_as_it_is(libraries, monkeypatch):
    """Breaks when a server for the CPU looks for GPUs, or changes libraries for nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = libraries.pynvml.nvmlInit
    nvml.keep_out()
    assert libraries.pynvml.nvmlInit is before and not nvml._replaced


def test_a_machine_without_nvml_has_no_gpus(monkeypatch):
    """Breaks when a server doesn't start where the driver's library is missing."""
    monkeypatch.setattr(nvml, "LOOK", nvml.LOOK.replace("libnvidia-ml.so.1", "libnvidia-ml-missing.so.1"))
    assert nvml.seen() == []
    monkeypatch.setattr(nvml, "LOOK", "print('GPU-7')")
    assert nvml.seen() == ["GPU-7"]
