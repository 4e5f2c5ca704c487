"""What is changed in libraries before ranks fork, and how ranks meet."""

import importlib
from types import ModuleType, SimpleNamespace

import pytest
import torch
from deepspeed import comm
from deepspeed.runtime.zero.partition_parameters import Init
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from faultline.ranks import meeting, nvml, preload
from faultline.ranks.job import Job
from faultline.scenario import sgd
from tiny_models import qwen2

IDS = torch.arange(16).reshape(2, 8)


class Handle:
    """An unfinished collective."""

    def __init__(self, waited):
        self.waited, self.number = waited, len(waited)
        waited.append(0)

    def wait(self):
        self.waited[self.number] += 1


@pytest.mark.parametrize(("backend", "expected"), [("gloo", [1, 1, 2]), ("nccl", [0, 0, 1])])
def test_every_gathered_parameter_is_waited_for_over_gloo(monkeypatch, backend, expected):
    """Breaks when ZeRO-3 of an older DeepSpeed trains at random with weights that had not arrived, or NCCL's order of
    things is another one than upstream's."""
    waited = []

    def as_before_0_19_8(self, parameters):
        handles = [comm.all_gather_into_tensor(), comm.all_gather(), comm.all_gather_into_tensor()]
        handles[-1].wait()
        return parameters

    collectives = {name: lambda: Handle(waited) for name in ("all_gather", "all_gather_into_tensor")}
    for name, collective in collectives.items():
        monkeypatch.setattr(comm, name, collective)
    monkeypatch.setattr(Init, "_allgather_params_coalesced", as_before_0_19_8)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    preload.wait_for_what_is_gathered()
    assert Init._allgather_params_coalesced(None, "parameters") == "parameters"
    assert waited == expected
    assert {name: getattr(comm, name) for name in collectives} == collectives, "other calls are as they were"


def test_shards_that_are_warmed_up_leave_nothing_of_themselves():
    """Breaks when ranks begin with a process group, with other random numbers, or with what DTensor kept for rank 0."""
    state = torch.get_rng_state()
    preload.warm_shards()
    assert not torch.distributed.is_initialized()
    assert torch.equal(torch.get_rng_state(), state)
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        model = fully_shard(qwen2.qwen2(), mesh=mesh)
        optimizer = sgd(model)
        for _ in range(2):
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
        buffers = [state["momentum_buffer"] for state in optimizer.state.values()]
        assert {buffer.device_mesh.get_coordinate() for buffer in buffers} == {(1,)}
    finally:
        torch.distributed.destroy_process_group()


# NVML stays out of the rank server, and ranks have it.


@pytest.fixture
def libraries(monkeypatch):
    """torch and pynvml as far as they are asked here; `calls` has each real start of NVML."""
    calls = []
    pynvml = ModuleType("pynvml")
    pynvml.nvmlInit = lambda: calls.append("started")
    torch = SimpleNamespace(cuda=SimpleNamespace(_raw_device_count_nvml=pynvml.nvmlInit))
    modules = {"torch": torch, "pynvml": pynvml}
    monkeypatch.setattr(importlib, "import_module", lambda name: modules[name])
    monkeypatch.setattr(nvml, "gpu_uuids", lambda: ["GPU-0", "GPU-1"])
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
    assert nvml.gpu_uuids() == []
    monkeypatch.setattr(nvml, "LOOK", "print('GPU-7')")
    assert nvml.gpu_uuids() == ["GPU-7"]


@pytest.mark.parametrize(("release", "libuv"), [("2.7.1", False), ("2.8.0", True), ("2.13.0+cpu", True)])
def test_the_socket_of_a_cell_is_taken_by_every_release(release, libuv, monkeypatch):
    """Breaks when no cell runs with torch before 2.8, whose libuv takes no socket that is open."""
    asked = {}
    monkeypatch.setattr(torch, "__version__", release)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *args, **options: asked.update(options))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **options: None)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    meeting.meet(0, 2, torch.device("cpu"), "gloo", Job("cell", port=1, listening=3))
    assert asked["use_libuv"] is libuv and asked["master_listen_fd"] == 3
