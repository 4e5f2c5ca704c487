"""Gemma3 fine-tuning on text dies in DDP: the vision tower takes no part in the loss."""

from faultline.catalogue import Failure, Variant, fails, helps, shows, variants

FAILURE = Failure(
    title="Parameters that take no part in a step's loss stop DDP",
    first_seen="Gemma3's vision tower and projector, fine-tuned on text with TRL",
    since="torch's DDP has always asked for a gradient of every parameter",
    until="not fixed: DDP's documented contract",
    upstream="huggingface/trl",
    errors={
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration"
        r"|parameters that were not used in producing (?:the )?loss|did not receive grad for rank \d"
        r"|forward` function outputs participate in calculating loss"
    },
    # DDP that looks for unused parameters, with reentrant checkpointing; accelerate 1.14, which splits tied embeddings
    also_raises=("marked-ready-twice", "shared-parameter"),
    variants=(
        Variant("images_on_one_rank", text="the same model, where some ranks use parameters that others don't"),
        *variants("broken freeze_unused", trainer="sft"),
        Variant(
            "default_broken",
            trainer="sft",
            strategies=("ddp",),
            checkpointing=("reentrant", "non-reentrant"),
            text="the failure, with the arguments as they are by default",
        ),
        Variant("config_under_torchrun", trainer="sft", strategies=("ddp",)),
        Variant("accelerate_launch", trainer="sft", strategies=("zero2", "zero3")),
    ),
    claims={
        "https://github.com/huggingface/trl/issues/3207": (
            helps("`find_unused_parameters=True`", "*broken/ddp", strategy="ddp-find-unused"),
            helps("freeze the unused parameters (`requires_grad=False`)", remedy="freeze_unused"),
            helps(
                "change the forward pass so that every parameter takes part (Gemma3: an image in every row)",
                "broken",
                remedy="touch_everything",
            ),
            helps(
                'set `"zero_allow_untested_optimizer": true` in the DeepSpeed config, and start with `torchrun`',
                "sft-broken/ddp",
                variant="sft-config_under_torchrun",
            ),
            helps(
                "start with `accelerate launch` rather than `torchrun`, so that the ZeRO-3"
                " that was asked for is what runs",
                "sft-config_under_torchrun",
                variant="sft-accelerate_launch",
                strategy="zero3",
            ),
            fails("under ZeRO-3 every rank must use the same parameters in every step", "images_on_one_rank/zero3*"),
            shows("a small test run before training shows the problem", key="small_run"),
        ),
        "https://github.com/axolotl-ai-cloud/axolotl/pull/3584": helps(
            "`ddp_find_unused_parameters=True` in the trainer's arguments, where nothing is said of it",
            "sft-default_broken",
            variant="sft-broken",
            strategy="ddp-find-unused",
        ),
    },
)

ZERO3 = "ds_configs/zero3.json"  # it says `"zero_allow_untested_optimizer": true`
UNUSED = ("vision_tower", "multi_modal_projector")


def scenario(remedy, setup):
    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import gemma3
    from tiny_models.kit import Scenario, next_token_loss

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
    from faultline.trainers import as_launched, config_file
    from tiny_models.gemma3 import gemma3
    from tiny_models.kit import sft_trainer

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
    return sft_trainer(model, arguments)
