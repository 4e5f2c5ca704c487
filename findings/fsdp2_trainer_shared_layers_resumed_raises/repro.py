# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""A Trainer's checkpoint under FSDP2 can't be resumed if layers share weights."""

import os
import signal
import socket
import sys
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import DistributedType
from accelerate.state import AcceleratorState, PartialState
from torch import nn
from transformers import Trainer, TrainingArguments

WORLD_SIZE = 2
WORDS = "blocks.1.weight"


class Model(nn.Module):
    _no_split_modules = ("Linear",)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(8, 8)] * 2)

    def forward(self, x):
        hidden = x
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return {"loss": hidden.pow(2).mean()}


def fsdp_on_cpu():
    """Let accelerate use FSDP without a GPU: by itself it trains with plain DDP then, without a warning."""
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin and self.distributed_type == DistributedType.MULTI_CPU:
            state = {"device": torch.device("cpu"), "distributed_type": DistributedType.FSDP}
            PartialState._shared_state.update(state)
            AcceleratorState._shared_state.update(state, fsdp_plugin=fsdp_plugin)

    AcceleratorState.__init__ = init


def train(steps, resumed):
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ["REPRO_FOLDER"], "run"),
        per_device_train_batch_size=2,
        max_steps=steps,
        save_steps=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        fsdp="full_shard auto_wrap",
        fsdp_config={"version": 2, "sync_module_states": False, "reshard_after_forward": True},
    )
    rows = [{"x": torch.full((8,), float(number))} for number in range(32)]
    Trainer(model=Model(), args=arguments, train_dataset=rows).train(resume_from_checkpoint=resumed)


def one_rank(rank, port, seen):
    """Be one rank, and say whether it met what is to be shown."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), FSDP_VERSION="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    signal.alarm(180)  # ends a hang
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    fsdp_on_cpu()
    train(2, resumed=False)
    print(f"rank {rank} has trained and saved", flush=True)
    try:
        train(4, resumed=True)
    except KeyError as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
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
