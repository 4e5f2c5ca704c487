"""A run that resumes with a synchronised reference model begins again with the first reference."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

RESUME = "https://github.com/huggingface/trl/issues/3179"
WHOLE = ("single", "ddp", "zero2")  # each rank has all weights of the policy
SOME = (*WHOLE, "zero3")
SHARE = 0.6  # of the policy in what the reference becomes

FAILURE = Failure(
    title="After resuming, a synchronised reference model is the first one again",
    first_seen="`faultline explore`'s findings; no report was found",
    since="TRL's first `sync_ref_model` (2024)",
    until="not fixed: checkpoints hold the policy alone",
    upstream="huggingface/trl",
    checkpointing=("off",),  # which has no part in what is saved
    resumed=True,
    variants=(
        *variants("broken kept", "", WHOLE, text="an average of the weights that a loss is held against"),
        Variant("broken", "dpo", (*SOME, "fsdp2"), second="ref_model"),
        Variant("kept", "dpo", SOME),
        Variant("checkpoint_as_model", "dpo", WHOLE),
        Variant("broken", "grpo", SOME, second="ref_model"),
        *(Variant("broken", name, ("single", "ddp"), second="ref_model") for name in ("kto", "rloo")),
    ),
    claims={
        RESUME: helps("the checkpoint as `model`", "dpo-broken", variant="dpo-checkpoint_as_model"),
        TRIED_HERE: (
            helps("a callback that saves and loads the reference", "dpo-broken", variant="dpo-kept"),
            helps("the average in a file of the checkpoint", "broken", remedy="kept"),
        ),
    },
)


def scenario(remedy, setup):
    """A policy that stays near a reference, which moves towards it after every step."""
    import torch

    from tiny_models.kit import Scenario, qwen2, text_batch
    from tiny_models.second import near

    reference = qwen2(seed=1).to(setup.device)

    def before_step(model, step):
        if step:
            for old, new in zip(reference.parameters(), model.parameters(), strict=True):
                old.data.mul_(1 - SHARE).add_(new.data, alpha=SHARE)

    def keep(save, wrapped, folder):
        save()
        if setup.rank == 0:
            torch.save(reference.state_dict(), folder / "reference.pt")

    def resume(load, wrapped, folder):
        load()
        reference.load_state_dict(torch.load(folder / "reference.pt"))

    checkpoint = {"keep": keep, "resume": resume} if remedy == "kept" else {}
    return Scenario(qwen2(), near({"second": reference}), text_batch, before_step=before_step, **checkpoint)


def trainer(variant, arguments, setup):
    from pathlib import Path

    from transformers.trainer_utils import get_last_checkpoint

    from faultline.trainers import from_trl
    from tiny_models.kit import GRPO, Impossible, letter_score, qwen2, saved, tokenizer, turns

    name = variant.trainer.upper()
    settings = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": SHARE, "beta": 0.5}
    columns = "prompt completion label" if name == "KTO" else "prompt chosen rejected"
    others = {"processing_class": tokenizer(), "train_dataset": turns(columns)}
    if name == "KTO":
        settings["loss_type"] = "apo_zero_unpaired"  # a sum over rows; the default's term is of a rank's rows
    if name in ("GRPO", "RLOO"):
        settings |= GRPO
        others["reward_funcs"] = letter_score
    try:
        args = from_trl(variant.trainer, f"{name}Config")(**arguments, **settings)
    except TypeError as error:
        raise Impossible(f"{name} of this release doesn't synchronise: {error}") from error
    model = saved(qwen2(), setup)
    if variant.remedy == "checkpoint_as_model" and Path(args.output_dir).is_dir():
        model = type(model).from_pretrained(get_last_checkpoint(args.output_dir) or model.name_or_path)
    built = from_trl(variant.trainer, f"{name}Trainer")(model=model, args=args, **others)
    if variant.remedy == "kept":
        built.add_callback(keeping(built))
    return built


def keeping(trainer):
    """A callback by which a checkpoint has the reference model too, gathered as TRL gathers it to mix it."""
    from functools import partial
    from pathlib import Path

    import deepspeed
    import torch
    from transformers import TrainerCallback

    model = trainer.accelerator.unwrap_model(trainer.ref_model)
    gathered = partial(deepspeed.zero.GatheredParameters, [*model.parameters()], enabled=trainer.is_deepspeed_enabled)

    class Keeping(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            with gathered():
                if state.is_world_process_zero:
                    torch.save(model.state_dict(), file(args, state))

        def on_train_begin(self, args, state, control, **kwargs):
            if state.global_step:
                with gathered(modifier_rank=0):
                    model.load_state_dict(torch.load(file(args, state)))

    def file(args, state):
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "reference.pt"

    return Keeping()
