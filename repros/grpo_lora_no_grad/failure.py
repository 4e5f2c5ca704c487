"""GRPO with a LoRA adapter and gradient checkpointing cannot run backward."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant
from faultline.errors import CheckFailed

ISSUE = "https://github.com/huggingface/trl/issues/3150"
BISECT = "make bisect FAILURE=grpo_lora_no_grad PACKAGE=trl STRATEGY=ddp BLAME=1"
ADAPTER = ("adapter",)

FAILURE = Failure(
    title="GRPO with a LoRA adapter and gradient checkpointing cannot run backward",
    records=(ISSUE, "https://github.com/huggingface/trl/issues/3089"),
    since="trl 0.15.2",
    until="trl 0.16.0, whose trainers enable input gradients; the mechanism is torch's and stays",
    upstream="pytorch/pytorch",
    reported=Reported("trl-0.15.2", "grpo-broken", "zero2", "reentrant"),
    fixes=(
        Turn("trl", "0.16.0", {"variant": "grpo-broken", "checkpointing": "reentrant"}, f"{BISECT} TO=0.19.0"),
        Turn(
            "trl",
            "0.20.0",
            {"variant": "sft-broken", "checkpointing": "reentrant"},
            f"{BISECT} VARIANT=sft-broken CHECKPOINTING=reentrant TO=1.0.0 DIRECTION=fixed",
        ),
    ),
    found_by=("frozen_input",),
    signatures={
        "no-grad-fn": r"element 0 of (?:tensors|variables) does not require grad and does not have a grad_fn",
        # DeepSpeed's engine asks first whether the loss has a graph, in words of its own.
        "not-a-loss": r"loss must be a scalar tensor",
        "mixed-dtypes": r"mat1 and mat2 must have the same dtype",
        "check": r"CheckFailed: ",
        # Of older releases: frozen parameters under ZeRO-3, and a policy without a path.
        "recomputed-empty": r"Recomputed values for the following tensors have different metadata",
        "no-path": r"Incorrect path_or_model_id",
    },
    # A loss without a graph, and matrices of two dtypes, have many causes.
    context={
        "no-grad-fn": r"[gG]radient[_ ]checkpointing|utils[./]checkpoint|use_reentrant|Gradients will be None",
        "not-a-loss": r"[gG]radient[_ ]checkpointing|utils[./]checkpoint|use_reentrant|Gradients will be None",
        "mixed-dtypes": r"(?s)\A(?=.*[fF][sS][dD][pP])(?=.*(?:GRPO|grpo))",
        "check": r"carries no graph|no parameter is trainable",
    },
    # find_unused_parameters with reentrant checkpointing, whatever the model
    elsewhere=("marked-ready-twice", "recomputed-empty", "no-path", "lazily-initialized"),
    variants=(
        Variant(
            "broken",
            needs=ADAPTER,
            look="layers of a frozen model checkpointed by hand, without `enable_input_require_grads()`",
            package="torch",
        ),
        Variant("enable_input_require_grads"),
        Variant("check_trainable_parameters"),
        Variant("check_graph"),
        Variant("broken", trainer="grpo", needs=ADAPTER),
        Variant("enable_input_require_grads", trainer="grpo"),
        Variant("broken", trainer="sft", needs=ADAPTER),
    ),
    claims={
        "a": Claim(
            "call `model.enable_input_require_grads()` before `get_peft_model`",
            swap={"remedy": "enable_input_require_grads"},
            source=ISSUE,
        ),
        "b": Claim("`gradient_checkpointing=False`", swap={"checkpointing": "off"}, source=ISSUE),
        "c": Claim(
            '`gradient_checkpointing_kwargs={"use_reentrant": False}`',
            swap={"checkpointing": "non-reentrant"},
            source=ISSUE,
        ),
        "d": Claim(
            "check the trainable parameters before training",
            kind="detects",
            swap={"remedy": "check_trainable_parameters"},
            source=ISSUE,
        ),
        "e": Claim(
            "check after one forward pass that the loss carries a graph",
            kind="detects",
            swap={"remedy": "check_graph"},
            source=ISSUE,
        ),
        "f": Claim("bf16 needs special care for gradients", kind="changes", swap={"precision": "bf16"}, source=ISSUE),
        "g": Claim(
            "a newer TRL (1.16.0)",
            swap={"stack": "today"},
            where={"variant": "*-broken", "checkpointing": "reentrant"},
            source=ISSUE,
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism alone: a frozen base with LoRA, and each layer checkpointed by hand."""
    from faultline.scenario import Scenario, causal_lm_loss, checkpoint_layers
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import add_lora, qwen2

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
    from tiny_models.data import prompts, saved, text_dataset
    from tiny_models.qwen2 import add_lora, qwen2
    from tiny_models.tokenizer import tokenizer

    base = saved(qwen2(), setup)  # under ZeRO-3, trl 0.15 loads a reference model from its path
    if variant.remedy == "enable_input_require_grads":
        base.enable_input_require_grads()
    model = add_lora(base)
    if variant.trainer == "sft":
        from trl import SFTConfig, SFTTrainer

        words = tokenizer(padding_side="right")
        return SFTTrainer(model, SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
    from trl import GRPOConfig, GRPOTrainer

    from tiny_models.data import GRPO, letter_score

    return GRPOTrainer(
        model, letter_score, GRPOConfig(**arguments, **GRPO), train_dataset=prompts(), processing_class=tokenizer()
    )
