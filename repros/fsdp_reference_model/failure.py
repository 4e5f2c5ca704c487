"""GRPO's reference model is neither sharded nor moved to the accelerator under FSDP."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

ISSUE = "https://github.com/huggingface/trl/issues/3348"

FAILURE = Failure(
    title="GRPO's reference model is neither sharded nor moved to the accelerator under FSDP",
    records=(
        ISSUE,
        "https://github.com/huggingface/trl/issues/1147",
        "https://github.com/huggingface/trl/issues/2796",
        "https://github.com/huggingface/trl/issues/3259",
    ),
    since="trl 0.17.0.dev0",
    until="trl 0.29.0 under FSDP2; accelerate's evaluation mode still leaves the model as it is",
    upstream="huggingface/accelerate",
    reported=Reported(
        "trl-0.17.0",
        "grpo-broken",
        "fsdp2",
        note="on a CPU there is no second device for the error to arise; under FSDP1, sampling fails before it",
    ),
    fixes=(
        Turn(
            "trl",
            "0.29.0",
            {"variant": "grpo-broken", "strategy": "fsdp2*"},
            "make bisect FAILURE=fsdp_reference_model PACKAGE=trl DIRECTION=fixed BAD=misplaced,raises BLAME=1",
        ),
    ),
    signatures={
        # The other device is the CPU: two accelerators are another mistake.
        "two-devices": r"Expected all tensors to be on the same device"
        r"(?!, but (?:found at least two devices, |got \w+ is on )\w+:\d+(?: and |, different from[a-z ]+)\w+:\d)",
        # Accelerate and DeepSpeed refuse, in three wordings, to prepare a model that has no optimizer.
        "needs-optimizer": r"zero stage \d requires an optimizer|model and optimizer must be passed together"
        r"|requires a model and an optimizer",
    },
    context={
        "two-devices": r"(?s)\A(?=.*[fF][sS][dD][pP])(?=.*(?:ref_model|ref_per_token_logps|reference model))",
        "needs-optimizer": r"(?s)\A(?:.*(?:evaluation_mode|\bprepare(?:_model)?\([\w.]*[rR]ef)|"
        r"(?!.*'NoneType' object)(?=.*ref_model))",
    },
    # find_unused_parameters with reentrant checkpointing, whatever the model; sampling under FSDP1 in NO_SHARD
    elsewhere=("marked-ready-twice", "lazily-initialized"),
    variants=(
        Variant(
            "broken",
            look="a second model given to `accelerator.prepare_model(..., evaluation_mode=True)`",
            package="accelerate",
        ),
        Variant("prepare_then_eval"),
        Variant("evaluation_mode_false"),
        Variant("helper"),
        Variant("broken", trainer="grpo", second="ref_model", needs=("reference model",)),
    ),
    claims={
        "a": Claim(
            "`accelerator.prepare(ref_model)`, then `.eval()`", swap={"remedy": "prepare_then_eval"}, source=ISSUE
        ),
        "b": Claim(
            "`prepare_model(ref_model, evaluation_mode=False)`", swap={"remedy": "evaluation_mode_false"}, source=ISSUE
        ),
        "c": Claim(
            "a helper for FSDP that wraps and keeps evaluation mode (TRL's `prepare_fsdp`)",
            swap={"remedy": "helper"},
            source=ISSUE,
        ),
        "d": Claim(
            "a newer TRL (1.16.0)",
            swap={"stack": "today"},
            where={"variant": "grpo-broken", "strategy": "fsdp2*"},
            source=ISSUE,
        ),
    },
)


def scenario(remedy, setup):
    """A policy that trains through accelerate and stays near a reference model, by a KL term."""
    import torch

    from faultline.scenario import Scenario, divergence, next_token_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    prepared = {}

    def second(accelerator):
        prepared["reference"] = prepare(accelerator, qwen2(seed=1), remedy)
        return prepared["reference"]

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            reference = prepared["reference"](input_ids=batch["input_ids"]).logits
        return next_token_loss(logits, batch) + divergence(logits, reference, batch)

    return Scenario(qwen2(), loss, text_batch, second=second)


def prepare(accelerator, reference, remedy):
    """The reference model as the issue describes it, and as each claim proposes."""
    if remedy == "prepare_then_eval":
        prepared = accelerator.prepare(reference)
        prepared.eval()  # of DeepSpeed's engine, that gives nothing back
        return prepared
    if remedy == "evaluation_mode_false":
        return accelerator.prepare_model(reference, evaluation_mode=False)
    if remedy == "helper":
        from trl.models.utils import prepare_deepspeed, prepare_fsdp

        kind = accelerator.distributed_type.value
        if kind == "FSDP":
            return prepare_fsdp(reference, accelerator)
        if kind == "DEEPSPEED":
            return prepare_deepspeed(reference, accelerator)
    return accelerator.prepare_model(reference, evaluation_mode=True)


def trainer(variant, arguments, setup):
    from trl import GRPOConfig, GRPOTrainer

    from tiny_models.data import GRPO, letter_score, prompts, saved
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    # The trainer loads its reference model from the policy's name, so the policy is saved and loaded first.
    model = saved(qwen2(), setup)
    args = GRPOConfig(**arguments, **GRPO, beta=0.1)
    return GRPOTrainer(model, letter_score, args, train_dataset=prompts(), processing_class=tokenizer())
