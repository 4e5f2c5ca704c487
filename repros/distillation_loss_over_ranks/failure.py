"""Distillation trainers divide their gradients by the number of ranks once too often."""

from faultline.catalogue import Claim, Failure, Turn, Variant

CAUSE = "https://github.com/huggingface/trl/pull/6006"

OFF = ("off",)  # checkpointing has no part in what a loss is divided by
TOLD = ("average_tokens_across_devices",)
LOOK = "a `compute_loss` of one's own that divides by `num_items_in_batch`, and isn't times the world size"

TRAINERS = {  # their names in TRL, and their settings; SFT's own loss is the control
    "sft": ("SFT", {}),
    "gkd": ("GKD", {"lmbda": 0.0}),
    "gold": ("GOLD", {"lmbda": 0.0, "max_length": 64, "max_completion_length": 4}),
    "iw_opd": ("IWOPD", {"max_length": 64, "max_completion_length": 4}),
}

FAILURE = Failure(
    title="Distillation trainers divide their gradients by the number of ranks once too often",
    records=(CAUSE, "https://github.com/huggingface/trl/issues/4719"),
    since="trl 1.7.0 (2026-06-25), which has pull request 6006",
    until="open with trl 1.16.0",
    upstream="huggingface/trl",
    report="gkd-broken/ddp/*",
    began=(
        Turn(
            "trl",
            "1.7.0",
            {"variant": "gkd-broken"},
            "make bisect FAILURE=distillation_loss_over_ranks VARIANT=gkd-broken STRATEGY=ddp CHECKPOINTING=off"
            " PACKAGE=trl DIRECTION=introduced FROM=1.4.0 TO=1.9.2",
        ),
    ),
    found_by=("over_ranks",),
    told_by={"over_ranks": "a loss of TRL's distillation trainers, with `average_tokens_across_devices`"},
    signatures={},
    variants=(
        Variant("broken", checkpointing=OFF, needs=TOLD, look=LOOK),
        Variant("times_ranks", checkpointing=OFF),
        *(Variant("broken", name, ("ddp", "zero3"), needs=TOLD) for name in TRAINERS),
        *(Variant("times_ranks", name, ("ddp", "zero3")) for name in ("gkd", "gold", "iw_opd")),
    ),
    claims={
        "a": Claim(
            "multiply the loss by the number of ranks, as `Trainer.compute_loss` does",
            swap={"remedy": "times_ranks"},
            source="https://github.com/huggingface/transformers/pull/34373",
        ),
        "b": Claim(
            "GKD and GOLD now honor the contract that SFT honored before",
            kind="trains",
            where={"variant": "g*-broken"},
            source=CAUSE,
        ),
    },
)


def scenario(remedy, setup):
    """What these trainers do, without them: a divergence from a teacher, divided by the tokens of all ranks."""
    import torch
    from torch import distributed

    from faultline.scenario import Scenario, divergence
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

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
    from faultline.trainer import from_trl
    from tiny_models.data import saved, turns
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

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
