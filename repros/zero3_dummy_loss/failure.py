"""A custom adapter's "keep every parameter in the graph" trick breaks ZeRO-3."""

from faultline.catalogue import Failure, helps, trains, variants

FAILURE = Failure(
    title="Adding zero times the sum of parameters to the loss breaks ZeRO-3",
    first_seen="the adapter of a SLAM-Omni-style speech model",
    since="deepspeed 0.14",
    until="not fixed: a partitioned parameter is empty outside its module's forward",
    upstream="deepspeedai/DeepSpeed",
    errors={
        # As reported, and as DeepSpeed 0.19 words it.
        "empty-gradient": r"returned an invalid gradient at index \d+ - got \[0\] but expected shape compatible with"
        r"|0 != \d+ Cannot reduce scatter gradients whose size is not same as the params",
        # Gathered for the sum, and empty again when backward comes to it.
        "freed-before-backward": r"The size of tensor a \(0\) must match the size of tensor b",
        "mixed-dtensor": r"mixed torch\.Tensor and DTensor",
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration"
        r"|parameters that were not used in producing (?:the )?loss|did not receive grad for rank \d"
        r"|forward` function outputs participate in calculating loss",
    },
    also_raises=("marked-ready-twice",),  # find_unused_parameters with reentrant checkpointing, whatever the model
    variants=(*variants("gathered gathered_throughout registered persistent", strategies=("zero3*",)),),
    claims={
        "https://github.com/deepspeedai/DeepSpeed/issues/7078": (
            helps("leave the sum out of the loss", remedy="no_dummy"),
            helps("add zero separately for each parameter instead of one sum", remedy="one_by_one"),
            helps(
                "a forward pass through the modules of these parameters, with weight 0 in the loss",
                remedy="zero_weighted_forward",
            ),
            helps("freeze these parameters", remedy="frozen_adapter"),
            helps(
                "exclude parameters from partitioning, as a high `stage3_param_persistence_threshold` is said to do",
                remedy="persistent",
            ),
            trains("under ZeRO-3 the framework copes with unused parameters by itself", "no_dummy/zero3*"),
            helps("use ZeRO-2", "*broken/zero3*", strategy="zero2"),
        ),
        "https://deepspeed.readthedocs.io/en/latest/zero3.html": (
            helps("gather the parameters for the sum (`deepspeed.zero.GatheredParameters`)", remedy="gathered"),
            helps("gather them until backward has ended", remedy="gathered_throughout"),
            helps(
                "tell ZeRO-3 that the model's forward pass reads them (`deepspeed.zero.register_external_parameter`)",
                remedy="registered",
            ),
        ),
    },
)


def one_sum(model, logits):
    return sum(p.sum() for p in model.adapter.parameters()) * 0.0


def one_by_one(model, logits):
    return sum(p.sum() * 0.0 for p in model.adapter.parameters())


def zero_weighted_forward(model, logits):
    return model.audio(logits).sum() * 0.0


def gathered(model, logits):
    import deepspeed

    with deepspeed.zero.GatheredParameters(model.adapter.parameters()):
        return one_sum(model, logits)


IN_FORWARD = {"no_dummy": None, "one_by_one": one_by_one, "zero_weighted_forward": zero_weighted_forward}


def scenario(remedy, setup):
    from tiny_models.group_decode import speech_model
    from tiny_models.kit import Scenario, next_token_loss, text_batch

    model = speech_model()
    model.also = gathered if remedy == "gathered" else IN_FORWARD.get(remedy, one_sum)
    if remedy == "frozen_adapter":
        model.adapter.requires_grad_(False)
    if remedy == "registered":
        import deepspeed

        for parameter in model.adapter.parameters():
            deepspeed.zero.register_external_parameter(model, parameter)

    def loss(model, batch):
        logits, zero = model(batch["input_ids"])
        loss = next_token_loss(logits, batch)
        return loss if zero is None else loss + zero

    def whole():
        import deepspeed

        return deepspeed.zero.GatheredParameters(model.adapter.parameters())

    keep = {"stage3_param_persistence_threshold": 10**9} if remedy == "persistent" else {}
    around = whole if remedy == "gathered_throughout" else None
    return Scenario(model, loss, text_batch, around=around, deepspeed={"zero_optimization": keep})
