"""A program in a trainer of TRL: a tiny model of transformers, and rows that all trainers can train on."""

from dataclasses import replace
from typing import Any

from faultline.strategies import ROWS, Setup
from faultline.trainers import TRL, from_trl
from lab.programs import loop
from lab.programs.in_trainer import EVALUATED, configured
from lab.programs.program import Program
from lab.programs.spec import Spec
from lab.programs.training import Training

GENERATED = 4  # tokens of a completion
ALIKE = 6  # letters of a prompt, which all rows have
TIMES = 8  # each row: an epoch is longer than any training


def trainer(text: str, arguments: dict[str, object], setup: Setup, world_size: int) -> Any:
    """The trainer of a program as JSON, for a rank or for one process."""
    from tiny_models.kit import GRPO, letter_score, prompts, saved, tokenizer, turns

    made = loop.program_for(text, setup)
    name = made.trainer
    settings = of_rows(name)
    once = prompts() if TRL[name].samples else turns(TRL[name].columns, letters(made.training))
    rows = once.select([*range(len(once))] * TIMES)
    others: dict[str, Any] = {"train_dataset": rows, "processing_class": tokenizer()}
    others["eval_dataset"] = rows.select(range(EVALUATED * ROWS))
    if name == "distillation":
        others["teacher_model"] = saved(bare(replace(made.spec, seed=made.seed + 1), False), setup, "teacher")
    elif TRL[name].samples:
        settings |= GRPO
        others["reward_funcs"] = letter_score
    model = built(made, setup)
    args = configured(from_trl(name, f"{word(name)}Config"), made, arguments | settings, setup)
    result = from_trl(name, f"{word(name)}Trainer")(model=model, args=args, **others)
    if made.training.between == "generation":
        result.add_callback(generating(result))
    return result


def generating(trainer: Any) -> Any:
    """TRL's callback that generates after each step, without chance."""
    from transformers import GenerationConfig
    from trl import LogCompletionsCallback

    config = GenerationConfig(max_new_tokens=GENERATED, do_sample=False, pad_token_id=0)
    return LogCompletionsCallback(trainer, config, num_prompts=ROWS, freq=1)


def letters(training: Training) -> int | None:
    """To how many letters each prompt is cut; None if none is."""
    return ALIKE if training.tokens == "alike" else None


def word(name: str) -> str:
    """How the names of a trainer's classes begin."""
    return TRL[name].word or name.upper()


def of_rows(name: str) -> dict[str, Any]:
    """The settings of a trainer with which ranks do what one process does, whatever rows each has."""
    settings: dict[str, Any] = {"ref_model_sync_steps": 1} if TRL[name].reference else {}
    return {**settings, **TRL[name].settings} | ({"max_completion_length": GENERATED} if name == "distillation" else {})


def built(made: Program, setup: Setup) -> Any:
    """The model of a program, as if it had been loaded from a folder."""
    from tiny_models.kit import add_lora, saved

    spec, rewards = made.spec, made.trainer == "reward"
    model = saved(bare(spec, rewards), setup)
    first, block = model.model.embed_tokens, model.model.layers[0]
    biases = [parameter for name, parameter in model.named_parameters() if name.endswith("bias")]
    frozen = {"nothing": [], "first": first.parameters(), "biases": biases, "block": block.parameters()}
    for parameter in frozen[spec.frozen]:
        parameter.requires_grad_(False)
    if made.training.adapter == "none":
        return model
    return add_lora(model, lora_dropout=0.0, task_type="SEQ_CLS" if rewards else "CAUSAL_LM")


def bare(spec: Spec, rewards: bool) -> Any:
    from transformers import Qwen2ForSequenceClassification

    from tiny_models import build
    from tiny_models.qwen2 import config, qwen2
    from tiny_models.qwen3_moe import qwen3_moe

    if rewards:
        sizes = config(num_hidden_layers=spec.layers, num_labels=1)
        return build(lambda: Qwen2ForSequenceClassification(sizes), spec.seed)
    if spec.block == "experts":
        model = qwen3_moe(spec.seed)
        # TRL adds the loss that balances experts, which each rank has of its own rows: their mean is another one.
        model.config.router_aux_loss_coef = 0.0
        return model
    return qwen2(spec.seed, num_hidden_layers=spec.layers, tie_word_embeddings=spec.tied == "head")
