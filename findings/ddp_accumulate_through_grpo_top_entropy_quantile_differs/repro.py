# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
# ///
"""With accumulation, GRPO's top_entropy_quantile is the quantile of each micro-batch.
Run under ddp on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process. Instead: no
error, and other weights than in one process.
Records: https://github.com/modelscope/ms-swift/pull/5270, https://github.com/huggingface/trl/pull/3833
"""

import argparse
import hashlib
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125, 125) if PARSER.parse_args().git_bisect else (0, 1, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")  # first
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
try:
    import torch
    import torch.distributed as dist
    from datasets import Dataset
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"}
# What every GRPO cell shares: two completions of each prompt, four tokens long.
GRPO = {"num_generations": 2, "max_completion_length": 4, "use_vllm": False}
PROMPTS = [
    {"prompt": "name a colour"},
    {"prompt": "count to three"},
    {"prompt": "say hello"},
    {"prompt": "what is a rank"},
    {"prompt": "spell bucket"},
    {"prompt": "who waits here"},
]
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<turn>", "<end>", "<boi>", "<image>", "<eoi>")
TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<turn>{{ message['role'] }}
{{ message['content'] }}<end>
{% endfor %}{% if add_generation_prompt %}<turn>assistant
{% endif %}"""
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,?!\nABCD"
ROLES = ("user", "assistant", "system")
VOCABULARY = (*SPECIAL, *ROLES, *LETTERS)  # models have room for what a library adds
WORLD_SIZE = 2
FOLDER = os.path.join(tempfile.gettempdir(), f"repro-{os.environ.get('MASTER_PORT', os.getpid())}")


def letter_score(completions, **_):
    """A reward that differs for any two completions, without a model."""
    return [sum((7 * ord(letter)) % 11 for letter in text) / 10 for text in completions]


def config(vocab_size=96, **changes):
    sizes = {"vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    rest = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    return Qwen2Config(**{**sizes, **layers, **rest, **changes})


def qwen2(seed=0, **changes):
    """About 14k parameters."""
    settings = config(**changes)
    return Qwen2ForCausalLM(settings)


def tokenizer():
    """One token for each character, role and special mark."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    backend.add_special_tokens(list(SPECIAL))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("user|assistant|system" + r"|.|\n"), "isolated")
    backend.decoder = decoders.ByteLevel()  # what is ASCII reads the same; some trainers take no other tokenizer
    return PreTrainedTokenizerFast(
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


def wait():
    """Until every rank is here."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _hash(*values):
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=4).digest(), "big")


@contextmanager
def scripted_sampling(rank):
    """Sample the same completions however rows are spread over ranks and whatever rounding does."""
    position = itertools.count(0)

    def draw(probabilities, num_samples, **kwargs):
        at, rows = next(position), len(probabilities)
        places = range(rank * rows, rank * rows + rows)
        letters = range(len(SPECIAL), len(VOCABULARY))
        tokens = [letters[_hash(place, at) % len(letters)] for place in places]
        return torch.tensor(tokens, device=probabilities.device).unsqueeze(1)

    with mock.patch("torch.multinomial", draw):
        yield position


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


def train(rank, in_one_process=False):
    world_size = 1 if in_one_process else WORLD_SIZE
    torch.manual_seed(0)
    arguments = {
        "output_dir": os.path.join(FOLDER, "output"),
        "per_device_train_batch_size": 4 // world_size,
        "max_steps": 3,
        "optim": "sgd",  # Adam would hide a gradient that is off by a factor
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "average_tokens_across_devices": True,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    if not in_one_process:
        arguments |= {"ddp_find_unused_parameters": False}
    setup = SimpleNamespace(rank=rank, world_size=world_size, folder=FOLDER)
    model = qwen2(455, num_hidden_layers=2, tie_word_embeddings=False)
    path = Path(setup.folder) / "model"
    if setup.rank == 0:
        model.save_pretrained(path)
        tokenizer().save_pretrained(path)
    wait()
    model = type(model).from_pretrained(path)
    rows = Dataset.from_list(PROMPTS)
    settings = {"ref_model_sync_steps": 1, "top_entropy_quantile": 0.5, "gradient_accumulation_steps": 2}
    args = GRPOConfig(**arguments, **settings, **GRPO)
    others = {"train_dataset": rows.select([*range(len(rows))] * 8), "processing_class": tokenizer()}
    others["reward_funcs"] = letter_score
    built = GRPOTrainer(model=model, args=args, **others)
    trace = []

    class Read(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            wrapped = built.model_wrapped
            if not in_one_process:
                print(f"rank {rank}: {type(wrapped).__name__}, find_unused_parameters={wrapped.find_unused_parameters}")
            trace.append(weights(built.model_wrapped))

        def on_step_end(self, args, state, control, **kwargs):
            trace.append(weights(built.model_wrapped))

    built.add_callback(Read())

    with scripted_sampling(rank):
        built.train()
    if in_one_process:
        return trace
    return sum(differs(rank, trace, torch.load(os.path.join(FOLDER, "reference.pt")))) > 0


def in_one_process(file):
    """The reference: the weights at the start and after each step in one process, on the global batch."""
    signal.alarm(180)  # ends a hang
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    torch.save(train(0, in_one_process=True), file)
    os._exit(0)


def one_rank(rank):
    """Be one rank, and leave with 0 if a rank saw the failure, 2 if it failed otherwise, else 1."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    signal.alarm(180)  # ends a hang
    try:
        dist.init_process_group("gloo")
        seen = torch.tensor(int(train(rank)))
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
    if not os.fork():
        in_one_process(os.path.join(FOLDER, "reference.pt"))
    os.wait()
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("REPRODUCED: no error, and other weights than in one process" if 0 in codes else "NOT REPRODUCED")
    sys.exit(ENDS[0 if 0 in codes else 1 if {*codes} <= {1, 3} else 2])
