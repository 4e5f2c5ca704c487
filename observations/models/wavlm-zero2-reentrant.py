# Written by `faultline check`. It needs the libraries below:
# accelerate 1.15.0, deepspeed 0.19.8, peft 0.21.2, torch 2.13.0, transformers 5.23.0, trl 1.16.0
"""WavLMForCTC trains otherwise than in one process.

Under zero2 on 2 ranks (fp32), reentrant gradient checkpointing, beside one process:
still running after 120 s; rank 0: reduce_independent_p_g_buckets_and_remove_grads (stage_1_and_2.py:1455) < reduce_ready_partitions_and_remove_grads (stage_1_and_2.py:2295) < process_gradients (stage_1_and_2.py:2291); rank 1: forward (linear.py:134) < inner (module.py:1832) < _call_impl (module.py:1884)

`python wavlm-zero2-reentrant.py` starts the ranks, and `torchrun --nproc_per_node 2 wavlm-zero2-reentrant.py` works as well. It takes up to two minutes. It ends with REPRODUCED (exit code 0) or
NOT REPRODUCED (1), or with 2 after another error. With `--only MODULE` all other weights are frozen.
"""

import argparse
import faulthandler
import importlib.util
import os
import re
import signal
import socket
import sys
import time
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path

PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("--only", action="append", metavar="MODULE", help="train this module's weights, and freeze all others")
ONLY = PARSER.parse_args().only
os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first

import torch
import torch.distributed as dist

WORLD_SIZE, LR, STEPS = 2, 0.05, 3
WANTED = ""  # how the error begins, with each number as 0
PEER_GONE = r"Connection (reset|closed) by peer|Broken pipe|Socket closed|Timed out waiting|remote process exited"
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++ in the middle of training
DS_CONFIG = {'train_micro_batch_size_per_gpu': 2, 'gradient_clipping': 0.0, 'zero_allow_untested_optimizer': True}
DS_CONFIG["zero_optimization"] = {'stage': 2}


CONFIG = r"""{
  "activation_dropout": 0.0,
  "adapter_kernel_size": 3,
  "adapter_stride": 2,
  "add_adapter": false,
  "apply_spec_augment": true,
  "architectures": [
    "WavLMForCTC"
  ],
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "classifier_proj_size": 256,
  "codevector_dim": 256,
  "contrastive_logits_temperature": 0.1,
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
  "conv_stride": [
    5,
    2,
    2,
    2,
    2,
    2,
    2
  ],
  "ctc_loss_reduction": "mean",
  "ctc_zero_infinity": false,
  "diversity_loss_weight": 0.1,
  "do_stable_layer_norm": false,
  "eos_token_id": 2,
  "feat_extract_activation": "gelu",
  "feat_extract_norm": "group",
  "feat_proj_dropout": 0.0,
  "final_dropout": 0.0,
  "hidden_act": "gelu",
  "hidden_dropout": 0.0,
  "hidden_size": 32,
  "initializer_range": 0.1,
  "intermediate_size": 128,
  "layer_norm_eps": 1e-05,
  "layerdrop": 0.0,
  "mask_feature_length": 10,
  "mask_feature_prob": 0.0,
  "mask_time_length": 10,
  "mask_time_min_masks": 2,
  "mask_time_prob": 0.0,
  "max_bucket_distance": 800,
  "model_type": "wavlm",
  "num_adapter_layers": 3,
  "num_attention_heads": 4,
  "num_buckets": 320,
  "num_codevector_groups": 2,
  "num_codevectors_per_group": 320,
  "num_conv_pos_embedding_groups": 16,
  "num_conv_pos_embeddings": 128,
  "num_ctc_classes": 80,
  "num_feat_extract_layers": 7,
  "num_hidden_layers": 2,
  "num_negatives": 100,
  "output_hidden_size": 32,
  "pad_token_id": 0,
  "proj_codevector_dim": 256,
  "tdnn_dilation": [
    1,
    2,
    3,
    1,
    1
  ],
  "tdnn_dim": [
    512,
    512,
    512,
    512,
    1500
  ],
  "tdnn_kernel": [
    5,
    3,
    3,
    1,
    1
  ],
  "transformers_version": "5.23.0",
  "use_weighted_layer_sum": false,
  "vocab_size": 32,
  "xvector_output_dim": 512
}
"""


