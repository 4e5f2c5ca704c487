"""Trainable parameters of two dtypes that FSDP or ZeRO-3 shards together."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

REPORTED, BF16, FSDP = "reported_broken/*/*/*", "reported_broken/*/*/bf16", ("fsdp*",)

FAILURE = Failure(
    title="Trainable parameters of two dtypes that are sharded together are refused",
    first_seen="adapters in fp32 on a base in bf16",
    since="torch's FSDP1 (2022), of frozen parameters too; torch's fully_shard",
    until="not fixed: a group is gathered as one tensor, and its parameters must have one dtype",
    upstream="pytorch/pytorch",
    checkpointing=("off",),  # dtypes are compared before anything is computed
    errors={
        "mixed-original-dtype": r"FSDP expects uniform original parameter dtype but got",
        # torch since 1.13 and before, and fairscale's.
        "mixed-flat-dtype": r"Must flatten tensors with uniform dtype but got|FlatParameter`? requires uniform dtype"
        r"|expects all parameters to have (?:the )?same dtype",
        # ZeRO-3, which says no more than that; it has other words where it gathers weights before a module runs.
        "mixed-partitions": r"len\(set\(t\.dtype for t in tensors\)\) == 1",
        "mixed-gathered": r"expected there to be only one unique element in",
        # TRL's loss takes the head's weight, which FSDP1 has flat: fsdp2_method_or_child_outside_root_forward.
        "flat-head": r"mat2 must be a matrix",
        # FSDP1 in bf16: PEFT casts an adapter's input to the dtype in which its weights are kept, not computed with.
        "adapter-input": r"expected (?:m1|mat1) and (?:m2|mat2) to have the same dtype",
        # ZeRO-0 takes no gradient of fp64, alone or mixed.
        "no-fp64": r"attempting to reduce an unsupported grad type: torch\.float64",
    },
    also_raises=("halved-adapter", "row-parallel-adapter", "flat-head", "no-fp64", "sharded-weight"),
    variants=(
        Variant("lora_broken", text="the failure, with a frozen base"),
        Variant("reported_broken", "", FSDP, bf16=True, text="the failure, with a base in bf16, as it was reported"),
        *variants("reported_cast reported_no_autocast", "", FSDP, bf16=True),
        *variants("reported_separate reported_casting_to_bf16", "", FSDP, bf16=True),
        Variant("separate", strategies=FSDP),
        Variant("broken", trainer="sft", strategies=("single", "ddp", "fsdp1-full", "fsdp2")),
    ),
    claims={
        "https://github.com/huggingface/accelerate/pull/3985": helps(
            "cast all parameters to one dtype before they are sharded", REPORTED, remedy="reported_cast"
        ),
        "https://github.com/volcengine/verl/pull/4275": (
            helps(
                "`get_peft_model(..., autocast_adapter_dtype=False)`, which leaves adapters in the dtype of their base",
                BF16,
                remedy="reported_no_autocast",
            ),
            helps("shard the LoRA modules separately, without mixed precision", "[bl]*", remedy="separate"),
            helps(
                "shard the LoRA modules separately, with `bf16=True` or an `mp_policy`",
                BF16,
                remedy="reported_separate",
            ),
        ),
        "https://github.com/huggingface/trl/pull/6343": (
            helps("TRL's `peft_module_casting_to_bf16(model)`", REPORTED, remedy="reported_casting_to_bf16"),
            helps("FSDP2 instead of FSDP1", "*broken/fsdp1*", strategy="fsdp2"),
        ),
        TRIED_HERE: helps("`bf16=True`, or an `mp_policy`", "*broken/fsdp*", precision="bf16"),
    },
)


def mixed(remedy):
    """A Qwen2 with LoRA whose adapters have twice the precision of their base: fp32 on bf16, as PEFT gives it, or fp64
    on fp32, so that rounding hides nothing in what trains. All of it is trained, but by `lora_broken`."""
    import torch

    from faultline.trainers import from_trl
    from tiny_models.kit import add_lora, qwen2

    reported = remedy.startswith("reported_")
    base = qwen2().to(torch.bfloat16 if reported else torch.float32)
    model = add_lora(base, autocast_adapter_dtype=remedy != "reported_no_autocast")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(remedy != "lora_broken" or "lora_" in name)
        if "lora_" in name and not reported:
            parameter.data = parameter.data.to(torch.float64)
    if remedy == "reported_cast":
        model.to(torch.float32)
    if remedy.endswith("separate"):
        model.get_base_model()._no_split_modules = [*model.get_base_model()._no_split_modules, "Linear"]
    if remedy == "reported_casting_to_bf16":
        from_trl("utils", "peft_module_casting_to_bf16")(model)
    return model


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Impossible, Scenario, next_token_loss, text_batch

    if remedy in ("reported_no_autocast", "reported_separate") and setup.precision == "fp32" and not setup.reference:
        raise Impossible("weights in bf16 round by more than is allowed for in fp32: bf16 is measured")

    def loss(model, batch):
        casting = remedy == "reported_casting_to_bf16"  # which is made for autocast
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=casting or torch.is_autocast_enabled("cpu")):
            return next_token_loss(model(input_ids=batch["input_ids"]).logits, batch)

    return Scenario(mixed(remedy), loss, text_batch)


def trainer(variant, arguments, setup):
    from tiny_models.kit import sft_trainer

    return sft_trainer(mixed(variant.remedy), arguments)
