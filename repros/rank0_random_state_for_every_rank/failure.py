"""The random state of rank 0 is saved and every rank loads it: from then on all ranks draw the same numbers."""

from faultline.catalogue import Failure, Variant, helps, variants

MILES = "https://github.com/radixark/miles/pull/3187"
TAU = "https://github.com/TensorAuto/OpenTau/pull/180"
SOME = ("ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="After resuming, every rank draws the random numbers of rank 0",
    first_seen="the FSDP checkpoints of miles, and Megatron-LM's expert-parallel ranks",
    since="whenever a checkpoint first had one random state",
    until="not fixed: a mistake in one's own checkpoint, which no library can see",
    checkpointing=("off",),  # which has no part in what is saved
    resumed=True,
    variants=(Variant("broken", strategies=SOME), *variants("every_rank seed_and_rank", "", SOME)),
    claims={
        MILES: helps("a file for each rank", remedy="every_rank"),
        TAU: helps("seed each rank anew by the step and its number", remedy="seed_and_rank"),
    },
)


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch, wait

    name = f"random-{setup.rank}.pt" if remedy == "every_rank" else "random.pt"

    def keep(save, wrapped, folder):
        save()
        if setup.rank == 0 or remedy == "every_rank":
            torch.save(torch.get_rng_state(), folder / name)
        wait()

    def resume(load, wrapped, folder):
        load()
        if remedy == "seed_and_rank":
            torch.manual_seed(100 * 2 + setup.rank)
        else:
            torch.set_rng_state(torch.load(folder / name))

    return Scenario(qwen2(), causal_lm_loss, text_batch, keep=keep, resume=resume)
