"""A parameter's gradient is reduced twice in one backward pass."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps, variants

FAIRSCALE = "https://github.com/facebookresearch/fairscale/issues/777"
SOME = ("ddp", "zero1", "zero2", "zero3", "zero3-small", "fsdp1-full", "fsdp2*")

FAILURE = Failure(
    title="A module that runs several times is reduced twice with reentrant checkpointing",
    first_seen="MiniCPM-V 2.6's vision tower, which runs once per image",
    since="MiniCPM-V 2.6 (2024-08)",
    until="not fixed: engines reduce a gradient as soon as a backward pass brings it; under FSDP2 by transformers 5.23"
    " for its own checkpoints",
    upstream="deepspeedai/DeepSpeed",
    errors={
        "reduced-twice": r"The parameter [\w.]{1,200} has already been reduced|params_already_reduced\["
        r"|[gG]radient computed twice for this partition|Multiple gradient reduction is currently not supported",
        # ZeRO-3 finds the same parameter twice in one bucket, unless the bucket was flushed in between.
        "bucketed-twice": r"len\(set\(p.ds_id for p in (self\.)?_{0,2}params_in_(ipg_)?bucket\)\)",
        # FSDP1 frees a unit's parameters after its first backward pass; which rank says so first varies.
        "freed-too-early": r"mat2 must be a matrix, got 1-D tensor|got weight of shape \[0\]"
        r"|size of tensor a \(0\) must match the size of tensor b \([1-9]",
        "marked-ready-twice": r"Expected to mark a variable ready only once|has been marked as ready twice"
        r"|multiple autograd engine +hooks have fired|in multiple reentrant backward passes",
    },
    variants=(
        Variant("broken", "sft", SOME, text="`compute_loss` runs the whole model twice, as R-Drop does"),
        Variant("own_broken", "", SOME, text="the tower checkpoints its layers by itself, in its `forward`"),
        *variants("own_inside own_one_call", strategies=SOME, checkpointing=("reentrant",)),
    ),
    claims={
        "https://github.com/OpenBMB/MiniCPM-V/issues/423": (
            helps('`gradient_checkpointing_kwargs={"use_reentrant": False}`', checkpointing="non-reentrant"),
            helps("no gradient checkpointing", checkpointing="off"),
            helps("ZeRO-1 instead of ZeRO-2", "*broken/zero2*", strategy="zero1"),
            helps(
                "one call of the module for all that it gets (MiniCPM-V: for all slices)", "broken", remedy="one_call"
            ),
            helps(
                "a smaller per-device batch, down to one call of the module (MiniCPM-V: one image)",
                "broken",
                remedy="smaller_batch",
            ),
            helps("half as many calls of the module", "broken", remedy="two_calls"),
            fails("it comes back in another form at ZeRO-3", "broken/zero3*/reentrant"),
            fails("it comes back in another form in DDP", "broken/ddp*/reentrant"),
        ),
        FAIRSCALE: helps("checkpoint a layer's `forward`, within the unit of FSDP", "own_broken", remedy="own_inside"),
        TRIED_HERE: helps("one call of a tower that checkpoints by itself", "own_broken", remedy="own_one_call"),
    },
)


def checkpoint_tower(model, mode, inside=False):
    """As towers of one's own have it: around the layer's call, or `inside` of it, where wrappers' hooks don't run."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_outputs import BaseModelOutput

    encoder = next(module for module in model.vpm.modules() if hasattr(module, "layers"))
    run = partial(checkpoint, use_reentrant=mode == "reentrant")

    def forward(inputs_embeds, attention_mask=None, **others):
        for layer in encoder.layers:
            inputs_embeds = (
                layer(inputs_embeds, attention_mask) if inside else run(layer, inputs_embeds, attention_mask)
            )
        return BaseModelOutput(last_hidden_state=inputs_embeds)

    for layer in encoder.layers if inside else ():
        layer.forward = partial(run, layer.forward)
    if mode != "off":
        encoder.forward = forward


def scenario(remedy, setup):
    from functools import partial

    from tiny_models.data import sliced_image_batch
    from tiny_models.kit import Impossible, Scenario, next_token_loss
    from tiny_models.per_image_vision import per_image_vision_model

    small = remedy == "smaller_batch"
    if small and setup.data_world > 2:
        raise Impossible("the smaller batch has two images, one for each of two ranks")

    def batch(step, rank, world_size):
        return sliced_image_batch(step, rank, world_size, rows=2 if small else 4, slices=1 if small else 2)

    def loss(model, batch):
        slices = batch["slices"]
        calls = {"one_call": 1, "own_one_call": 1, "two_calls": 2}.get(remedy, slices.shape[0] * slices.shape[1])
        return next_token_loss(model(batch["input_ids"], slices, calls), batch)

    checkpointing = partial(checkpoint_tower, inside=remedy == "own_inside") if remedy.startswith("own") else None
    return Scenario(per_image_vision_model(), loss, batch, checkpoint=checkpointing)


def trainer(variant, arguments, setup):
    from tiny_models.kit import qwen2, sft_trainer

    built = sft_trainer(qwen2(), arguments)
    compute_loss = built.compute_loss

    def twice(*args, **kwargs):
        return (compute_loss(*args, **kwargs) + compute_loss(*args, **kwargs)) / 2

    built.compute_loss = twice
    return built
