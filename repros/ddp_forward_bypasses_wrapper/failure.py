"""A loss computed on the model inside DDP: gradients are never reduced, and the replicas drift apart."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

TRL = "https://github.com/huggingface/trl/issues/7245"
OPENVLA = "https://github.com/moojink/openvla-oft/issues/160"

OFF = ("off",)
DDP = ("single", "ddp*")
SOME = ("single", "ddp*", "zero[23]", "fsdp*")
LIGER = {"variant": "dpo-broken"}

FAILURE = Failure(
    title="A forward pass around DDP's wrapper leaves gradients unreduced: the replicas drift apart",
    records=(
        TRL,
        "https://github.com/huggingface/trl/issues/5282",
        "https://github.com/jingyaogong/minimind/issues/853",
        "https://github.com/jingyaogong/minimind/pull/854",
        OPENVLA,
        "https://github.com/OpenTSLM/OpenTSLM/pull/49",
        "https://github.com/kohya-ss/sd-scripts/issues/924",
        "https://github.com/kohya-ss/sd-scripts/pull/989",
    ),
    since="torch's first DistributedDataParallel; trl until 1.13 with use_liger_kernel=True",
    until="not fixed: DDP prepares its reduction in its own forward; trl 1.14.0 goes through the wrapper",
    reported=Reported("trl-1.13.0", "dpo-broken", "ddp", good="trl-1.14.0"),
    fixes=(Turn("trl", "1.14.0", LIGER, "make reproduce FAILURE=ddp_forward_bypasses_wrapper"),),
    found_by=("bypassed",),
    signatures={
        # FSDP1's root gathers its own parameters in its own forward.
        "not-gathered": r"'weight' must be 2-D",
    },
    elsewhere=("mixed-dtensor",),  # fsdp2_method_or_child_outside_root_forward
    # Or the whole model's forward pass under FSDP, with no wrapper's above; `generate` goes that way as well.
    context={
        "not-gathered": r"(?s)\A(?:.*\.module\(|"
        r"(?!.*(?:fully_sharded_data_parallel|generation/utils)\.py\", line \d)(?=.*[fF][sS][dD][pP])"
        r"(?=.*/modeling_\w+\.py\", line \d{1,6}, in forward\n[^\n]*= self\.(?:model|transformer)\())"
    },
    told_by={"not-gathered": "a call of `model.module` or of the model itself, not of its wrapper"},
    shares={"not-gathered": "fsdp2_method_or_child_outside_root_forward/sharded-weight"},
    variants=(
        Variant("broken", look="`model.module(...)`, or `accelerator.unwrap_model(model)(...)`, in a loss"),
        Variant("wrapper", checkpointing=OFF, strategies=SOME),
        Variant("redirected", checkpointing=OFF, strategies=SOME),
        Variant("reduced_by_hand", checkpointing=OFF, strategies=DDP),
        Variant("reduced_loss", checkpointing=OFF, strategies=DDP),
        Variant(
            "broken",
            trainer="dpo",
            checkpointing=OFF,
            strategies=("single", "ddp*", "zero[23]", "fsdp1-full", "fsdp2"),
            look="`use_liger_kernel=True` with DPO",
        ),
    ),
    claims={
        "a": Claim("call the wrapper", swap={"remedy": "wrapper"}, general="call the wrapper"),
        "b": Claim("TRL's `_ForwardRedirection`", swap={"remedy": "redirected"}),
        "c": Claim("`all_reduce` the gradients after each backward pass", swap={"remedy": "reduced_by_hand"}),
        "d": Claim("`all_reduce` the loss", swap={"remedy": "reduced_loss"}, source=OPENVLA),
        "e": Claim(
            "`find_unused_parameters=True`",
            swap={"strategy": "ddp-find-unused"},
            where={"strategy": "ddp"},
        ),
        "f": Claim("`static_graph=True`", swap={"strategy": "ddp-static-graph"}, where={"strategy": "ddp"}),
        "g": Claim(
            "`broadcast_buffers=True`, which is DDP's default",
            kind="present",
            where={"variant": "broken", "strategy": "ddp*", "world_size": "2"},
        ),
        "h": Claim(
            "trl 1.14.0 or newer, whose Liger loss is computed through the wrapper",
            swap={"stack": "trl-1.14.0"},
            where=LIGER,
            source=TRL,
        ),
    },
)


def scenario(remedy, setup):
    """The model that the loss knows is the one that was wrapped, not the wrapper that it is given."""
    from contextlib import contextmanager

    from torch import distributed

    from faultline.scenario import Scenario, next_token_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

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

    from tiny_models.data import turns
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    torch._dynamo.config.disable = True
    liger = {"use_liger_kernel": True, "liger_kernel_config": dict.fromkeys(NO_KERNELS, False)}
    return DPOTrainer(
        qwen2(),
        ref_model=qwen2(),
        args=DPOConfig(**arguments, **liger),
        train_dataset=turns("prompt chosen rejected"),
        processing_class=tokenizer(),
    )
