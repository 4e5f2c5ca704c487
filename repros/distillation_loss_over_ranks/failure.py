"""Distillation trainers divide their gradients by the number of ranks once too often."""

from faultline.catalogue import Failure, Variant, helps, trains, variants

CAUSE = "https://github.com/huggingface/trl/pull/6006"
TRAINERS = {  # their names in TRL, and their settings; SFT's own loss is the control
    "sft": ("SFT", {}),
    "gkd": ("GKD", {"lmbda": 0.0}),
    "gold": ("GOLD", {"lmbda": 0.0, "max_length": 64, "max_completion_length": 4}),
    "iw_opd": ("IWOPD", {"max_length": 64, "max_completion_length": 4}),
}

FAILURE = Failure(
    title="A trainer's own loss over `num_items_in_batch` is averaged over ranks again",
    first_seen="TRL's distillation trainers (GKD, GOLD and IW-OPD) since trl 1.7.0",
    since="trl 1.7.0 (2026-06-25), which has pull request 6006",
    until="open with trl 1.16.0",
    upstream="huggingface/trl",
    variants=(
        *variants("broken times_ranks", checkpointing=("off",)),
        Variant("broken", trainer="sft", strategies=("ddp", "zero3")),
        *variants("broken times_ranks", trainer="gkd", strategies=("ddp", "zero3")),
        *variants("broken times_ranks", trainer="gold", strategies=("ddp", "zero3")),
        *variants("broken times_ranks", trainer="iw_opd", strategies=("ddp", "zero3")),
    ),
    claims={
        "https://github.com/huggingface/transformers/pull/34373": helps(
            "multiply the loss by the number of ranks, as `Trainer.compute_loss` does", remedy="times_ranks"
        ),
        CAUSE: trains("GKD and GOLD now honor the contract that SFT honored before", "g*-broken"),
    },
)


def scenario(remedy, setup):
    """What these trainers do, without them: a divergence from a teacher, divided by the tokens of all ranks."""
    import torch
    from torch import distributed

    from tiny_models.kit import Scenario, divergence, qwen2, text_batch

    teacher = qwen2(seed=1).to(setup.device)

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            wanted = teacher(input_ids=batch["input_ids"]).logits
        total = divergence(logits, wanted, {**batch, "scale": 1.0})
        num_items_in_batch = batch["attention_mask"].sum()
        if distributed.is_initialized():
            distributed.all_reduce(num_items_in_batch)
            if remedy == "times_ranks":
                total = total * distributed.get_world_size()
        return total / num_items_in_batch

    return Scenario(qwen2(), loss, text_batch)


def trainer(variant, arguments, setup):
    """The real trainer, with a teacher of other weights where it takes one."""
    from faultline.trainers import from_trl
    from tiny_models.kit import qwen2, saved, tokenizer, turns

    name, settings = TRAINERS[variant.trainer]
    others = {} if name == "SFT" else {"teacher_model": saved(qwen2(seed=1), setup, "teacher")}
    built = from_trl(variant.trainer, f"{name}Trainer")(
        model=saved(qwen2(), setup),
        args=from_trl(variant.trainer, f"{name}Config")(**{**arguments, **settings}),
        train_dataset=turns("messages"),
        processing_class=tokenizer(),
        **others,
    )
    if variant.remedy == "times_ranks":
        compute_loss = built.compute_loss
        built.compute_loss = lambda *args, **kwargs: compute_loss(*args, **kwargs) * built.accelerator.num_processes
    return built
