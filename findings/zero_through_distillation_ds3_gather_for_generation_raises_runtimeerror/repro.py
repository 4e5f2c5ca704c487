# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "deepspeed==0.19.8", "torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
# ///
"""TRL's distillation trainer that samples from ungathered weights under ZeRO-3 fails in its backward pass.
Run under zero3 on 2 ranks (CPU, fp32), no gradient checkpointing. Expected: it trains as in one process. Instead: an
error with the words of SIGNATURE.
Records: https://github.com/huggingface/open-r1/issues/692
"""

import argparse
import os
import re
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
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
try:
    import deepspeed
    import torch
    import torch.distributed as dist
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState
    from datasets import Dataset
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import DistillationConfig, DistillationTrainer
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"accelerate": "1.15.0", "deepspeed": "0.19.8", "torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"}
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
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled with g++ in the middle of training
DS_CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}
DS_CONFIG["zero_optimization"] = {"stage": 3, "stage3_param_persistence_threshold": 0}
PEER_GONE = r"Connection (reset|closed) by peer|Broken pipe|Socket closed|Timed out waiting|remote process exited"
SIGNATURE = r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+"
FOLDER = os.path.join(tempfile.gettempdir(), f"repro-{os.environ.get('MASTER_PORT', os.getpid())}")


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


def saved(model, setup, name="model"):
    """The model, loaded from a folder that it was just saved to: it and the tokenizer can be loaded by name again."""
    path = Path(setup.folder) / name
    if setup.rank == 0:
        model.save_pretrained(path)
        tokenizer().save_pretrained(path)
    wait()
    return type(model).from_pretrained(path)


def deepspeed_on_cpu():
    """Let accelerate use DeepSpeed without a GPU: by itself it trains with plain DDP then, without a warning."""
    original = AcceleratorState.__init__

    def init(self, *args, deepspeed_plugin=None, **kwargs):
        original(self, *args, deepspeed_plugin=deepspeed_plugin, **kwargs)
        if deepspeed_plugin and self.distributed_type == DistributedType.MULTI_CPU:
            plugin = next(iter(deepspeed_plugin.values())) if isinstance(deepspeed_plugin, dict) else deepspeed_plugin
            plugin.set_mixed_precision(self._mixed_precision)
            plugin.select(_from_accelerator_state=True)
            state = {"device": torch.device("cpu"), "distributed_type": DistributedType.DEEPSPEED}
            PartialState._shared_state.update(state)
            AcceleratorState._shared_state.update(state, deepspeed_plugins=deepspeed_plugin, _mixed_precision="no")

    AcceleratorState.__init__ = init


def train(rank):
    torch.manual_seed(0)
    deepspeed_on_cpu()
    arguments = {
        "output_dir": os.path.join(FOLDER, "output"),
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "deepspeed": DS_CONFIG,
        "max_grad_norm": 0.0,
    }
    setup = SimpleNamespace(rank=rank, world_size=WORLD_SIZE, folder=FOLDER)
    model = qwen2(232, num_hidden_layers=2, tie_word_embeddings=False)
    model = saved(model, setup)
    rows = Dataset.from_list(PROMPTS)
    settings = {"max_completion_length": 4, "ds3_gather_for_generation": False}
    args = DistillationConfig(**arguments, **settings)
    others = {"train_dataset": rows.select([*range(len(rows))] * 8), "processing_class": tokenizer()}
    others["teacher_model"] = saved(qwen2(233, num_hidden_layers=2, tie_word_embeddings=False), setup, "teacher")
    built = DistillationTrainer(model=model, args=args, **others)

    class Read(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            wrapped = built.model_wrapped
            print(f"rank {rank}: ZeRO-{wrapped.zero_optimization_stage()}, {type(wrapped.optimizer).__name__}")

    built.add_callback(Read())
    built.train()


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
    os.makedirs(FOLDER, exist_ok=True)
    ranks = [int(os.environ["RANK"])] if "RANK" in os.environ else range(WORLD_SIZE)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [os.fork() or one_rank(r) for r in ranks]]
    shutil.rmtree(FOLDER, ignore_errors=True)
    print("REPRODUCED: the error above" if 0 in codes else "only lost its peer" if codes == [3] else "NOT REPRODUCED")
    sys.exit(ENDS[0 if 0 in codes or codes == [3] else 1 if {*codes} <= {1, 3} else 2])
