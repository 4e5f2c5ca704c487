# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "deepspeed==0.19.8", "torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
# ///
"""With ZeRO-2's compute_grad_norm: false, TRL can't prepare a reference model, as DPOTrainer does."""

import os
import socket
import sys
from types import SimpleNamespace

os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", GLOO_SOCKET_IFNAME="lo")  # first
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

import deepspeed
import torch.distributed as dist
from accelerate import DeepSpeedPlugin
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.models.utils import prepare_deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled first, which takes a minute
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "compute_grad_norm": False}}
WORDS = "compute_grad_norm=false is supported only with ZeRO Stage 1 or 2"


def model():
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2))


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    dist.init_process_group("gloo")
    # All that is read of an accelerator; a real one takes no DeepSpeed without a GPU.
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=CONFIG)))
    try:
        prepare_deepspeed(model(), accelerator)
    except ValueError as error:  # which pydantic's ValidationError is
        print(f"{type(error).__name__}: {error}")
        seen = WORDS in str(error)
    else:
        seen = False
    print("REPRODUCED: the error above" if seen else "NOT REPRODUCED")
    sys.exit(0 if seen else 1)
