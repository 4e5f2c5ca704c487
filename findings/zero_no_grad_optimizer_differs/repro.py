# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["deepspeed==0.19.8", "torch==2.13.0"]
# ///
"""ZeRO decays weights that have no gradient.
Run under zero3 on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process. Instead: no
error, and other weights than in one process.
Records: https://github.com/pytorch/pytorch/issues/28294 and 1 more
"""

import argparse
import os
import signal
import socket
import sys
import traceback
from importlib import metadata

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125, 125) if PARSER.parse_args().git_bisect else (0, 1, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
try:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"deepspeed": "0.19.8", "torch": "2.13.0"}
WORLD_SIZE = 2
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++ in the middle of training
DS_CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}
DS_CONFIG["zero_optimization"] = {"stage": 3, "stage3_param_persistence_threshold": 0}


def weights(model):
    """Whole copies of all parameters, by name."""
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name.removeprefix("module."): p.detach().float().cpu().clone() for name, p in model.named_parameters()}


def differs(rank, trace, reference):
    """How many weights moved otherwise than in one process, step by step, by relative errors; rounding makes 1e-5."""
    for step in range(1, len(reference)):
        ways = {name: reference[step][name] - start for name, start in reference[0].items()}
        floor = 0.001 * max(way.norm() for way in ways.values())  # what moves less is held against this
        off = {n: (trace[step][n] - trace[0][n] - way).norm() / max(way.norm(), floor) for n, way in ways.items()}
        wrong = [f"{n} by {error:.1%}" for n, error in off.items() if not error <= 0.001]  # or is no number
        print(", ".join((f"rank {rank}, step {step}: {len(wrong)} of {len(off)} parameters are off", *wrong[:2])))
        yield len(wrong)


def train(rank, in_one_process=False):
    """The weights at the start and after each step, under zero3 or in one process on the global batch."""
    world_size = 1 if in_one_process else WORLD_SIZE
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
            hidden = hidden.detach()
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
        return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    optimizer = optimizer(model)
    wrapped = model
    if not in_one_process:
        wrapped, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=DS_CONFIG)
        print(f"rank {rank}: ZeRO-{wrapped.zero_optimization_stage()}, {type(wrapped.optimizer).__name__}")
    trace = [weights(wrapped)]
    backward = torch.Tensor.backward if in_one_process else wrapped.backward
    for step in range(3):
        value = loss(wrapped, batch(step, rank, world_size))
        print(f"{rank=}, {in_one_process=}, {step=}: loss {value.item():.4f}")
        backward(value)
        if in_one_process:
            optimizer.step()
            optimizer.zero_grad()
        else:
            wrapped.step()
        trace.append(weights(wrapped))
    return trace


def one_rank(rank):
    """Be one rank, and leave with 0 if a rank saw the failure, 2 if it failed otherwise, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(180)  # ends a hang
    try:
        reference = train(0, in_one_process=True)
        dist.init_process_group("gloo")
        seen = torch.tensor(int(sum(differs(rank, train(rank), reference)) > 0))
        dist.all_reduce(seen, dist.ReduceOp.MAX)  # one rank that sees it is enough
        os._exit(1 - seen.item())  # at once: gloo's destructor can hang while a peer closes
    except Exception:
        traceback.print_exc()
        os._exit(2)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    versions = {name: metadata.version(name).partition("+")[0] for name in PINS}
    print("python", sys.version.split()[0], versions, "as pinned" if versions == PINS else f"and NOT AS PINNED: {PINS}")
    if "RANK" not in os.environ:  # or torchrun has started it
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    print("REPRODUCED: no error, and other weights than in one process" if 0 in codes else "NOT REPRODUCED")
    sys.exit(ENDS[0 if 0 in codes else 1 if {*codes} <= {1, 3} else 2])
