# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["deepspeed==0.19.8", "torch==2.13.0"]
# ///
"""With round_robin_gradients, ZeRO-2's safe_get_full_grad raises where weights have different sizes."""

import os
import signal
import socket
import sys

os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first

import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from deepspeed.utils import safe_get_full_grad
from torch import nn

WORLD_SIZE = 2
WORDS = "must match the size of tensor"
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2, "round_robin_gradients": True},
}


def run(rank):
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), config=CONFIG
    )
    engine.backward(engine(torch.randn(2, 4)).pow(2).mean())
    for name, parameter in model.named_parameters():
        gradient = safe_get_full_grad(parameter)
        print(f"rank {rank}: {name} has a gradient of {tuple(gradient.shape)}", flush=True)


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    try:
        run(rank)
    except RuntimeError as error:
        print(f"rank {rank}: {error}", flush=True)
        seen[rank] = int(WORDS in str(error))
    os._exit(0)  # at once: a peer may wait for this rank


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen = mp.get_context("spawn").Array("i", WORLD_SIZE)
    mp.spawn(one_rank, (port, seen), WORLD_SIZE)
    print("REPRODUCED: the error above" if any(seen) else "NOT REPRODUCED")
    sys.exit(0 if any(seen) else 1)
