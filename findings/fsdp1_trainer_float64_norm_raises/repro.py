# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0"]
# ///
"""FSDP1 trains weights in fp64, and can't compute the norm of their gradients, which transformers' Trainer logs."""

import os
import signal
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

WORLD_SIZE = 2
WORDS = "should be convertible without narrowing"


def run(rank):
    torch.manual_seed(0)
    model = FullyShardedDataParallel(nn.Linear(4, 4).double(), device_id=torch.device("cpu"), use_orig_params=True)
    model(torch.randn(2, 4, dtype=torch.float64)).pow(2).mean().backward()
    print(f"rank {rank} has gradients in {next(model.parameters()).dtype}", flush=True)
    model.clip_grad_norm_(1.0)


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    try:
        run(rank)
    except Exception as error:
        print(f"rank {rank}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        seen[rank] = int(WORDS in str(error))
    os._exit(0)  # at once: a peer may wait for this rank


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen = mp.get_context("spawn").Array("i", WORLD_SIZE)
    mp.spawn(one_rank, (port, seen), WORLD_SIZE)
    print("REPRODUCED: the error above" if any(seen) else "NOT REPRODUCED")
    sys.exit(0 if any(seen) else 1)
