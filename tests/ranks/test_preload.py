"""What is changed in libraries before ranks fork."""

import pytest
import torch
from deepspeed import comm
from deepspeed.runtime.zero.partition_parameters import Init
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from faultline.ranks import preload
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
