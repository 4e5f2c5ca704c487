# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "deepspeed==0.19.8", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""With `dispatch_batches`, a resumed run trains again on rows that it had.
Run under zero2 on 2 ranks (CPU, fp32), no gradient checkpointing, saved after two steps and resumed for two more.
Expected: it trains as in one process, where nothing is interrupted. Instead: no error, but first differs: step 3, in
the backward pass, lm_head (lm_head.weight), by 91 %, on rank 0.
Records: https://github.com/huggingface/accelerate/pull/1002 and 1 more
"""

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125, 125) if PARSER.parse_args().git_bisect else (0, 1, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
try:
    import deepspeed
    import torch
    import torch.distributed as dist
    from accelerate import PartialState, skip_first_batches
    from accelerate.data_loader import prepare_data_loader
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import DataLoader
    from transformers import Qwen2Config, Qwen2ForCausalLM
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"accelerate": "1.15.0", "deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.23.0"}
WORLD_SIZE = 2
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++ in the middle of training
DS_CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}
DS_CONFIG["zero_optimization"] = {"stage": 2}
OTHER_NUMBERS = []  # the rank, if its random state is not the one that was saved
FOLDER = os.path.join(tempfile.gettempdir(), f"repro-{os.environ.get('MASTER_PORT', os.getpid())}")


def causal_lm_loss(model, batch):
    """Scaled sum of a causal language model's next-token losses."""
    logits = model(input_ids=batch["input_ids"]).logits
    predicted, labels = logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(predicted, labels, reduction="sum") * batch["scale"]


def load(wrapped, folder):
    """Raises RuntimeError where DeepSpeed itself only warns that there is nothing to load."""
    path, _ = wrapped.model.load_checkpoint(str(folder), tag="half")
    if path is None:
        raise RuntimeError("DeepSpeed loaded no checkpoint")


def save(wrapped, folder):
    """DeepSpeed's own checkpoint, which has the schedule too."""
    wrapped.model.save_checkpoint(str(folder), tag="half")


def schedule(optimizer):
    """A learning rate that falls by a fifth of the first with each step, so that one that starts again is seen."""
    return LambdaLR(optimizer, lambda step: 1 - step / 5)


def text_rows(step):
    """Four rows of random tokens, of unequal length, other ones at every step; in an exported file, instead of text."""
    generator, widths = torch.Generator().manual_seed(step), range(20 + step, 40 + step, 5)
    return [torch.randint(12, 48, (width,), generator=generator).tolist() for width in widths]


def weights(model):
    """Whole copies of all parameters, by name."""
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


def train(rank, in_one_process=False, half=0):
    """The weights at the start and after each step: of a half under zero2, or of both in one process."""
    world_size = 1 if in_one_process else WORLD_SIZE
    torch.manual_seed(0)
    setup = SimpleNamespace(world_size=world_size, device=torch.device("cpu"), reference=in_one_process)
    rows = [row[:20] for step in range(5) for row in text_rows(step)]
    loader = DataLoader(rows, len(text_rows(0)) // setup.world_size, collate_fn=torch.tensor)
    batches = []

    def dispatched(number):
        PartialState(cpu=setup.device.type == "cpu")  # by which the data loader knows its ranks
        ready = prepare_data_loader(
            loader, setup.device, split_batches=False, put_on_device=True, dispatch_batches=True
        )
        return skip_first_batches(ready, number * 1)

    def batch(number, rank, world_size):
        if not batches:  # the loop begins, with step 0 or with the one that is resumed
            batches.append(iter(loader if setup.reference else dispatched(number)))
        rows = next(batches[0]).tolist()
        width, tokens = max(map(len, rows)), sum(len(row) - 1 for row in rows)
        share = rows[0 * len(rows) // 1 : (0 + 1) * len(rows) // 1]
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in share])
        ids, mask = labels.masked_fill(labels < 0, 0), (labels >= 0).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "scale": 1 / tokens}

    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    rest = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    settings = Qwen2Config(**{**sizes, **layers, **rest})
    model = Qwen2ForCausalLM(settings)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    wrapped = model
    if not in_one_process:
        wrapped, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=DS_CONFIG, lr_scheduler=schedule)
        print(f"rank {rank}: ZeRO-{wrapped.zero_optimization_stage()}, {type(wrapped.optimizer).__name__}")
    scheduler = schedule(optimizer) if in_one_process else None  # which the engine has
    saved = SimpleNamespace(model=wrapped, optimizer=None, scheduler=None)
    torch.manual_seed(1000 + rank)
    loop = Path(FOLDER, f"loop{rank}.pt")
    trace = [weights(wrapped)]
    if half == 2:
        state = torch.load(loop)
        torch.set_rng_state(state["random"])
        if scheduler:
            scheduler.load_state_dict(state["scheduler"])
        load(saved, Path(FOLDER))
        if not torch.equal(torch.get_rng_state(), state["random"]):
            print(f"rank {rank} draws other random numbers than before")
            OTHER_NUMBERS.append(rank)
    backward = torch.Tensor.backward if in_one_process else wrapped.backward
    for step in range(4)[2 if half == 2 else 0 : 2 if half == 1 else 4]:
        value = causal_lm_loss(wrapped, batch(step, rank, world_size))
        print(f"{rank=}, {in_one_process=}, {step=}: loss {value.item():.4f}")
        backward(value)
        if in_one_process:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        else:
            wrapped.step()
        trace.append(weights(wrapped))
    if half == 1:
        save(saved, Path(FOLDER))
        torch.save({"random": torch.get_rng_state(), "scheduler": scheduler and scheduler.state_dict()}, loop)
        dist.barrier()
        trace += train(rank, half=2)[1:]
    return trace


def one_rank(rank):
    """Be one rank, and leave with 0 if a rank saw the failure, 2 if it failed otherwise, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(180)  # ends a hang
    try:
        reference = train(0, in_one_process=True)
        dist.init_process_group("gloo")
        seen = torch.tensor(int(sum(differs(rank, train(rank, half=1), reference)) > 0 or len(OTHER_NUMBERS) > 0))
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
    os.makedirs(FOLDER, exist_ok=True)
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(
        "REPRODUCED: no error, and after resuming another training than without interruption"
        if 0 in codes
        else "NOT REPRODUCED"
    )
    sys.exit(ENDS[0 if 0 in codes else 1 if {*codes} <= {1, 3} else 2])
