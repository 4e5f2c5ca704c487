"""A parameter's gradient is reduced twice in one backward pass."""

from faultline.catalogue import Failure, fails, helps

FAILURE = Failure(
    title="A module that runs several times is reduced twice with reentrant checkpointing",
    first_seen="MiniCPM-V 2.6's vision tower, which runs once per image",
    since="MiniCPM-V 2.6 (2024-08)",
    until="not fixed: DDP, ZeRO-2 and ZeRO-3 reduce a gradient as soon as one backward pass brings it",
    upstream="deepspeedai/DeepSpeed",
    errors={
        "reduced-twice": r"The parameter [\w.]{1,200} has already been reduced|params_already_reduced\["
        r"|[gG]radient computed twice for this partition|Multiple gradient reduction is currently not supported",
        # ZeRO-3 finds the same parameter twice in one bucket, unless the bucket was flushed in between.
        "bucketed-twice": r"len\(set\(p.ds_id for p in (self\.)?_{0,2}params_in_(ipg_)?bucket\)\)",
        # FSDP1 frees a unit's parameters after its first backward pass; which rank says so first varies.
        "freed-too-early": r"mat2 must be a matrix, got 1-D tensor|got weight of shape \[0\]",
        "marked-ready-twice": r"Expected to mark a variable ready only once|has been marked as ready twice"
        r"|multiple autograd engine +hooks have fired|in multiple reentrant backward passes",
    },
    claims={
        "https://github.com/OpenBMB/MiniCPM-V/issues/423": (
            helps('`gradient_checkpointing_kwargs={"use_reentrant": False}`', checkpointing="non-reentrant"),
            helps("no gradient checkpointing", checkpointing="off"),
            helps("ZeRO-1 instead of ZeRO-2", "*broken/zero2*", strategy="zero1"),
            helps("one call of the module for all that it gets (MiniCPM-V: for all slices)", remedy="one_call"),
            helps(
                "a smaller per-device batch, down to one call of the module (MiniCPM-V: one image)",
                remedy="smaller_batch",
            ),
            helps("half as many calls of the module", remedy="two_calls"),
            fails("it comes back in another form at ZeRO-3", "broken/zero3*/reentrant"),
            fails("it comes back in another form in DDP", "broken/ddp*/reentrant"),
        ),
    },
)


def scenario(remedy, setup):
    from tiny_models.data import sliced_image_batch
    from tiny_models.kit import Impossible, Scenario, next_token_loss
    from tiny_models.per_image_vision import per_image_vision_model

    small = remedy == "smaller_batch"
    if small and setup.world_size > 2:
        raise Impossible("the smaller batch has two images, one for each of two ranks")

    def batch(step, rank, world_size):
        return sliced_image_batch(step, rank, world_size, rows=2 if small else 4, slices=1 if small else 2)

    def loss(model, batch):
        slices = batch["slices"]
        calls = {"one_call": 1, "two_calls": 2}.get(remedy, slices.shape[0] * slices.shape[1])
        return next_token_loss(model(batch["input_ids"], slices, calls), batch)

    return Scenario(per_image_vision_model(), loss, batch)
