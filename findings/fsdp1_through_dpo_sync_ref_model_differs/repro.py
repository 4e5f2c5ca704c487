# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "datasets==5.2.0", "torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
# ///
"""Under FSDP1, a synchronised reference model goes on with its old weights.
Run under fsdp1-full on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process.
Instead: no error, but first differs: step 2, in the backward pass, lm_head (lm_head.weight), by 14 %, on rank 0.
Records: https://github.com/pytorch/pytorch/issues/117742, https://github.com/huggingface/trl/pull/1593
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
os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
try:
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState
    from torch.distributed.fsdp import FullyShardedDataParallel
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl.models.utils import prepare_deepspeed, prepare_fsdp
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"}
SHARE = 0.6  # of the policy in what the reference becomes
WORLD_SIZE = 2


def divergence(logits, other, batch):
    """Scaled sum of the KL divergence between what two models predict at each token, of logits [B, T, vocabulary]."""
    predicted, wanted = logits.float().log_softmax(-1), other.float().log_softmax(-1)
    terms = torch.nn.functional.kl_div(predicted, wanted, log_target=True, reduction="none")
    return (terms * batch["attention_mask"].unsqueeze(-1)).sum() * batch["scale"]


def next_token_loss(logits, batch):
    """Scaled sum of next-token losses for logits [B, T, vocabulary]."""
    predicted, labels = logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(predicted, labels, reduction="sum") * batch["scale"]


def near(prepared):
    """A loss that keeps a model near the second one in `prepared`, beside a loss `of_its_own`, or without one."""

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            wanted = prepared["second"](input_ids=batch["input_ids"]).logits
        apart = divergence(logits, wanted, batch)
        return next_token_loss(logits, batch) + apart

    return loss


def prepared_as_by_trl(accelerator, model):
    """The model as TRL's trainers prepare it: in shards if that is asked for, and in evaluation mode."""
    kind = accelerator.distributed_type.value
    if kind == "FSDP":
        return prepare_fsdp(model, accelerator)
    if kind == "DEEPSPEED":
        return prepare_deepspeed(model, accelerator)
    return accelerator.prepare_model(model, evaluation_mode=True)


def qwen2():
    """About 14k parameters."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    rest = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    settings = Qwen2Config(**{**sizes, **layers, **rest})
    return Qwen2ForCausalLM(settings)


def mix(reference, policy):
    for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
        old.data.mul_(1 - SHARE).add_(new.data, alpha=SHARE)


def synchronise(reference, policy):
    """What TRL does after a step, and what else mixes the weights of two models."""
    mix(reference, policy)


def text_batch(number, rank, world_size):
    """This rank's rows of one global batch, padded, as input_ids and labels [B, T]."""
    generator, widths = torch.Generator().manual_seed(number), range(20 + number, 40 + number, 5)
    rows = [torch.randint(12, 48, (width,), generator=generator).tolist() for width in widths]
    width, tokens = max(map(len, rows)), sum(len(row) - 1 for row in rows)
    share = rows[rank * len(rows) // world_size : (rank + 1) * len(rows) // world_size]
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in share])
    ids, mask = labels.masked_fill(labels < 0, 0), (labels >= 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "scale": world_size / tokens}


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


def weights(model):
    """Whole copies of all parameters, by name."""
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().float().cpu().clone()
            for name, p in model.named_parameters()
        }


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
    """The weights at the start and after each step, under fsdp1-full or in one process on the global batch."""
    world_size = 1 if in_one_process else WORLD_SIZE
    torch.manual_seed(0)
    prepared = {}

    def second(accelerator):
        prepared["second"] = prepared_as_by_trl(accelerator, qwen2())
        return prepared["second"]

    def before_step(model, step):
        if step:
            synchronise(prepared["second"], model)

    model = qwen2()
    loss = near(prepared)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    wrapped = model
    if not in_one_process:
        fsdp_on_cpu()
        accelerator = Accelerator(
            cpu=True,
            mixed_precision="no",
            fsdp_plugin=FullyShardedDataParallelPlugin(
                fsdp_version=1,
                sharding_strategy="FULL_SHARD",
                auto_wrap_policy="transformer_based_wrap",
                sync_module_states=False,
                use_orig_params=True,
            ),
        )
        wrapped, optimizer = accelerator.prepare(model, optimizer)
        print(f"rank {rank}: {wrapped.sharding_strategy}, {sum(p.nbytes for p in wrapped.parameters())} bytes held")
        second(accelerator)
    else:
        ranks = {name: os.environ.pop(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in os.environ}
        second(Accelerator(cpu=True))
        AcceleratorState._reset_state(True)  # the ranks begin again
        os.environ.update(ranks)
    trace = [weights(wrapped)]
    backward = torch.Tensor.backward if in_one_process else accelerator.backward
    for step in range(3):
        before_step(wrapped, step)
        value = loss(wrapped, text_batch(step, rank, world_size))
        print(f"{rank=}, {in_one_process=}, {step=}: loss {value.item():.4f}")
        backward(value)
        optimizer.step()
        optimizer.zero_grad()
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
