# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["deepspeed==0.19.8", "torch==2.13.0"]
# ///
"""With round_robin_gradients, ZeRO-2's safe_get_full_grad gives each weight the gradient of another one."""

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
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 2, "round_robin_gradients": True},
}


def made():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(4)])


def run(rank):
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++
    torch.manual_seed(rank)
    rows = torch.randn(2, 4)
    alone = made()
    alone(rows).pow(2).mean().backward()
    for parameter in alone.parameters():  # what each gradient must be: the mean over the ranks
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD_SIZE
    model = made()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), config=CONFIG
    )
    engine.backward(engine(rows).pow(2).mean())
    given = {name: safe_get_full_grad(parameter) for name, parameter in model.named_parameters()}
    wrong = 0
    for name, gradient in given.items():
        fits = [
            other
            for other, parameter in alone.named_parameters()
            if torch.allclose(gradient, parameter.grad, atol=1e-6)
        ]
        print(f"rank {rank}: {name} has the gradient of {', '.join(fits) or 'none'}", flush=True)
        wrong += fits != [name]
    return wrong


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    seen[rank] = run(rank)
    os._exit(0)  # at once: a peer may wait for this rank


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    seen = mp.get_context("spawn").Array("i", WORLD_SIZE)
    mp.spawn(one_rank, (port, seen), WORLD_SIZE)
    print("REPRODUCED: gradients of other weights" if any(seen) else "NOT REPRODUCED")
    sys.exit(0 if any(seen) else 1)
