# Written by `faultline check`. It needs the libraries below:
# accelerate 1.15.0, deepspeed 0.19.8, peft 0.21.2, torch 2.13.0, transformers 5.23.0, trl 1.16.0
"""HubertForCTC trains otherwise than in one process.

Under fsdp1-full on 2 ranks (fp32), reentrant gradient checkpointing, beside one process:
RuntimeError: weight should have at least three dimensions

`python hubert-fsdp1-full-reentrant.py` starts the ranks, and `torchrun --nproc_per_node 2 hubert-fsdp1-full-reentrant.py` works as well. It ends with REPRODUCED (exit code 0) or
NOT REPRODUCED (1), or with 2 after another error. With `--only MODULE` all other weights are frozen.
"""

import argparse
import importlib.util
import os
import re
import signal
import socket
import sys
import traceback
from contextlib import nullcontext
from functools import partial

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--only", action="append", metavar="MODULE", help="train this module's weights, and freeze all others")
ONLY = PARSER.parse_args().only
os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first

import torch
import torch.distributed as dist

WORLD_SIZE, LR, STEPS = 2, 0.05, 3
WANTED = "RuntimeError: weight should have at least three dimensions"  # how the error begins, with each number as 0
PEER_GONE = r"Connection (reset|closed) by peer|Broken pipe|Socket closed|Timed out waiting|remote process exited"

CONFIG = r"""{
  "activation_dropout": 0.0,
  "apply_spec_augment": true,
  "architectures": [
    "HubertForCTC"
  ],
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "classifier_proj_size": 256,
  "conv_bias": false,
  "conv_dim": [
    64,
    64,
    64,
    64,
    64,
    64,
    64
  ],
  "conv_kernel": [
    10,
    3,
    3,
    3,
    3,
    2,
    2
  ],
  "conv_pos_batch_norm": false,
  "conv_stride": [
    5,
    2,
    2,
    2,
    2,
    2,
    2
  ],
  "ctc_loss_reduction": "sum",
  "ctc_zero_infinity": false,
  "do_stable_layer_norm": false,
  "eos_token_id": 2,
  "feat_extract_activation": "gelu",
  "feat_extract_norm": "group",
  "feat_proj_dropout": 0.0,
  "feat_proj_layer_norm": true,
  "final_dropout": 0.0,
  "hidden_act": "gelu",
  "hidden_dropout": 0.0,
  "hidden_size": 32,
  "initializer_range": 0.1,
  "intermediate_size": 128,
  "layer_norm_eps": 1e-05,
  "layerdrop": 0.0,
  "mask_feature_length": 10,
  "mask_feature_min_masks": 0,
  "mask_feature_prob": 0.0,
  "mask_time_length": 10,
  "mask_time_min_masks": 2,
  "mask_time_prob": 0.0,
  "model_type": "hubert",
  "num_attention_heads": 4,
  "num_conv_pos_embedding_groups": 16,
  "num_conv_pos_embeddings": 128,
  "num_feat_extract_layers": 7,
  "num_hidden_layers": 2,
  "pad_token_id": 0,
  "transformers_version": "5.23.0",
  "use_weighted_layer_sum": false,
  "vocab_size": 32
}
"""


