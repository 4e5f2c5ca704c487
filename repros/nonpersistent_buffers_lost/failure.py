"""Ranks that build on meta and load rank 0's state dict have no values in buffers that no state dict has."""

from faultline.catalogue import Failure, Variant, helps, variants

LF = "https://github.com/hiyouga/LlamaFactory/pull/10820"
COSMOS = "https://github.com/nvidia-cosmos/cosmos-rl/pull/411"
SKYRL = "https://github.com/NovaSky-AI/SkyRL/issues/1709"
SOME = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")

FAILURE = Failure(
    title="Buffers that no state dict has hold whatever was in memory after `to_empty`",
    first_seen="Qwen3's rotary frequencies in SkyRL, and LlamaFactory's `init_on_rank0`",
    since="models were first built on the meta device (torch 1.13)",
    until="not fixed: `to_empty` allocates every buffer anew, and `persistent=False` leaves it out of the state dict",
    checkpointing=("off",),  # which has no part in how a model is built
    variants=(
        Variant("broken", strategies=("single", "ddp", "zero[0123]", "fsdp1-full", "fsdp2")),
        *variants("sent persistent initialised real_buffers kept", strategies=SOME),
    ),
    claims={
        LF: helps("send rank 0's buffers, those of no state dict too", "broken", remedy="sent"),
        "https://github.com/pytorch/torchtitan/pull/201": helps(
            "register them with `persistent=True`", "broken", remedy="persistent"
        ),
        SKYRL: helps("`model.initialize_weights()` after `to_empty`", "broken", remedy="initialised"),
        COSMOS: (
            helps("`init_empty_weights(include_buffers=False)`", "broken", remedy="real_buffers"),
            helps("that, and only parameters made empty", "broken", remedy="kept"),
        ),
    },
)


def scenario(remedy, setup):
    import torch
    from torch import distributed

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    def on_meta(config, kind):
        """As a rank builds it that has no weights. What was in memory is nan here, so that every run is alike."""
        if remedy in ("real_buffers", "kept"):
            from accelerate import init_empty_weights

            with init_empty_weights(include_buffers=False):
                model = kind(config)
        else:
            with torch.device("meta"):
                model = kind(config)
        torch.use_deterministic_algorithms(True)  # which fills memory that nobody wrote with nan
        try:
            if remedy == "kept":
                for module in model.modules():
                    for name, weight in module.named_parameters(recurse=False):
                        setattr(module, name, torch.nn.Parameter(torch.empty_like(weight, device=setup.device)))
                model.tie_weights()
            else:
                model.to_empty(device=setup.device)
        finally:
            torch.use_deterministic_algorithms(False)
        if remedy == "initialised":
            model.initialize_weights()
        return model

    model = qwen2()
    if not setup.reference and distributed.is_initialized():
        if setup.rank:
            model = on_meta(model.config, type(model))
        if remedy == "persistent":
            for module in model.modules():
                module._non_persistent_buffers_set = set()
        tensors = model.state_dict().values() if remedy != "sent" else [*model.parameters(), *model.buffers()]
        for tensor in tensors:
            distributed.broadcast(tensor.detach(), 0)
    return Scenario(model, causal_lm_loss, text_batch)
