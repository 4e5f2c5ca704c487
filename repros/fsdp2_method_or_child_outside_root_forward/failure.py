"""A method, a child or the head's weight used outside of the forward pass of FSDP2's root."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present

TRL_6076 = "https://github.com/huggingface/trl/issues/6076"
METHOD = "https://github.com/pytorch/pytorch/pull/125394"
SOME = ("single", "ddp", "zero3")

FAILURE = Failure(
    title="A method, a child or a weight used outside the root's forward meets shards",
    first_seen="plain torch with FSDP; later TRL's `chunked_nll` loss with an adapter",
    since="torch's fully_shard (2024), and FSDP1 and ZeRO-3 before it",
    until="not fixed: parameters are whole from the root's forward pass on, and DDP reduces what went through it",
    upstream="huggingface/trl",
    checkpointing=("off",),  # checkpointing has no part in where a call goes
    errors={
        "mixed-dtensor": r"mixed torch\.Tensor and DTensor",
        # A child that ran first: as FSDP2 words it, and FSDP1.
        "lazily-initialized": r"FSDP state has already been lazily initialized for"
        r"|FSDP requires a single root module but got|Non-root FSDP instance's `_is_root` should not have been set yet",
        # FSDP1 and ZeRO-3, whose shards are flat or empty.
        "sharded-weight": r"'weight' must be 2-D|mat2 must be a matrix|weight should have at least t\w+ dimensions"
        r"|size mismatch, got (?:input \(\d+\), mat \(\d+x\d+\), vec \(\d+\)|\d+, \d+x\d+,\d+)|of shape \[0\] and"
        r"|non-zero number of elements, but its data is not allocated yet|are out of bounds for storage of size 0\b",
        # FSDP1 in NO_SHARD computes with whole weights, and refuses to show them when units ran without their root.
        "units-without-root": r"Cannot manually unshard parameters during forward/backward",
    },
    also_raises=("released-weight",),  # a head that TRL gathers for its loss, and ZeRO-3 releases before backward
    variants=(
        Variant("head_broken", text="the weight of the head is read after a whole forward pass"),
        Variant("child_broken", text="a block runs by itself before the root's forward pass"),
        Variant("early_head_broken", "", (*SOME, "fsdp*"), text="the weight of the head is read before a forward pass"),
        Variant("full_tensor", strategies=("fsdp2*",)),
        Variant("broken", "sft", (*SOME, "fsdp2")),
        Variant("head_broken", "sft", (*SOME, "fsdp2*"), text="an adapter and the head are trained"),
        Variant("head_of_logits", "sft", ("single", "fsdp2")),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/3260": helps(
            "redirect the root's `forward` to the method (`_ForwardRedirection`)", "broken", remedy="redirected"
        ),
        METHOD: helps("`register_fsdp_forward_method(model, name)`", "broken/fsdp2*", remedy="registered"),
        "https://github.com/huggingface/trl/pull/6077": helps(
            "`lm_head.weight.full_tensor()` once, before the loss is computed",
            "early_head_broken/fsdp2*",
            variant="full_tensor",
        ),
        TRL_6076: helps("`reshard_after_forward=False`", "*broken/fsdp2", strategy="fsdp2-no-reshard"),
        "https://github.com/huggingface/trl/pull/6065": helps("a newer TRL (1.16.0)", "sft-*broken", stack="today"),
        TRIED_HERE: (
            present("`unwrap_model` first", "broken/fsdp*", key="unwrap_model"),
            helps(
                "a `compute_loss_func` of one's own, to which `SFTTrainer` gives the logits",
                "sft-head_broken/fsdp2",
                remedy="head_of_logits",
            ),
        ),
    },
)


def scenario(remedy, setup):
    """A loss that takes a part of the model, unless the remedy says otherwise: a method, the head's weight, a block."""
    import torch

    from tiny_models.kit import Scenario, next_token_loss, qwen2, sgd, text_batch

    bare = qwen2()  # what `unwrap_model` gives

    def logits_of(input_ids):
        return bare.lm_head(bare.model(input_ids=input_ids).last_hidden_state)

    bare.logits_of = logits_of

    def logits(model, input_ids):
        if remedy == "child_broken":
            return model(input_ids=input_ids).logits
        if remedy == "redirected":
            from trl.models.utils import _ForwardRedirection

            return _ForwardRedirection()(model, bare, bare.logits_of, input_ids)
        if remedy == "head_broken":
            return model(input_ids=input_ids, output_hidden_states=True).hidden_states[-1] @ bare.lm_head.weight.T
        if remedy in ("early_head_broken", "full_tensor"):
            whole = remedy == "full_tensor" and hasattr(bare.lm_head.weight, "full_tensor")
            weight = bare.lm_head.weight.full_tensor() if whole else bare.lm_head.weight
            return model(input_ids=input_ids, output_hidden_states=True).hidden_states[-1] @ weight.T
        return bare.logits_of(input_ids)

    def loss(model, batch):
        return next_token_loss(logits(model, batch["input_ids"]), batch)

    def registered(model):
        torch.distributed.fsdp.register_fsdp_forward_method(model, "logits_of")
        return sgd(model)

    def one_block_first(model, step):  # as one does to look at what it gives
        hidden = torch.ones(1, 4, bare.config.hidden_size, device=setup.device)
        places = torch.arange(4, device=setup.device)[None]
        with torch.no_grad():
            if step == 0:
                bare.model.layers[0](hidden, position_embeddings=bare.model.rotary_emb(hidden, places))

    optimizer = registered if remedy == "registered" else None
    before_step = one_block_first if remedy == "child_broken" else None
    return Scenario(bare, loss, text_batch, optimizer=optimizer, before_step=before_step)


def trainer(variant, arguments, setup):
    from tiny_models.kit import add_lora, next_token_loss, qwen2, sft_trainer

    def loss_of_logits(outputs, labels, num_items_in_batch):  # the same loss, from those of the whole forward pass
        return next_token_loss(outputs.logits, {"labels": labels, "scale": 1 / num_items_in_batch})

    head = ["lm_head"] if variant.remedy.startswith("head") else None
    # This loss takes `lm_head.weight`, in chunks.
    built = sft_trainer(add_lora(qwen2(), modules_to_save=head), {**arguments, "loss_type": "chunked_nll"})
    if variant.remedy == "head_of_logits":
        built.compute_loss_func = loss_of_logits
    return built
