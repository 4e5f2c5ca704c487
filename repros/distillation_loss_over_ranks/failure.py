"""Distillation trainers divide their gradients by the number of ranks once too often."""

from faultline.catalogue import Claim, Failure, Turn, Variant

CAUSE = "https://github.com/huggingface/trl/pull/6006"

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
        *(Variant("broken", name, ("ddp", "zero3"), needs=("average_tokens_across_devices",)) for name in TRAINERS),
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
