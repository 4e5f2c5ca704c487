"""A loss computed on the model inside DDP: gradients are never reduced, and the replicas drift apart."""

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps, present, variants

OPENTSLM = "https://github.com/OpenTSLM/OpenTSLM/pull/49"

FAILURE = Failure(
    title="A forward pass around DDP's wrapper isn't reduced, and the ranks drift apart",
    first_seen="sd-scripts; later TRL's DPO and KTO trainers with `use_liger_kernel=True`",
    since="torch's first DistributedDataParallel; trl until 1.13 with use_liger_kernel=True",
    until="not fixed: DDP prepares its reduction in its own forward; trl 1.14.0 goes through the wrapper",
    checkpointing=("off",),
    errors={
        # FSDP1's root gathers its own parameters in its own forward.
        "not-gathered": r"'weight' must be 2-D",
    },
    also_raises=("mixed-dtensor",),  # fsdp2_method_or_child_outside_root_forward
    variants=(
        Variant("broken", checkpointing=EVERY_MODE),
        *variants("wrapper redirected", strategies=("single", "ddp*", "zero[23]", "fsdp*")),
        *variants("reduced_by_hand reduced_loss", strategies=("single", "ddp*")),
        Variant("broken", trainer="dpo", strategies=("single", "ddp*", "zero[23]", "fsdp1-full", "fsdp2")),
    ),
    claims={
        "https://github.com/jingyaogong/minimind/pull/854": helps(
            "call the wrapper, not `model.module`", remedy="wrapper"
        ),
        "https://github.com/huggingface/trl/pull/3260": helps("TRL's `_ForwardRedirection`", remedy="redirected"),
        OPENTSLM: helps("`all_reduce` the gradients after each backward pass", remedy="reduced_by_hand"),
        "https://github.com/moojink/openvla-oft/issues/160": helps("`all_reduce` the loss", remedy="reduced_loss"),
        "https://github.com/huggingface/trl/issues/7245": helps(
            "trl 1.14.0 or newer, whose Liger loss is computed through the wrapper", "dpo-broken", stack="trl-1.14.0"
        ),
        TRIED_HERE: (
            helps("`find_unused_parameters=True`", "*broken/ddp", strategy="ddp-find-unused"),
            helps("`static_graph=True`", "*broken/ddp", strategy="ddp-static-graph"),
            present(
                "`broadcast_buffers=True`, which is DDP's default", "broken/ddp*/*/fp32/w2", key="broadcast_buffers"
            ),
        ),
    },
)


def scenario(remedy, setup):
    """The model that the loss knows is the one that was wrapped, not the wrapper that it is given."""
    from contextlib import contextmanager

    from torch import distributed

    from tiny_models.kit import Scenario, next_token_loss, qwen2, text_batch

    unwrapped = qwen2()

    def forward(model, rows):
        if remedy == "wrapper":
            return model(input_ids=rows)
        if remedy == "redirected" and model is not unwrapped:
            from trl.models.utils import _ForwardRedirection

            return _ForwardRedirection()(model, unwrapped, unwrapped.forward, input_ids=rows)
        return unwrapped(input_ids=rows)

    def loss(model, batch):
        loss = next_token_loss(forward(model, batch["input_ids"]).logits, batch)
        if remedy == "reduced_loss" and distributed.is_initialized():
            distributed.all_reduce(loss)
            loss = loss / distributed.get_world_size()
        return loss

    @contextmanager
    def reducing():
        yield
        for parameter in unwrapped.parameters() if distributed.is_initialized() else ():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= distributed.get_world_size()

    return Scenario(unwrapped, loss, text_batch, around=reducing if remedy == "reduced_by_hand" else None)


# On the CPU none of its Triton kernels runs: what is left is the loss that TRL takes from it.
NO_KERNELS = ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy")


def trainer(variant, arguments, setup):
    """TRL's DPO with the Liger loss; the loss is compiled otherwise, which takes a compiler."""
    import liger_kernel  # noqa: F401 - or the trainer asks for it when it begins to train
    import torch
    from trl import DPOConfig, DPOTrainer

    from tiny_models.kit import qwen2, tokenizer, turns

    torch._dynamo.config.disable = True
    liger = {"use_liger_kernel": True, "liger_kernel_config": dict.fromkeys(NO_KERNELS, False)}
    return DPOTrainer(
        qwen2(),
        ref_model=qwen2(),
        args=DPOConfig(**arguments, **liger),
        train_dataset=turns("prompt chosen rejected"),
        processing_class=tokenizer(),
    )
