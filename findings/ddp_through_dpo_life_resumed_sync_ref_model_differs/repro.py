# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["accelerate==1.15.0", "datasets==5.2.0", "torch==2.13.0", "transformers==5.23.0", "trl==1.16.0"]
# ///
"""After resuming, a reference model that TRL's sync_ref_model synchronises is the first one again.
Run in one process (CPU, fp32): four steps of DPO, and the last two of them again from the checkpoint between.
Expected: both end with the same weights, as they do without sync_ref_model. Instead: no error, and others.
"""

import argparse
import os
import sys
import tempfile
import warnings
from importlib import metadata

PARSER = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Ends with 0 if REPRODUCED, else 1.")
PARSER.add_argument("--git-bisect", action="store_true", help="End with 1 if it shows, 0 if not, else 125.")
ENDS = (1, 0, 125) if PARSER.parse_args().git_bisect else (0, 1, 2)
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")  # first
try:
    import torch
    from datasets import Dataset, disable_progress_bars
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from transformers.utils import logging
    from trl import DPOConfig, DPOTrainer
except ImportError as error:
    PARSER.exit(ENDS[2], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\n")

PINS = {"accelerate": "1.15.0", "datasets": "5.2.0", "torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROWS = 16


class Reference(TrainerCallback):
    """Reads the reference model's weights as training begins, and after each step."""

    def __init__(self):
        self.seen = {}

    def read(self, state):
        self.seen[state.global_step] = weights(self.model)

    def on_train_begin(self, args, state, control, **kwargs):
        self.read(state)

    def on_step_end(self, args, state, control, **kwargs):
        self.read(state)


def weights(model):
    """A copy of all weights, as one row of numbers."""
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def words():
    """A tokenizer of letters."""
    vocabulary = {word: number for number, word in enumerate(("<pad>", "<eos>", "<unk>", *LETTERS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def pairs():
    """Prompts with an answer that is chosen and one that is rejected."""
    texts = [LETTERS[row : row + 4] for row in range(ROWS)]
    return Dataset.from_list([{"prompt": text, "chosen": text[::-1], "rejected": text} for text in texts])


def trained(model, tokenizer, output, sync, checkpoint=None):
    """The policy's weights at the end, and the reference's as training begins and after each step."""
    args = DPOConfig(
        output_dir=output,
        max_steps=4,
        save_strategy="no" if checkpoint else "steps",
        save_steps=2,
        per_device_train_batch_size=4,
        learning_rate=0.05,
        lr_scheduler_type="constant",
        optim="sgd",
        beta=0.5,
        max_grad_norm=0.0,
        sync_ref_model=sync,
        ref_model_sync_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=7,
    )
    trainer = DPOTrainer(model=model, args=args, train_dataset=pairs(), processing_class=tokenizer)
    reference = Reference()
    reference.model = trainer.ref_model
    trainer.add_callback(reference)
    trainer.train(resume_from_checkpoint=checkpoint)
    return weights(trainer.model), reference.seen


def apart(folder, path, tokenizer, sync):
    """How far the weights at the end are apart, of what training has moved; prints what the reference was."""
    output = os.path.join(folder, f"sync_ref_model-{sync}")
    straight, before = trained(path, tokenizer, output, sync)
    resumed, after = trained(path, tokenizer, output, sync, os.path.join(output, "checkpoint-2"))
    start = weights(Qwen2ForCausalLM.from_pretrained(path))
    print(f"sync_ref_model={sync}: the reference's distance from the first one")
    print(f"  after step 2, as the checkpoint is saved: {(before[2] - start).norm():.6f}")
    print(f"  as training resumes from it:              {(after[2] - start).norm():.6f}")
    off = ((resumed - straight).norm() / (straight - start).norm()).item()
    print(f"  the weights at the end are {off:.2%} off, of what training has moved")
    return off


def main():
    versions = {name: metadata.version(name).partition("+")[0] for name in PINS}
    print("python", sys.version.split()[0], versions, "as pinned" if versions == PINS else f"and NOT AS PINNED: {PINS}")
    torch.manual_seed(3)
    logging.disable_progress_bar()
    disable_progress_bars()
    warnings.simplefilter("ignore")
    sizes = {"vocab_size": len(LETTERS) + 3, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1, "pad_token_id": 0}
    model, tokenizer = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, eos_token_id=1)), words()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        control, off = (apart(folder, path, tokenizer, sync) for sync in (False, True))
    if control > 1e-4:
        print("NOT TRIED: it resumes otherwise without sync_ref_model as well")
        return ENDS[2]
    print("REPRODUCED: no error, and another training than without interruption" if off > 1e-3 else "NOT REPRODUCED")
    return ENDS[0 if off > 1e-3 else 1]


if __name__ == "__main__":
    sys.exit(main())
