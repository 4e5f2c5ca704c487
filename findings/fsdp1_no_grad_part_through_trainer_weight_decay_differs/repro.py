# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["tokenizers==0.23.3", "torch==2.13.0", "transformers==5.23.0"]
# ///
"""AdamW decays weights that took no part in a step, under ZeRO and FSDP1.
Run under fsdp1-full on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process.
Instead: no error, but first differs: step 1, in the optimizer's step, model.multi_modal_projector.mm_soft_emb_norm
(model.multi_modal_projector.mm_soft_emb_norm.weight), whose reference is zero or of another shape, on rank 0.
Records: https://github.com/huggingface/trl/issues/3207
"""

import argparse
import functools
import os
import signal
import socket
import sys
import traceback
from functools import partial
from importlib import metadata

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125, 125) if PARSER.parse_args().git_bisect else (0, 1, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
try:
    import torch
    import torch.distributed as dist
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from transformers import (
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        Gemma3ImageProcessor,
        Gemma3Processor,
        PreTrainedTokenizerFast,
    )
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"torch": "2.13.0", "transformers": "5.23.0"}
UNUSED = ("vision_tower", "multi_modal_projector")
IMAGE_SIZE = 16
TOKENS_PER_IMAGE = 4
IMAGE_TEXT = [
    {"text": "a red field", "colour": [200, 30, 30]},
    {"text": "the sky before rain", "colour": [120, 130, 150]},
    {"text": "one green leaf", "colour": [30, 160, 40]},
    {"text": "sand and more sand", "colour": [210, 190, 120]},
    {"text": "a wall in the dark", "colour": [20, 20, 30]},
    {"text": "the sea from far", "colour": [40, 80, 170]},
    {"text": "copper", "colour": [184, 115, 51]},
    {"text": "chalk", "colour": [240, 240, 235]},
]
ROWS_VARIABLE = "FAULTLINE_ROWS"  # makes the global batch larger, for eight ranks
ROWS = 8 if os.environ.get(ROWS_VARIABLE) == "8" else 4
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,?!\nABCD"
ROLES = ("user", "assistant", "system")
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<turn>", "<end>", "<boi>", "<image>", "<eoi>")
VOCABULARY = (*SPECIAL, *ROLES, *LETTERS)  # models have room for what a library adds
TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<turn>{{ message['role'] }}
{{ message['content'] }}<end>
{% endfor %}{% if add_generation_prompt %}<turn>assistant
{% endif %}"""
WORLD_SIZE = 2


def unused(name):
    return any(part in name for part in UNUSED)


def adamw(remedy, model):
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if remedy != "no_decay" or not unused(name)]
    others = [parameter for name, parameter in named if remedy == "no_decay" and unused(name)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    # An epsilon of this size keeps a step from being the sign of what rounding left.
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01, eps=1e-3, weight_decay=0.1)


def gemma3():
    """About 14k parameters, a quarter of them in the vision tower and projector."""
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                "vocab_size": 96,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "sliding_window": 64,
                "layer_types": ["sliding_attention"],
                "max_position_embeddings": 512,
                "query_pre_attn_scalar": 8,
                "initializer_range": 0.1,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "use_cache": False,
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": IMAGE_SIZE,
                "patch_size": 4,
                "vision_use_head": False,
            },
            mm_tokens_per_image=TOKENS_PER_IMAGE,
            boi_token_index=6,
            eoi_token_index=8,
            image_token_index=7,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.1,
        )
    )
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):
            parameter.data.normal_(std=0.1)
    return model


@functools.cache
def processor():
    """Turns text and images into the model's inputs, as Gemma3's own processor does."""
    images = Gemma3ImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, do_pan_and_scan=False)
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    backend.add_special_tokens(list(SPECIAL))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("user|assistant|system" + r"|.|\n"), "isolated")
    backend.decoder = decoders.ByteLevel()  # what is ASCII reads the same; some trainers take no other tokenizer
    words = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens={"boi_token": "<boi>", "image_token": "<image>", "eoi_token": "<eoi>"},
        model_input_names=["input_ids", "attention_mask"],
        chat_template=TEMPLATE,
        padding_side="left",
        model_max_length=512,
    )
    return Gemma3Processor(images, words, chat_template=words.chat_template, image_seq_length=TOKENS_PER_IMAGE)


def image_text_batch(step, rank, world_size):
    """Gemma3's inputs for this rank's rows, made by its processor, with labels and scale."""
    rows = range(ROWS)
    texts = [IMAGE_TEXT[(step * ROWS + row) % len(IMAGE_TEXT)] for row in rows]
    inputs = processor()(
        text=[("<boi>" if row in () else "") + texts[row]["text"] for row in rows],
        images=None,
        padding=True,
        padding_side="right",
        return_tensors="pt",
    )
    # Among these, the lines before and behind each image.
    special = torch.tensor([VOCABULARY.index(word) for word in ("<pad>", "<boi>", "<image>", "<eoi>", "\n")])
    labels = inputs["input_ids"].masked_fill(torch.isin(inputs["input_ids"], special), -100)
    share = ROWS // world_size
    mine = slice(rank * share, (rank + 1) * share)
    kept = {
        "input_ids": inputs["input_ids"][mine],
        "attention_mask": inputs["attention_mask"][mine],
        "token_type_ids": inputs["token_type_ids"][mine],
    }
    return {"inputs": kept, "labels": labels[mine], "scale": world_size / int((labels[:, 1:] != -100).sum())}


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
    model = gemma3()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(True)

    def batch(step, rank, world_size):
        return image_text_batch(step, rank, world_size)

    def loss(model, batch):
        logits = model(**batch["inputs"]).logits
        predicted, labels = logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
        total = torch.nn.functional.cross_entropy(predicted, labels, reduction="sum") * batch["scale"]
        return total

    make_optimizer = partial(adamw, "broken")
    wrapped = model
    if not in_one_process:
        names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
        wrapped = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({type(each) for each in model.modules() if type(each).__name__ in names}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        print(f"rank {rank}: {wrapped.sharding_strategy}, {sum(p.nbytes for p in wrapped.parameters())} bytes held")
    optimizer = make_optimizer(wrapped)
    trace = [weights(wrapped)]
    for step in range(3):
        value = loss(wrapped, batch(step, rank, world_size))
        print(f"{rank=}, {in_one_process=}, {step=}: loss {value.item():.4f}")
        value.backward()
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
