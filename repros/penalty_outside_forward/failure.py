"""A penalty on weights is added to the loss outside of the model's forward pass, where ranks have shards of them."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues/7464"
ZERO3 = "https://deepspeed.readthedocs.io/en/latest/zero3.html"
PEFT = "https://github.com/huggingface/peft/issues/3080"
TRL = "https://github.com/huggingface/trl/pull/6077"
SOME = ("single", "zero3*", "fsdp*")

FAILURE = Failure(
    title="A penalty on weights, computed outside of the forward pass, meets shards",
    first_seen="LOMO's trainer, with a penalty on the weights of `q_proj` under ZeRO-3",
    since="ZeRO-3 (2021) and FSDP1 (2022)",
    until="not fixed: a weight is whole while its module runs, and nowhere else",
    checkpointing=("off",),  # which has no part in what a rank holds outside of the forward pass
    errors={
        "empty-gradient": r"returned an invalid gradient at index \d+ - got \[0\] but expected shape compatible with",
        "mixed-dtensor": r"mixed torch\.Tensor and DTensor",
        # Whole when the penalty was computed and in shards when backward comes to it, or the other way round.
        "sharded-again": r"gradient at index \d+ - got \[[1-9][\d, ]*\] but expected shape compatible with \[\d"
        r"|size of tensor a \([1-9]\d*\) must match the size of tensor b \(0\)",
    },
    variants=(
        Variant("early_broken", "", SOME, text="a penalty that is computed before the forward pass"),
        Variant("orthogonal_broken", "", SOME, text="the penalty is how far W W^T is from the identity"),
        Variant("broken", "sft", ("single", "ddp", "zero3", "fsdp1-full", "fsdp2"), text="in `compute_loss`"),
        *variants("gathered gathered_throughout copied ds_tensor", strategies=("zero3*",)),
        *variants("summoned", strategies=("fsdp1*",)),
        *variants("full_tensor", strategies=("fsdp2*",)),
        *variants("squares hooks", strategies=SOME),
    ),
    claims={
        "https://github.com/OpenLMLab/LOMO/issues/52": (
            helps("`deepspeed.zero.GatheredParameters` around the penalty", remedy="gathered"),
            helps("the penalty of `weight.ds_tensor`, gathered by hand", remedy="ds_tensor"),
        ),
        DEEPSPEED: helps("the penalty of `safe_get_full_fp32_param(weight)`", remedy="copied"),
        ZERO3: helps("`GatheredParameters` around it, until backward has ended", remedy="gathered_throughout"),
        PEFT: helps("`FSDP.summon_full_params` around the penalty", remedy="summoned"),
        TRL: helps("the penalty of `weight.full_tensor()`", remedy="full_tensor"),
        TRIED_HERE: (
            helps("compute the penalty while the weight's module runs, in a forward hook", remedy="hooks"),
            helps("the sum of squares instead of the norm", remedy="squares"),
            helps("ZeRO-2", "broken/zero3*", strategy="zero2"),
            helps("`reshard_after_forward=False`", "*broken/fsdp2", strategy="fsdp2-no-reshard"),
        ),
    },
)


def penalty(weights, remedy="broken"):
    import torch

    if remedy == "orthogonal_broken":
        return 1e-4 * sum((w @ w.T - torch.eye(len(w), device=w.device)).pow(2).sum() for w in weights)
    return 0.1 * sum(weight.pow(2).sum() if remedy == "squares" else weight.norm() for weight in weights)


def scenario(remedy, setup):
    from contextlib import ExitStack

    import torch

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    model, hooked, until_backward_ends = qwen2(), [], ExitStack()
    linear = [module for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    changed = "" if setup.reference else remedy

    def read(weight):
        if changed == "full_tensor":
            return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        if changed == "ds_tensor":
            shards = [torch.empty_like(weight.ds_tensor) for _ in range(setup.world_size)]
            torch.distributed.all_gather(shards, weight.ds_tensor)
            return torch.cat(shards)
        if changed == "copied":
            from deepspeed.utils import safe_get_full_fp32_param

            return safe_get_full_fp32_param(weight)
        return weight

    def whole(wrapped):
        if changed in ("gathered", "gathered_throughout"):
            import deepspeed

            return deepspeed.zero.GatheredParameters([module.weight for module in linear])
        fsdp = torch.distributed.fsdp.FullyShardedDataParallel
        return fsdp.summon_full_params(wrapped) if changed == "summoned" else ExitStack()

    def now(wrapped):
        with ExitStack() as here:
            (until_backward_ends if remedy == "gathered_throughout" else here).enter_context(whole(wrapped))
            return penalty([read(module.weight) for module in linear], remedy)

    def loss(wrapped, batch):
        hooked.clear()
        early = now(wrapped) if remedy == "early_broken" else 0
        predicted = causal_lm_loss(wrapped, batch)
        return predicted + sum(hooked) + early + (0 if remedy in ("early_broken", "hooks") else now(wrapped))

    for module in linear if remedy == "hooks" else ():
        module.register_forward_hook(lambda module, args, output: hooked.append(penalty([module.weight])))
    return Scenario(model, loss, text_batch, around=lambda: until_backward_ends)


def trainer(variant, arguments, setup):
    from tiny_models.kit import qwen2, sft_trainer

    built = sft_trainer(qwen2(), arguments)
    compute_loss = built.compute_loss

    def penalised(model, *args, **kwargs):
        weights = [weight for name, weight in model.named_parameters() if "_proj.weight" in name]
        return compute_loss(model, *args, **kwargs) + penalty(weights)

    built.compute_loss = penalised
    return built
