"""A custom adapter's "keep every parameter in the graph" trick breaks ZeRO-3."""

from faultline.catalogue import Claim, Failure, Variant

ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/7078"

FAILURE = Failure(
    title="Adding zero times the sum of an adapter's parameters to the loss breaks ZeRO-3",
    records=(
        ISSUE,
        "https://github.com/modelscope/ms-swift/issues/3262",
        "https://github.com/huggingface/transformers/issues/36387",
    ),
    since="deepspeed 0.14",
    until="not fixed: a partitioned parameter is empty outside its module's forward",
    signatures={
        # As reported, and as DeepSpeed 0.19 words it.
        "empty-gradient": r"returned an invalid gradient at index \d+ - got \[0\] but expected shape compatible with"
        r"|0 != \d+ Cannot reduce scatter gradients whose size is not same as the params",
        # Gathered for the sum, and empty again when backward comes to it.
        "freed-before-backward": r"The size of tensor a \(0\) must match the size of tensor b",
        "mixed-dtensor": r"got mixed torch.Tensor and DTensor",
        "marked-ready-twice": r"Expected to mark a variable ready only once",
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration",
    },
    variants=(
        Variant("broken"),
        Variant("no_dummy"),
        Variant("one_by_one"),
        Variant("zero_weighted_forward"),
        Variant("gathered"),
        Variant("frozen_adapter"),
        Variant("not_partitioned", strategies=("zero3*",)),
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
            "gather the parameters before the sum (`deepspeed.zero.GatheredParameters`)",
            swap={"remedy": "gathered"},
            source=ISSUE,
        ),
        "c3": Claim("freeze the adapter", swap={"remedy": "frozen_adapter"}, source=ISSUE),
        "c4": Claim(
            "exclude parameters from partitioning (a high persistence threshold)",
            swap={"remedy": "not_partitioned"},
            source=ISSUE,
        ),
        "d": Claim(
            "under ZeRO-3 the framework copes with unused parameters by itself",
            kind="trains",
            where={"variant": "no_dummy", "strategy": "zero3*"},
            source=ISSUE,
        ),
        "e": Claim("use ZeRO-2", swap={"strategy": "zero2"}, where={"strategy": "zero3*"}, source=ISSUE),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, next_token_loss, token_batch
    from tiny_models.data import text_rows
    from tiny_models.group_decode import speech_model

    model = speech_model()
    adapter = model.adapter
    if remedy == "frozen_adapter":
        adapter.requires_grad_(False)

    def loss(model, batch):
        text, audio = model(batch["input_ids"], audio=remedy == "zero_weighted_forward")
        loss = next_token_loss(text, batch)
        if remedy == "no_dummy":
            return loss
        if remedy == "zero_weighted_forward":
            return loss + audio.sum() * 0.0
        if remedy == "one_by_one":
            for parameter in adapter.parameters():
                loss = loss + parameter.sum() * 0.0
            return loss
        if remedy == "gathered":
            with gathered(adapter):
                return loss + sum(p.sum() for p in adapter.parameters()) * 0.0
        return loss + sum(p.sum() for p in adapter.parameters()) * 0.0

    def batch(step, rank, world_size):
        return token_batch(text_rows(step), rank, world_size)

    keep = {"stage3_param_persistence_threshold": 10**9} if remedy == "not_partitioned" else {}
    return Scenario(model, loss, batch, deepspeed={"zero_optimization": keep})


def gathered(adapter):
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    sharded = [parameter for parameter in adapter.parameters() if hasattr(parameter, "ds_id")]
    return GatheredParameters(sharded, enabled=bool(sharded))