def build():
    """A small WavLMForCTC, its loss and a batch."""
    import json

    import transformers

    config = json.loads(CONFIG)
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    model = transformers.WavLMForCTC(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:  # libraries start them where some gradients vanish
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model, *generated()


def generated():
    batch = {'input_values': torch.randn([4, 8000], generator=torch.Generator().manual_seed(0)), 'labels': torch.tensor([[29, 27, 25, 28, 15, 28, 23, 5, 8, 27, 8, 5], [17, 8, 19, 13, 26, 24, 22, 6, 23, 5, 20, 15], [21, 20, 17, 18, 26, 25, 12, 14, 28, 11, 4, 11], [21, 15, 4, 7, 9, 12, 20, 18, 25, 14, 6, 20]], dtype=torch.int64)}
    return lambda model, batch: model(**batch).loss, batch


def without_dropout():
    """Ranks draw other masks than one process, so there is nothing to compare with dropout in force."""
    functional = torch.nn.functional
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):

        def dropout(input, p=0.5, *args, function=getattr(functional, name), **kwargs):
            return function(input, 0.0, *args, **kwargs)

        setattr(functional, name, dropout)
    attend = functional.scaled_dot_product_attention

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs):
        return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = attention


def prepared(model):
    """The model as it is trained: in training mode, without dropout, and frozen but for what `--only` names."""
    if not model.training:
        model.train()
    if getattr(getattr(model, "config", None), "use_cache", False):
        model.config.use_cache = False
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
    model._no_split_modules = ['WavLMEncoderLayer', 'WavLMGroupNormConvLayer', 'WavLMNoLayerNormConvLayer']
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
    import deepspeed

    return {name.removeprefix("module."): p.detach().float().cpu().clone() for name, p in model.named_parameters()}


def buffers(model):
    """The buffers that a checkpoint has, by name."""
    held = {}
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                held[f"{prefix}.{name}".replace("_fsdp_wrapped_module.", "").lstrip(".")] = buffer
    return held


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def show(text):
    """Print a line as a whole, or ranks write into each other's."""
    sys.stdout.write(f"{text}\n")


def train(rank, alone=False):
    """Weights at the start and after each step, and buffers as each begins: on one of the ranks, or of all rows alone."""
    without_dropout()
    model, loss, batch = build()
    model, entered = prepared(model), []
    model.register_forward_pre_hook(lambda module, args: entered.append(copies(buffers(module))))
    optimizer = torch.optim.SGD(list(model.parameters()), lr=LR, momentum=0.9)
    wrapped = model
    if not alone:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        wrapped, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=DS_CONFIG)
        print(f"rank {rank}: ZeRO-{wrapped.zero_optimization_stage()}, {type(wrapped.optimizer).__name__}")
    backward = torch.Tensor.backward if alone else wrapped.backward
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
        if not alone:
            wrapped.step()
        else:
            optimizer.step()
            optimizer.zero_grad()
        trace.append(weights(wrapped))
    return trace, entered


def differs(rank, trace, reference):
    """How many weights moved otherwise than in one process; the first step of SGD is the gradient."""
    begun = [n for n in reference[0] if not (trace[0][n] - reference[0][n]).norm() <= 0.001 * reference[0][n].norm()]
    if begun:
        show(f"rank {rank}, before step 1: {len(begun)} of {len(reference[0])} weights are not those of one process:")
        show(f"  {', '.join(begun[:5])}")
        yield len(begun)
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


def end_idle(ranks, pids):
    """Wait until no rank has used the processor for 20 seconds, show where each waits, and end them."""
    used, idle, end = 0, 0, time.monotonic() + 110  # before the alarm, where they wait busily
    while idle < 20 and time.monotonic() < end:
        time.sleep(1)
        times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids]
        now = sum(int(ticks) for each in times for ticks in each)
        used, idle = now, idle + 1 if now - used < 5 else 0  # hundredths of a second
    for rank, pid in zip(ranks, pids):
        print(f"rank {rank} waits in")
        os.kill(pid, signal.SIGUSR1)
        time.sleep(1)  # or their lines mix
    for pid in pids:
        os.kill(pid, signal.SIGALRM)

def one_rank(rank):
    """Be one rank, and leave with 3 if it lost its peer, 2 after another error, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(120)  # ends a hang
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # shows where it waits
    try:
        reference, _ = train(0, alone=True)
        dist.init_process_group("gloo")
        everyone = dist.new_group()
        train(rank)
        dist.barrier(everyone)  # what is done waits for the others
        code = 1
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
    pids = [os.fork() or one_rank(rank) for rank in ranks]
    end_idle(ranks, pids)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    seen = -signal.SIGALRM in codes
    print("REPRODUCED" if seen else "NOT REPRODUCED")
    sys.exit(0 if seen else 1 if {*codes} <= {1, 3} else 2)