"""A parameter's gradient is reduced twice in one backward pass."""

from faultline.catalogue import Claim, Failure, Mechanism, Reported, Turn, Variant

ISSUE = "https://github.com/OpenBMB/MiniCPM-V/issues/423"

CALLED_AGAIN = "a module that one forward pass calls several times, such as once for each image"
# What a backward pass is over, where it isn't the sum of all: `engine.backward(loss_2)`, `d_loss.backward()`.
NAMED = r"(?:loss_?[\da-z]\w{0,30}|(?!scaled|total|train)[a-z]\w{0,30}_loss\d?)"
ONE_OF_SEVERAL = rf"(?:\.backward\({NAMED}\b|\b{NAMED}\.backward\()"

FAILURE = Failure(
    title="A vision tower that runs once per image has its gradients reduced twice",
    records=(
        ISSUE,
        "https://github.com/modelscope/ms-swift/issues/3128",
        "https://github.com/OpenBMB/MiniCPM-V/issues/1003",
        "https://github.com/deepspeedai/DeepSpeed/issues/988",
    ),
    since="MiniCPM-V 2.6 (2024-08)",
    until="not fixed: DDP, ZeRO-2 and ZeRO-3 reduce a gradient as soon as one backward pass brings it",
    upstream="deepspeedai/DeepSpeed",
    reported=Reported("deepspeed-0.14.5", "broken", "zero2", "reentrant"),
    fixes=(
        Turn(
            "transformers",
            "5.23.0",
            {"variant": "broken", "strategy": "fsdp2*", "checkpointing": "reentrant"},
            "make replay",
        ),
    ),
    found_by=("several_calls",),
    signatures={
        "reduced-twice": r"The parameter [\w.]{1,200} has already been reduced",
        # ZeRO-3 finds the same parameter twice in one bucket, unless the bucket was flushed in between.
        "bucketed-twice": r"len\(set\(p.ds_id for p in (self\.)?params_in_(ipg_)?bucket\)\)",
        # FSDP1 frees a unit's parameters after its first backward pass; which rank says so first varies.
        "freed-too-early": r"mat2 must be a matrix, got 1-D tensor|got weight of shape \[0\]",
        "marked-ready-twice": r"Expected to mark a variable ready only once|has been marked as ready twice",
    },
    context={
        # Two backward passes over two losses end so as well: where a loss is named as one of several, something else
        # must tell.
        "reduced-twice": rf"(?s)\A(?:(?!.*{ONE_OF_SEVERAL})|(?=.*(?:checkpoint(?:ing)?\.py\b"
        r"|[gG]radient[_ ]checkpointing|use_reentrant|\bvpm\b|vision|visual|vit\b|image_encoder|resampler)))",
        # Where its layer is computed anew: in the forward pass it would be a weight of that shape.
        "freed-too-early": r"checkpoint(?:ing)?\.py\", line \d{1,6}, in backward",
        # DDP names the parameter where TORCH_DISTRIBUTED_DEBUG asks for it.
        "marked-ready-twice": r"with name [\w.]*(?:\bvpm\b|vision|visual|vit\b|image_encoder|resampler)",
    },
    told_by=dict.fromkeys(("reduced-twice", "marked-ready-twice"), CALLED_AGAIN),
    mechanism={
        "reduced-twice": Mechanism(
            "a gradient that comes once more before a step, be it from a second backward pass or from what reentrant "
            "checkpointing computes anew"
        )
    },
    shares={"marked-ready-twice": "ddp_peft_reentrant_ready_twice/marked-ready-twice"},
    variants=(
        Variant("broken", look=CALLED_AGAIN),
        Variant("two_calls"),
        Variant("smaller_batch"),
        Variant("one_call"),
    ),
    claims={
        "a": Claim(
            '`gradient_checkpointing_kwargs={"use_reentrant": False}`',
            swap={"checkpointing": "non-reentrant"},
            source=ISSUE,
            general='`gradient_checkpointing_kwargs={"use_reentrant": False}`',
        ),
        "b": Claim(
            "a smaller per-device batch lowers the odds (one image per rank: one call)",
            swap={"remedy": "smaller_batch"},
            source=ISSUE,
        ),
        "b2": Claim("half as many calls lower the odds", swap={"remedy": "two_calls"}, source=ISSUE),
        "c": Claim(
            "no gradient checkpointing",
            swap={"checkpointing": "off"},
            source=ISSUE,
            general="no gradient checkpointing",
        ),
        "d": Claim(
            "one call for all slices, as the earlier model did",
            swap={"remedy": "one_call"},
            source=ISSUE,
            general="one call of a module that a forward pass calls several times",
        ),
        "e": Claim("ZeRO-1 instead of ZeRO-2", swap={"strategy": "zero1"}, where={"strategy": "zero2*"}, source=ISSUE),
        "f1": Claim(
            "it comes back in another form at ZeRO-3",
            kind="fails",
            where={"variant": "broken", "strategy": "zero3*", "checkpointing": "reentrant"},
            source=ISSUE,
        ),
        "f2": Claim(
            "it comes back in another form in DDP",
            kind="fails",
            where={"variant": "broken", "strategy": "ddp*", "checkpointing": "reentrant"},
            source=ISSUE,
        ),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Impossible, Scenario, next_token_loss
    from tiny_models.data import sliced_image_batch
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
