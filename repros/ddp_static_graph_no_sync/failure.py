"""DDP with `static_graph=True` and gradient accumulation under `no_sync()` ends at its first backward pass."""

from faultline.catalogue import Claim, Failure, Variant

PR = "https://github.com/pytorch/pytorch/pull/187732"

OFF = ("off",)  # where the assertion comes from, checkpointing has no part
ACCUMULATED = ("accumulation",)
STATIC = ("ddp", "ddp-static-graph")

FAILURE = Failure(
    title="DDP with a static graph and gradient accumulation ends in an internal assertion",
    records=(
        PR,
        "https://github.com/pytorch/pytorch/issues/103487",
        "https://github.com/huggingface/accelerate/issues/3679",
        "https://github.com/huggingface/transformers/pull/45519",
        "https://github.com/huggingface/transformers/issues/45518",
    ),
    since="torch 2.11 (the oldest that was tried)",
    until="not fixed: the first backward pass, in which a static graph is learnt, must be a synchronised one",
    upstream="pytorch/pytorch",
    signatures={
        "static-graph-no-sync": r"expect_autograd_hooks_ INTERNAL ASSERT FAILED",
        # As accelerate's users were told it.
        "no-exception-set": r"SystemError: .*returned NULL without setting an exception",
    },
    elsewhere=("marked-ready-twice",),  # find_unused_parameters with reentrant checkpointing, whatever the model
    context={"no-exception-set": r"static_graph"},
    variants=(
        Variant("broken", needs=ACCUMULATED, look="batches added up under DDP's `no_sync()`"),
        Variant("unblocked", strategies=STATIC, checkpointing=OFF, bf16=True),
        Variant("synchronised_once", strategies=STATIC),
        Variant("sync_each_batch", strategies=STATIC),
        Variant("broken", trainer="sft", strategies=STATIC, checkpointing=OFF, needs=ACCUMULATED),
        Variant("sync_each_batch", trainer="sft", strategies=STATIC, checkpointing=OFF),
    ),
    claims={
        "a": Claim(
            "one synchronised backward pass before the first `no_sync()`",
            swap={"remedy": "synchronised_once"},
        ),
        "b": Claim(
            "synchronise every micro-batch (`sync_each_batch=True`)",
            swap={"remedy": "sync_each_batch"},
        ),
        "c": Claim("no `static_graph`", swap={"strategy": "ddp"}, where={"strategy": "ddp-static-graph"}),
        "d": Claim(
            "put the first reduction off until a synchronised backward pass, and no assertion is met",
            swap={"remedy": "unblocked"},
            where={"variant": "broken", "strategy": "ddp-static-graph", "checkpointing": "off"},
            source=PR,
        ),
    },
)


def synchronised_once():
    from contextlib import nullcontext

    done = []

    def by_hand(model, last):
        done.append(last)
        return nullcontext() if last or len(done) == 1 else model.no_sync()

    return by_hand


def sync_each_batch(model, last):
    from contextlib import nullcontext

    return nullcontext()


def unblocked():
    """No error: the first reduction is put off until a synchronised backward pass, by a private attribute of DDP."""
    from contextlib import nullcontext

    synchronised = []

    def by_hand(model, last):
        if not synchronised:
            model._static_graph_delay_allreduce_enqueued = not last
        if last:
            synchronised.append(last)
        return nullcontext() if last else model.no_sync()

    return by_hand


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    loops = {
        "synchronised_once": synchronised_once(),
        "sync_each_batch": sync_each_batch,
        "unblocked": unblocked(),
    }
    return Scenario(qwen2(), causal_lm_loss, text_batch, micro_batches=2, by_hand=loops.get(remedy))


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    each = {"gradient_accumulation_kwargs": {"sync_each_batch": variant.remedy == "sync_each_batch"}}
    config = SFTConfig(**arguments, gradient_accumulation_steps=2, accelerator_config=each)
    return SFTTrainer(qwen2(), config, train_dataset=text_dataset(), processing_class=tokenizer(padding_side="right"))
