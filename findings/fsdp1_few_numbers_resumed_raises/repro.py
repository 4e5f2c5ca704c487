# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0"]
# ///
"""A checkpoint of FSDP1 can't be loaded if a unit has so few numbers that a rank holds none of them."""

import os
import signal
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

WORLD_SIZE = 2
WORDS = "Missing key in checkpoint state_dict: optimizer.param_groups"


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return x * self.scale


def made():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 4), FullyShardedDataParallel(Scaled(), use_orig_params=True, device_id=torch.device("cpu"))
    )
    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model(torch.randn(2, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def run(rank):
    folder = os.path.join(os.environ["REPRO_FOLDER"], "shards")
    checkpoint.save(made(), checkpoint_id=folder)
    print(f"rank {rank} has saved", flush=True)
    checkpoint.load(made(), checkpoint_id=folder)
    print(f"rank {rank} has loaded", flush=True)


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    try:
        run(rank)
    except BaseException as error:  # which CheckpointException is
        print(f"rank {rank}: {type(error).__name__}: {str(error).strip()[-200:]}", flush=True)
        seen[rank] = int(WORDS in str(error))
    os._exit(0)  # at once: a peer may wait for this rank


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen = mp.get_context("spawn").Array("i", WORLD_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REPRO_FOLDER"] = folder
        mp.spawn(one_rank, (port, seen), WORLD_SIZE)
    print("REPRODUCED: the error above" if any(seen) else "NOT REPRODUCED")
    sys.exit(0 if any(seen) else 1)
