"""GRPO with a LoRA adapter and gradient checkpointing cannot run backward."""

from faultline.base.errors import CheckFailed
from faultline.catalogue import Failure, Variant, changes, detects, helps, variants

FAILURE = Failure(
    title="Behind frozen embeddings, reentrant checkpointing gives a loss without a graph",
    first_seen="TRL's GRPO trainer with a LoRA adapter",
    since="trl 0.15.2",
    until="trl 0.20.0, whose trainers enable input gradients, GRPO since 0.16.0; the mechanism is torch's and stays",
    upstream="pytorch/pytorch",
    errors={
        "no-grad-fn": r"element 0 of (?:tensors|variables) does not require grad",
        # DeepSpeed's engine asks first whether the loss has a graph, in words of its own.
        "not-a-loss": r"loss must be a scalar tensor",
        "mixed-dtypes": r"mat1 and mat2 must have the same dtype",
        "check": r"the loss carries no graph|no parameter is trainable",
        # Of older releases: frozen parameters under ZeRO-3, and a policy without a path.
        "recomputed-empty": r"Recomputed values for the following tensors have different metadata",
        "no-path": r"Incorrect path_or_model_id",
    },
    # find_unused_parameters with reentrant checkpointing, whatever the model
    also_raises=(
        "halved-adapter",
        "row-parallel-adapter",
        "marked-ready-twice",
        "recomputed-empty",
        "no-path",
        "lazily-initialized",
    ),
    variants=(
        *variants("broken enable_input_require_grads", trainer="grpo"),
        Variant("broken", trainer="sft"),
    ),
    claims={
        "https://github.com/huggingface/trl/issues/3150": (
            helps(
                "call `model.enable_input_require_grads()` before `get_peft_model`", remedy="enable_input_require_grads"
            ),
            helps("`gradient_checkpointing=False`", checkpointing="off"),
            helps('`gradient_checkpointing_kwargs={"use_reentrant": False}`', checkpointing="non-reentrant"),
            detects("check the trainable parameters before training", remedy="check_trainable_parameters"),
            detects("check after one forward pass that the loss carries a graph", remedy="check_graph"),
            changes("bf16 needs special care for gradients", precision="bf16"),
            helps("a newer TRL (1.16.0)", "*-broken/*/reentrant", stack="today"),
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism alone: a frozen base with LoRA, and each layer checkpointed by hand."""
    from tiny_models.kit import Scenario, add_lora, causal_lm_loss, checkpoint_layers, qwen2, text_batch

    base = qwen2()
    if remedy == "enable_input_require_grads":
        base.enable_input_require_grads()

    checks = {
        "check_trainable_parameters": trainable_parameters,
        "check_graph": graph_after_one_forward(causal_lm_loss),
    }
    return Scenario(add_lora(base), causal_lm_loss, text_batch, check=checks.get(remedy), checkpoint=checkpoint_layers)


def trainable_parameters(model, batch):
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise CheckFailed("no parameter is trainable")


def graph_after_one_forward(loss):
    def check(model, batch):
        if loss(model, batch).grad_fn is None:
            raise CheckFailed("the loss carries no graph")

    return check


def trainer(variant, arguments, setup):
    """The real trainer, given a model that already carries the adapter."""
    from tiny_models.kit import GRPO, add_lora, letter_score, prompts, qwen2, saved, sft_trainer, tokenizer

    base = saved(qwen2(), setup)  # under ZeRO-3, trl 0.15 loads a reference model from its path
    if variant.remedy == "enable_input_require_grads":
        base.enable_input_require_grads()
    model = add_lora(base)
    if variant.trainer == "sft":
        return sft_trainer(model, arguments)
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(**arguments, **GRPO)
    return GRPOTrainer(model, letter_score, config, train_dataset=prompts(), processing_class=tokenizer())
