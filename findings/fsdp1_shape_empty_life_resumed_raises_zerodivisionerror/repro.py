# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0"]
# ///
"""FSDP1 can't load an optimizer's state if a weight is empty."""

import os
import signal
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

WORLD_SIZE = 2
WORDS = "integer division or modulo by zero"


class WithAnEmptyWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.none = nn.Parameter(torch.empty(0, 4))

    def forward(self, x):
        return self.layer(x) + self.none.sum()


def made():
    torch.manual_seed(0)
    model = FullyShardedDataParallel(WithAnEmptyWeight(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer


def run(rank):
    model, optimizer = made()
    weights, state = get_state_dict(model, optimizer)
    print(f"rank {rank} has a state dict", flush=True)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    print(f"rank {rank} has loaded it", flush=True)


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    try:
        run(rank)
    except Exception as error:
        print(f"rank {rank}: {type(error).__name__}: {str(error).strip()[-200:]}", flush=True)
        seen[rank] = int(WORDS in str(error))
    os._exit(0)  # at once: a peer may wait for this rank


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen = mp.get_context("spawn").Array("i", WORLD_SIZE)
    mp.spawn(one_rank, (port, seen), WORLD_SIZE)
    print("REPRODUCED: the error above" if any(seen) else "NOT REPRODUCED")
    sys.exit(0 if any(seen) else 1)
