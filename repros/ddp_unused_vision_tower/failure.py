"""Gemma3 fine-tuning on text dies in DDP: the vision tower takes no part in the loss."""

from faultline.catalogue import Claim, Failure, Mechanism, Reported, Variant

ISSUE = "https://github.com/huggingface/trl/issues/3207"
TEXT_ALONE = "a model with a vision tower that isn't frozen, such as Gemma3, trained on text alone"

VISION = r"vision_(?:tower|model|encoder)|mm_projector|multi_?modal_?projector"
NAMED = r"did not receive grad for rank \d{1,5}: "
MODELS = r"Gemma3ForConditional|[gG]emma-?3-(?:4|12|27)b|[pP]ali[gG]emma|[lL]lava|LLaVA|LlavaFor"

FAILURE = Failure(
    title="Gemma3 supervised fine-tuning on text dies in DDP because the vision tower is unused",
    records=(ISSUE,),
    since="torch's DDP has always asked for a gradient of every parameter",
    until="not fixed: DDP's documented contract",
    upstream="huggingface/trl",
    report="sft-default_broken/ddp/non-reentrant/*",
    reported=Reported("trl-0.16.0", "sft-config_under_torchrun", "ddp"),
    found_by=("no_gradient", "unequal"),
    signatures={
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration",
    },
    # Any parameter without a gradient ends so. If the log names those that got none, the tower must be among them.
    context={
        "unfinished-reduction": rf"(?s)\A(?:(?!.*{NAMED}[A-Za-z_])(?=.*(?:{VISION}|{MODELS}))|"
        rf".*{NAMED}[^\n]{{0,4000}}(?:{VISION}))"
    },
    told_by={"unfinished-reduction": "a vision tower or its projector among the parameters without a gradient"},
    mechanism={"unfinished-reduction": Mechanism("parameters that got no gradient, for each of which DDP waits")},
    # DDP that looks for unused parameters, with reentrant checkpointing; accelerate 1.14, which splits tied embeddings
    elsewhere=("marked-ready-twice", "shared-parameter"),
    variants=(
        Variant("broken", look=TEXT_ALONE),
        Variant("touch_everything"),
        Variant("freeze_unused"),
        Variant("images_on_one_rank"),
        Variant("broken", trainer="sft", look=TEXT_ALONE, package="torch"),
        Variant(
            "default_broken",
            trainer="sft",
            strategies=("ddp",),
            checkpointing=("reentrant", "non-reentrant"),
            look=TEXT_ALONE,
        ),
        Variant("freeze_unused", trainer="sft"),
        Variant("config_under_torchrun", trainer="sft", strategies=("ddp",)),
        Variant("accelerate_launch", trainer="sft", strategies=("zero2", "zero3")),
    ),
    claims={
        "a": Claim(
            "`find_unused_parameters=True`",
            swap={"strategy": "ddp-find-unused"},
            where={"variant": "*broken", "strategy": "ddp"},
            source=ISSUE,
            general="`find_unused_parameters=True`",
        ),
        "b": Claim(
            "change the forward pass so that vision tower and projector always take part",
            swap={"remedy": "touch_everything"},
            where={"variant": "broken"},
            source=ISSUE,
            general="change the forward pass so that every parameter always takes part in the loss",
        ),
        "c": Claim(
            "freeze the unused parameters (`requires_grad=False`)",
            swap={"remedy": "freeze_unused"},
            source=ISSUE,
            general="freeze the unused parameters (`requires_grad=False`)",
        ),
        "d": Claim(
            'set `"zero_allow_untested_optimizer": true` in the DeepSpeed config, and start with `torchrun`',
            swap={"variant": "sft-config_under_torchrun"},
            where={"variant": "sft-broken", "strategy": "ddp"},
            source=ISSUE,
        ),
        "e": Claim(
            "start with `accelerate launch` rather than `torchrun`, so that the ZeRO-3 that was asked for is what runs",
            swap={"variant": "sft-accelerate_launch", "strategy": "zero3"},
            where={"variant": "sft-config_under_torchrun"},
            source=ISSUE,
        ),
        "f": Claim(
            "under ZeRO-3 every rank must use the same parameters in every step",
            kind="fails",
            where={"variant": "images_on_one_rank", "strategy": "zero3*"},
            source=ISSUE,
        ),
        "g": Claim("a small test run before training shows the problem", kind="shows", source=ISSUE),
        "h": Claim(
            "`ddp_find_unused_parameters=True` in the trainer's arguments, where nothing is said of it",
            swap={"variant": "sft-broken", "strategy": "ddp-find-unused"},
            where={"variant": "sft-default_broken"},
        ),
    },
)

ZERO3 = "ds_configs/zero3.json"  # it says `"zero_allow_untested_optimizer": true`
UNUSED = ("vision_tower", "multi_modal_projector")


def scenario(remedy, setup):
    from faultline.scenario import Scenario, next_token_loss
    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import gemma3

    model = gemma3()
    if remedy == "freeze_unused":
        freeze(model)
    images = {"touch_everything": "dummy", "images_on_one_rank": "first half"}.get(remedy, "none")

    def batch(step, rank, world_size):
        return image_text_batch(step, rank, world_size, images)

    def loss(model, batch):
        return next_token_loss(model(**batch["inputs"]).logits, batch)

    return Scenario(model, loss, batch)


def freeze(model):
    for name, parameter in model.named_parameters():
        if any(part in name for part in UNUSED):
            parameter.requires_grad_(False)


def trainer(variant, arguments, setup):
    """TRL's trainer with a tokenizer; what `default_broken` doesn't say is `ddp_find_unused_parameters`."""
    from trl import SFTConfig, SFTTrainer

    from faultline.accelerated import as_launched, config_file
    from tiny_models.data import text_dataset
    from tiny_models.gemma3 import gemma3
    from tiny_models.tokenizer import tokenizer

    if variant.remedy == "accelerate_launch" and "deepspeed" in arguments:
        as_launched(arguments.pop("deepspeed"), setup)
    if variant.remedy == "default_broken":
        arguments = {key: value for key, value in arguments.items() if key != "ddp_find_unused_parameters"}
    if variant.remedy == "config_under_torchrun":
        config_file(ZERO3, setup)  # nothing that torchrun starts reads it
    if "fsdp" in arguments:
        # Gemma3 names a block that it doesn't have without a vision head, and accelerate refuses to wrap by it.
        arguments["fsdp_config"]["transformer_layer_cls_to_wrap"] = ["Gemma3DecoderLayer", "SiglipEncoderLayer"]
    model = gemma3()
    if variant.remedy == "freeze_unused":
        freeze(model)
    words = tokenizer(padding_side="right")
    return SFTTrainer(model, SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
