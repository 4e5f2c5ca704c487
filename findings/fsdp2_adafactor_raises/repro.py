# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0"]
# ///
"""torch's Adafactor can't step under FSDP2.
Run under fsdp2 on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process. Instead: an
error with the words of SIGNATURE.
Records: https://github.com/pytorch/pytorch/issues/109581, https://github.com/pytorch/pytorch/pull/164729
"""

import argparse
import os
import re
import signal
import socket
import sys
import traceback
from importlib import metadata

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125, 125) if PARSER.parse_args().git_bisect else (0, 1, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"torch": "2.13.0"}
WORLD_SIZE = 2
PEER_GONE = r"Connection (reset|closed) by peer|Broken pipe|Socket closed|Timed out waiting|remote process exited"
SIGNATURE = r"aten\.pow_\.Scalar: in\-place operations that require placement"


def train(rank):
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.tanh(self.layer(x)) + x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 8)
            self.blocks = nn.ModuleList([Block() for _ in range(2)])
            self.head = nn.Linear(8, 16)

        def forward(self, x, tokens):
            hidden = self.first(x)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(hidden)

    model = Model()

    def batch(number, rank, world_size):
        """This rank's rows of one global batch."""
        drawn = torch.Generator().manual_seed(number)
        whole = {
            "x": torch.randn(4, 5, generator=drawn),
            "tokens": torch.randint(0, 16, (4, 3), generator=drawn),
            "y": torch.randn(4, 16, generator=drawn),
        }
        rows = {name: tensor.chunk(world_size)[rank] for name, tensor in whole.items()}
        return {**rows, "number": number}

    def loss(wrapped, batch):
        output = wrapped(batch["x"], batch["tokens"])
        total = (output - batch["y"]).pow(2).mean()
        return total

    def optimizer(model):
        return torch.optim.Adafactor(model.parameters(), lr=0.01)

    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    for module in [*(each for each in reversed([*model.modules()]) if type(each).__name__ in names), model]:
        fully_shard(module, mesh=mesh)
    wrapped = model  # which is sharded in place
    print(f"rank {rank}: {type(wrapped).__name__}, {sum(p.to_local().nbytes for p in wrapped.parameters())} B")
    optimizer = optimizer(wrapped)
    for step in range(3):
        value = loss(wrapped, batch(step, rank, WORLD_SIZE))
        print(f"{rank=}, {step=}: loss {value.item():.4f}")
        value.backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank(rank):
    """Be one rank, and leave with 0 if it saw the failure, 3 if it lost its peer, 2 if it failed otherwise, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(180)  # ends a hang
    code = 1
    try:
        dist.init_process_group("gloo")
        train(rank)
    except Exception as error:
        traceback.print_exc()
        text = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        code = 0 if re.search(SIGNATURE, f"{type(error).__name__}: {text}") else 3 if re.search(PEER_GONE, text) else 2
    os._exit(code)  # at once: gloo's destructor can hang while a peer closes


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    versions = {name: metadata.version(name).partition("+")[0] for name in PINS}
    print("python", sys.version.split()[0], versions, "as pinned" if versions == PINS else f"and NOT AS PINNED: {PINS}")
    if "RANK" not in os.environ:  # or torchrun has started it
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    print("REPRODUCED: the error above" if 0 in codes else "only lost its peer" if codes == [3] else "NOT REPRODUCED")
    sys.exit(ENDS[0 if 0 in codes or codes == [3] else 1 if {*codes} <= {1, 3} else 2])
