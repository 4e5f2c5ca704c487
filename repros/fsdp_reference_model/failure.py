"""GRPO's reference model is neither sharded nor moved to the accelerator under FSDP."""

from faultline.catalogue import Failure, Variant, helps

FAILURE = Failure(
    title="A reference model is neither sharded nor moved to the accelerator under FSDP",
    first_seen="TRL's GRPO trainer",
    since="trl 0.17.0.dev0",
    until="trl 0.29.0 under FSDP2; accelerate's evaluation mode still leaves the model as it is",
    upstream="huggingface/accelerate",
    errors={
        # The other device is the CPU's, on which the weights are: two accelerators are another mistake, and indices on
        # the CPU are as well.
        "two-devices": r"Expected all tensors to be on the same device"
        r"(?!, but got index is on cpu)"
        r"(?!, but (?:found at least two devices, |got \w+ is on )\w+:\d+(?: and |, different from[a-z ]+)\w+:\d)",
        # Accelerate and DeepSpeed refuse, in three wordings, to prepare a model that has no optimizer.
        "needs-optimizer": r"zero stage \d requires an optimizer|model and optimizer must be passed together"
        r"|requires a model and an optimizer",
    },
    # find_unused_parameters with reentrant checkpointing, whatever the model; sampling under FSDP1 in NO_SHARD
    also_raises=("marked-ready-twice", "lazily-initialized"),
    variants=(Variant("broken", trainer="grpo", second="ref_model"),),
    claims={
        "https://github.com/huggingface/trl/issues/3348": (
            helps("`accelerator.prepare(ref_model)`, then `.eval()`", remedy="prepare_then_eval"),
            helps("`prepare_model(ref_model, evaluation_mode=False)`", remedy="evaluation_mode_false"),
            helps("a helper for FSDP that wraps and keeps evaluation mode (TRL's `prepare_fsdp`)", remedy="helper"),
            helps("a newer TRL (1.16.0)", "grpo-broken/fsdp2*", stack="today"),
        ),
    },
)


def scenario(remedy, setup):
    """A policy that trains through accelerate and stays near a reference model, by a KL term."""
    from tiny_models.kit import Scenario, qwen2, text_batch
    from tiny_models.second import near, second_model

    prepared, second = second_model(lambda accelerator: prepare(accelerator, qwen2(seed=1), remedy))

    return Scenario(qwen2(), near(prepared), text_batch, second=second)


def prepare(accelerator, reference, remedy):
    """The reference model as the issue describes it, and as each claim proposes."""
    from tiny_models.second import prepared_as_by_trl

    if remedy == "prepare_then_eval":
        prepared = accelerator.prepare(reference)
        prepared.eval()  # of DeepSpeed's engine, that gives nothing back
        return prepared
    if remedy == "evaluation_mode_false":
        return accelerator.prepare_model(reference, evaluation_mode=False)
    if remedy == "helper":
        return prepared_as_by_trl(accelerator, reference)
    return accelerator.prepare_model(reference, evaluation_mode=True)


def trainer(variant, arguments, setup):
    from trl import GRPOConfig, GRPOTrainer

    from tiny_models.kit import GRPO, letter_score, prompts, qwen2, saved, tokenizer

    # The trainer loads its reference model from the policy's name, so the policy is saved and loaded first.
    model = saved(qwen2(), setup)
    args = GRPOConfig(**arguments, **GRPO, beta=0.1)
    return GRPOTrainer(model, letter_score, args, train_dataset=prompts(), processing_class=tokenizer())
