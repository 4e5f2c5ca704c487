"""Weights that are loaded into the module of a ZeRO engine last until its first step: the masters are the old ones."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps

FIX = "https://github.com/deepspeedai/DeepSpeed/pull/4141"
MASTERS = ("zero1", "zero2", "zero2-offload")

FAILURE = Failure(
    title="Weights loaded into a ZeRO engine's module are gone after its first step",
    first_seen="fine-tuning from a checkpoint without the optimizer's state",
    since="ZeRO, whose optimizer steps copies of the weights that it made when the engine was made",
    until="not fixed: `load_state_dict` of a module knows of no engine around it",
    checkpointing=("off",),  # which has no part in what is loaded
    resumed=True,
    variants=(
        Variant("broken", strategies=("ddp", "zero0", *MASTERS)),
        Variant("module_only", strategies=("zero0", *MASTERS, "zero3")),
        Variant("refresh", strategies=MASTERS),
    ),
    claims={
        FIX: helps("`engine.load_checkpoint(folder, load_module_only=True)`", remedy="module_only"),
        TRIED_HERE: (
            helps("`engine.optimizer.refresh_fp32_params()` after loading", remedy="refresh"),
            fails("`load_module_only=True` loads no weights under ZeRO-3", "module_only/zero3"),
        ),
    },
)


def scenario(remedy, setup):
    """Only weights and schedule are resumed, for an optimizer that has no state of its own."""
    import torch

    from tiny_models.kit import LR, Scenario, causal_lm_loss, qwen2, text_batch, wait

    def scheduled(wrapped):
        return wrapped.optimizer or wrapped.model.optimizer, wrapped.scheduler or wrapped.model.lr_scheduler

    def keep(save, wrapped, folder):
        save()
        state = {"model": wrapped.model.module.state_dict(), "scheduler": scheduled(wrapped)[1].state_dict()}
        if setup.rank == 0:
            torch.save(state, folder / "weights.pt")
        wait()

    def resume(load, wrapped, folder):
        state = torch.load(folder / "weights.pt")
        if remedy == "module_only":
            wrapped.model.load_checkpoint(str(folder), tag="half", load_module_only=True)
        else:
            wrapped.model.module.load_state_dict(state["model"])
        if remedy == "refresh":
            wrapped.model.optimizer.refresh_fp32_params()
        optimizer, scheduler = scheduled(wrapped)
        scheduler.load_state_dict(state["scheduler"])
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate

    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=LR)

    return Scenario(qwen2(), causal_lm_loss, text_batch, optimizer=optimizer, keep=keep, resume=resume)