def build():
    """A small HubertForCTC, its loss and a batch."""
    import json

    import transformers

    config = json.loads(CONFIG)
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    model = transformers.HubertForCTC(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:  # libraries start them where some gradients vanish
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model, *generated()


def generated():
    batch = {'input_values': torch.randn([4, 8000], generator=torch.Generator().manual_seed(0)), 'labels': torch.tensor([[29, 27, 25, 28, 15, 28, 23, 5, 8, 27, 8, 5], [17, 8, 19, 13, 26, 24, 22, 6, 23, 5, 20, 15], [21, 20, 17, 18, 26, 25, 12, 14, 28, 11, 4, 11], [21, 15, 4, 7, 9, 12, 20, 18, 25, 14, 6, 20]], dtype=torch.int64)}
    return lambda model, batch: model(**batch).loss, batch


def prepared(model):
    """The model as it is trained: in training mode, without dropout, and frozen but for what `--only` names."""
    if not model.training:
        model.train()
    if getattr(getattr(model, "config", None), "use_cache", False):
        model.config.use_cache = False
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # ranks draw other masks than one process
    model._no_split_modules = ['HubertEncoderLayer', 'ParametrizedConv1d']
    for name, parameter in model.named_parameters() if ONLY else ():
        parameter.requires_grad_(parameter.requires_grad and f"{name}.".startswith(tuple(f"{only}." for only in ONLY)))
    return model


def rows(batch, step, rank):
    """A rank's rows of a step's batch."""
    if callable(batch):
        return batch(step, rank, WORLD_SIZE)
    if isinstance(batch, torch.Tensor):
        return batch.chunk(WORLD_SIZE)[rank] if batch.ndim else batch
    if isinstance(batch, (list, tuple)):
        return type(batch)(rows(each, step, rank) for each in batch)
    return {key: rows(each, step, rank) for key, each in batch.items()} if hasattr(batch, "items") else batch


def weights(model):
    """Whole copies of all parameters, by name."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return {
            name.replace("_fsdp_wrapped_module.", ""): p.detach().float().cpu().clone()
            for name, p in model.named_parameters()
        }


def buffers(model):
    """The buffers that a checkpoint has, by name."""
    held = {}
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                held[f"{prefix}.{name}".replace("_fsdp_wrapped_module.", "")] = buffer
    return held


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def show(text):
    """Print a line as a whole, or ranks write into each other's."""
    sys.stdout.write(f"{text}\n")


def train(rank, alone=False):
    """Weights at the start and after each step, and buffers as each begins: on one of the ranks, or of all rows alone."""
    model, loss, batch = build()
    model, entered = prepared(model), []
    model.register_forward_pre_hook(lambda module, args: entered.append(copies(buffers(module))))
    optimizer = torch.optim.SGD(list(model.parameters()), lr=LR, momentum=0.9)
    wrapped = model
    if not alone:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
        wrapped = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({type(each) for each in model.modules() if type(each).__name__ in names}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        print(f"rank {rank}: {wrapped.sharding_strategy}, {sum(p.nbytes for p in wrapped.parameters())} bytes held")
        optimizer = torch.optim.SGD(list(wrapped.parameters()), lr=LR, momentum=0.9)
    backward = torch.Tensor.backward
    trace, shares = [weights(wrapped)], range(WORLD_SIZE) if alone else [rank]
    for step in range(STEPS):
        before, left = copies(buffers(model)), []
        for share in shares:
            with nullcontext():
                value = loss(wrapped, rows(batch, step, share))
                value = getattr(value, "loss", value)
            if not value.requires_grad:  # these rows reach nothing that is trained
                value = value + torch.zeros((), requires_grad=True)
            show(f"{rank=}, {alone=}, {step=}, rows of rank {share}: loss {value.item():.4f}")
            backward(value / len(shares))
            if alone:  # each rank's rows begin with the same state, and rank 0's leave the next
                left.append(copies(buffers(model)))
                with torch.no_grad():
                    for name, buffer in buffers(model).items():
                        buffer.copy_(left[0][name] if share == WORLD_SIZE - 1 else before[name])
        optimizer.step()
        optimizer.zero_grad()
        trace.append(weights(wrapped))
    return trace, entered


def differs(rank, trace, reference):
    """How many weights moved otherwise than in one process; the first step of SGD is the gradient."""
    for step in range(1, STEPS + 1):
        names = {n: (reference[0][n] - reference[step][n]) / LR for n in reference[0]}
        floor = 0.001 * max(way.norm() for way in names.values())  # what moves less is held against this
        off = {n: ((trace[0][n] - trace[step][n]) / LR - way).norm() / max(way.norm(), floor) for n, way in names.items()}
        wrong = sorted((n for n, error in off.items() if not error <= 0.001), key=lambda n: -off[n])
        show(f"rank {rank}, step {step}: {len(wrong)} of {len(off)} parameters are off")
        for n in wrong[:5]:
            here = ((trace[0][n] - trace[step][n]) / LR).norm()
            what = "gradient" if step == 1 else "movement"
            show(f"  rank {rank}, {what} of {n}: {names[n].norm():.4g} in one process, {here:.4g} here, {off[n]:.0%} off")
        yield len(wrong)


def apart(rank, entered):
    """How many buffers differ between the ranks as a forward pass begins."""
    everyone = [None] * WORLD_SIZE
    dist.all_gather_object(everyone, entered)
    for number, each in enumerate(zip(*everyone)):
        for name in each[0]:
            if any(not torch.equal(each[0][name], other[name]) for other in each):
                norms = ", ".join(f"{other[name].float().norm():.4g} on rank {r}" for r, other in enumerate(each))
                show(f"  rank {rank}, forward pass {number + 1}, buffer {name}: {norms}")
                yield name


def one_rank(rank):
    """Be one rank, and leave with 0 if it saw the difference, 3 if it lost its peer, 2 after another error, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(600)  # ends a hang
    try:
        reference, _ = train(0, alone=True)
        dist.init_process_group("gloo")
        trace, entered = train(rank)
        code = 0 if not WANTED and sum(differs(rank, trace, reference)) + len([*apart(rank, entered)]) else 1
    except Exception as error:
        traceback.print_exc()
        text = re.sub(r"\d+", "0", f"{type(error).__name__}: {error}")
        code = 0 if WANTED and text.startswith(WANTED) else 3 if re.search(PEER_GONE, text) else 2
    sys.stdout.flush()
    os._exit(code)  # at once: gloo's destructor can hang while a peer closes


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    if "RANK" not in os.environ:  # or torchrun has started it
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    print("REPRODUCED" if 0 in codes else "NOT REPRODUCED")
    sys.exit(0 if 0 in codes else 1 if {*codes} <= {1, 3} else 2)