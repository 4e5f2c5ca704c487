"""What is changed in libraries before ranks fork."""

import pytest
import torch
from deepspeed import comm
from deepspeed.runtime.zero.partition_parameters import Init

from faultline.ranks import preload


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
