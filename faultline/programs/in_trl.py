"""A program in a trainer of TRL: a tiny model of transformers, and rows that all trainers can train on."""

from typing import Any

from faultline.programs import loop
from faultline.programs.in_trainer import EVALUATED, configured
from faultline.programs.program import Program
from faultline.strategies import ROWS, Setup

COLUMNS = {"sft": "prompt completion", "dpo": "prompt chosen rejected"}
"""What a trainer's rows have; those of GRPO are prompts."""
TIMES = 8  # each row: an epoch is longer than any training


def trainer(text: str, arguments: dict[str, object], setup: Setup, world_size: int) -> Any:
    """The trainer of a program as JSON, for a rank or for one process."""
    import trl

    from tiny_models.kit import GRPO, letter_score, prompts, tokenizer, turns

    made = loop.taken(text, setup)
    name = made.trainer
    settings: dict[str, Any] = {"ref_model_sync_steps": 1} if name != "sft" else {}
    once = prompts() if name == "grpo" else turns(COLUMNS[name])
    rows = once.select([*range(len(once))] * TIMES)
    others: dict[str, Any] = {"train_dataset": rows, "processing_class": tokenizer()}
    others["eval_dataset"] = rows.select(range(EVALUATED * ROWS))
    if name == "grpo":
        settings |= GRPO
        others["reward_funcs"] = letter_score
    model = built(made, setup)
    args = configured(getattr(trl, f"{name.upper()}Config"), made, arguments | settings, setup)
    return getattr(trl, f"{name.upper()}Trainer")(model=model, args=args, **others)


def built(made: Program, setup: Setup) -> Any:
    """The model of a program, as if it had been loaded from a folder."""
    from tiny_models.kit import add_lora, qwen2, saved
    from tiny_models.qwen3_moe import qwen3_moe

    spec = made.spec
    tied = spec.tied == "head"
    whole = (
        qwen3_moe(spec.seed)
        if spec.block == "experts"
        else qwen2(spec.seed, num_hidden_layers=spec.layers, tie_word_embeddings=tied)
    )
    model = saved(whole, setup)
    first, block = model.model.embed_tokens, model.model.layers[0]
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    frozen = {"nothing": [], "first": first.parameters(), "biases": biases, "block": block.parameters()}
    for parameter in frozen[spec.frozen]:
        parameter.requires_grad_(False)
    return add_lora(model, lora_dropout=0.0) if made.training.adapter == "lora" else model
