"""DDP with `static_graph=True` and gradient accumulation under `no_sync()` ends at its first backward pass."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

FAILURE = Failure(
    title="DDP's static graph with gradient accumulation ends in an internal assertion",
    first_seen="accelerate's gradient accumulation, where it shows as a `SystemError`",
    since="torch 2.11 (the oldest that was tried)",
    until="not fixed: the first backward pass, in which a static graph is learnt, must be a synchronised one",
    upstream="pytorch/pytorch",
    errors={
        "static-graph-no-sync": r"expect_autograd_hooks_ INTERNAL ASSERT FAILED",
        # As accelerate's users saw it.
        "no-exception-set": r"SystemError: .*returned NULL without setting an e",
    },
    also_raises=("marked-ready-twice",),  # find_unused_parameters with reentrant checkpointing, whatever the model
    variants=(
        Variant("unblocked", strategies=("ddp", "ddp-static-graph"), checkpointing=("off",), bf16=True),
        *variants("synchronised_once sync_each_batch", strategies=("ddp", "ddp-static-graph")),
        *variants(
            "broken sync_each_batch", trainer="sft", strategies=("ddp", "ddp-static-graph"), checkpointing=("off",)
        ),
    ),
    claims={
        "https://github.com/pytorch/pytorch/issues/143580": (
            helps("one synchronised backward pass before the first `no_sync()`", remedy="synchronised_once"),
            helps("synchronise every micro-batch (`sync_each_batch=True`)", remedy="sync_each_batch"),
        ),
        "https://github.com/pytorch/pytorch/pull/187732": helps(
            "put the first reduction off until a synchronised backward pass, and no assertion is met",
            "broken/ddp-static-graph/off",
            remedy="unblocked",
        ),
        TRIED_HERE: helps("no `static_graph`", "*broken/ddp-static-graph", strategy="ddp"),
    },
)


def by_hand(remedy):
    """How the micro-batches are added up: DDP communicates in the last one only, unless the remedy says otherwise."""
    from contextlib import nullcontext

    synchronised = []

    def held(model, last):
        if remedy == "unblocked" and not synchronised:  # the first reduction is put off, by a private attribute of DDP
            model._static_graph_delay_allreduce_enqueued = not last
        first = remedy == "synchronised_once" and not synchronised
        if last or first or remedy == "sync_each_batch":
            synchronised.append(last)
            return nullcontext()
        return model.no_sync()

    return held


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    loop = None if remedy == "broken" else by_hand(remedy)
    return Scenario(qwen2(), causal_lm_loss, text_batch, micro_batches=2, by_hand=loop)


def trainer(variant, arguments, setup):
    from tiny_models.kit import qwen2, sft_trainer

    each = {"gradient_accumulation_kwargs": {"sync_each_batch": variant.remedy == "sync_each_batch"}}
    arguments |= {"gradient_accumulation_steps": 2, "accelerator_config": each}
    return sft_trainer(qwen2(), arguments)
