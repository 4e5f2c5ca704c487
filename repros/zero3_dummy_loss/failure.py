"""A custom adapter's "keep every parameter in the graph" trick breaks ZeRO-3."""

from faultline.catalogue import Claim, Failure, Reported, Variant

ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/7078"
ZERO3 = "https://deepspeed.readthedocs.io/en/latest/zero3.html"

FAILURE = Failure(
    title="Adding zero times the sum of an adapter's parameters to the loss breaks ZeRO-3",
    records=(
        ISSUE,
        "https://github.com/modelscope/ms-swift/issues/3262",
        "https://github.com/huggingface/transformers/issues/36387",
    ),
    since="deepspeed 0.14",
    until="not fixed: a partitioned parameter is empty outside its module's forward",
    upstream="deepspeedai/DeepSpeed",
    reported=Reported("deepspeed-0.15.4", "broken", "zero3"),
    signatures={
        # As reported, and as DeepSpeed 0.19 words it.
        "empty-gradient": r"returned an invalid gradient at index \d+ - got \[0\] but expected shape compatible with"
        r"|0 != \d+ Cannot reduce scatter gradients whose size is not same as the params",
        # Gathered for the sum, and empty again when backward comes to it.
        "freed-before-backward": r"The size of tensor a \(0\) must match the size of tensor b",
        "mixed-dtensor": r"got mixed torch.Tensor and DTensor",
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration",
    },
    context={
        "freed-before-backward": r"(?s)\A(?=.*GatheredParameters)(?=.*run_backward\()",
        "mixed-dtensor": r"nll_loss_backward|SumBackward",
    },
    told_by={
        "freed-before-backward": "`GatheredParameters` around a part of the forward pass, and not around backward",
        "unfinished-reduction": "a loss that had zero times the sum of these parameters in it until now",
    },
    shares={
        "freed-before-backward": "zero3_lora_target_parameters_no_checkpoint/released-weight",
        "unfinished-reduction": "ddp_unused_vision_tower/unfinished-reduction",
    },
    elsewhere=("marked-ready-twice",),  # find_unused_parameters with reentrant checkpointing, whatever the model
    variants=(
        Variant("broken", look="a loss with zero times the sum of parameters in it, to keep these in the graph"),
        Variant("no_dummy"),
        Variant("one_by_one"),
        Variant("zero_weighted_forward"),
        Variant("gathered", strategies=("zero3*",)),
        Variant("gathered_throughout", strategies=("zero3*",)),
        Variant("registered", strategies=("zero3*",)),
        Variant("frozen_adapter"),
        Variant("persistent", strategies=("zero3*",)),
    ),
    claims={
        "a": Claim("remove the dummy loss", swap={"remedy": "no_dummy"}, source=ISSUE),
        "b": Claim(
            "add zero separately for each parameter instead of one sum", swap={"remedy": "one_by_one"}, source=ISSUE
        ),
        "c1": Claim(
            "keep the gradient with a zero-weighted real forward through the adapter",
            swap={"remedy": "zero_weighted_forward"},
            source=ISSUE,
        ),
        "c2": Claim(
            "gather the parameters for the sum (`deepspeed.zero.GatheredParameters`)",
            swap={"remedy": "gathered"},
            source=ZERO3,
        ),
        "c3": Claim(
            "gather them until backward has ended",
            swap={"remedy": "gathered_throughout"},
            source=ZERO3,
        ),
        "c4": Claim(
            "tell ZeRO-3 that the model's forward pass reads them (`deepspeed.zero.register_external_parameter`)",
            swap={"remedy": "registered"},
            source=ZERO3,
        ),
        "c5": Claim("freeze the adapter", swap={"remedy": "frozen_adapter"}, source=ISSUE),
        "c6": Claim(
            "exclude parameters from partitioning, as a high `stage3_param_persistence_threshold` is said to do",
            swap={"remedy": "persistent"},
            source=ISSUE,
        ),
        "d": Claim(
            "under ZeRO-3 the framework copes with unused parameters by itself",
            kind="trains",
            where={"variant": "no_dummy", "strategy": "zero3*"},
            source=ISSUE,
        ),
        "e": Claim(
            "use ZeRO-2",
            swap={"strategy": "zero2"},
            where={"strategy": "zero3*"},
            source=ISSUE,
            general="ZeRO-2, which releases no weights",
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
    from faultline.scenario import Scenario, next_token_loss
    from tiny_models.data import text_batch
    from tiny_models.group_decode import speech_model

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
