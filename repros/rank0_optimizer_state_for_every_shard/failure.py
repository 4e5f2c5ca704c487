"""Rank 0 saves `optimizer.state_dict()`, which has its shards alone, and every rank loads them."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

REPORTED = "https://github.com/huggingface/transformers/issues/23034"
FIX = "https://github.com/huggingface/transformers/pull/23111"
SOME = ("ddp", "fsdp*")

FAILURE = Failure(
    title="`optimizer.state_dict()` of rank 0 is loaded by every rank of FSDP",
    first_seen="transformers' `Trainer`, and fairscale before it",
    since="FSDP, which shards the optimizer's state with the parameters",
    until="not fixed: a mistake in one's own loop; transformers' `Trainer` had it before 4.29",
    checkpointing=("off",),  # which has no part in what is saved
    resumed=True,
    variants=(Variant("broken", strategies=SOME), *variants("full every_rank", "", SOME)),
    claims={
        FIX: helps("gather the whole state on rank 0, and let each rank take its shards of it", remedy="full"),
        TRIED_HERE: helps("a file for each rank", remedy="every_rank"),
    },
)


def scenario(remedy, setup):
    import torch
    from torch.distributed.checkpoint import state_dict

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch, wait

    whole = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    shared = state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    name = f"optimizer-{setup.rank}.pt" if remedy == "every_rank" else "optimizer.pt"

    def keep(save, wrapped, folder):
        save()
        state = wrapped.optimizer.state_dict()
        if remedy == "full":
            state = state_dict.get_optimizer_state_dict(wrapped.model, wrapped.optimizer, options=whole)
        if setup.rank == 0 or remedy == "every_rank":
            torch.save(state, folder / name)
        wait()

    def resume(load, wrapped, folder):
        load()
        state = torch.load(folder / name, weights_only=False)
        if remedy == "full":
            state_dict.set_optimizer_state_dict(wrapped.model, wrapped.optimizer, state, options=shared)
        else:
            wrapped.optimizer.load_state_dict(state)

    return Scenario(qwen2(), causal_lm_loss, text_batch, keep=keep, resume=resume)
