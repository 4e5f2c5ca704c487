"""A method, a child or the head's weight used outside of the forward pass of FSDP2's root."""

from faultline.catalogue import Claim, Failure, Mechanism, Reported, Turn, Variant

METHOD = "https://github.com/pytorch/pytorch/pull/125394"
TRL = "https://github.com/huggingface/trl/issues/6064"
TRL_FIX = "https://github.com/huggingface/trl/pull/6065"

OFF = ("off",)  # checkpointing has no part in where a call goes

FAILURE = Failure(
    title="A method, a child or a weight used outside the root's forward pass meets shards",
    records=(
        METHOD,
        "https://github.com/pytorch/pytorch/issues/109385",
        "https://github.com/pytorch/pytorch/issues/123962",
        "https://github.com/pytorch/pytorch/issues/100069",
        TRL,
        TRL_FIX,
        "https://github.com/huggingface/trl/pull/5873",
        "https://github.com/huggingface/trl/issues/6076",
        "https://github.com/huggingface/trl/pull/6077",
        "https://github.com/pytorch/pytorch/pull/117881",
    ),
    since="torch's fully_shard (2024), and FSDP1 and ZeRO-3 before it",
    until="not fixed: parameters are whole from the root's forward pass on, and DDP reduces what went through it",
    reported=Reported("trl-1.6.0", "sft-broken", "fsdp2", good="trl-1.7.0"),
    fixes=(
        Turn(
            "trl",
            "1.7.0",
            {"variant": "sft-broken", "strategy": "fsdp2"},
            "make reproduce FAILURE=fsdp2_method_or_child_outside_root_forward",
        ),
    ),
    report="sft-head_broken/fsdp2/*",
    upstream="huggingface/trl",
    signatures={
        "mixed-dtensor": r"got mixed torch.Tensor and DTensor",
        # A child that ran first: as FSDP2 tells it, and FSDP1.
        "lazily-initialized": r"FSDP state has already been lazily initialized for"
        r"|Non-root FSDP instance's `_is_root` should not have been set yet",
        # FSDP1 and ZeRO-3, whose shards are flat or empty.
        "sharded-weight": r"'weight' must be 2-D|size mismatch, got input \(\d+\), mat \(\d+x\d+\), vec \(\d+\)",
        # FSDP1 in NO_SHARD computes with whole weights, and refuses to show them when units ran without their root.
        "units-without-root": r"Cannot manually unshard parameters during forward/backward",
    },
    context={
        # In the forward pass: what runs again in backward went through the root before.
        "mixed-dtensor": r"(?s)\A(?!.*, in (?:unpack_hook|recompute_fn|_engine_run_backward)\b)"
        r"(?=.*aten\.(?:addmm|mm|linear|t)\.default)",
        # A head's weight in a loss of one's own, a method of what is wrapped, or a part of it; or a head or embedding
        # that something other than its model calls, and no wrapper's forward pass above.
        "sharded-weight": r"(?s)\A(?:.*(?:[\w)]\.lm_head\.weight\b(?!['\":])|\.module\.|\.score\()|"
        r"(?!.*(?:fully_sharded_data_parallel|runtime/engine)\.py\", line \d{1,6}, in forward)"
        r"(?=.*(?<!self)\.(?:lm_head|embed_tokens)\())",
    },
    elsewhere=("released-weight",),  # a head that TRL gathers for its loss, and ZeRO-3 releases before backward
    told_by=dict.fromkeys(
        ("sharded-weight", "mixed-dtensor"),
        "a method or a part of the model that is called, or `lm_head.weight` that is read",
    ),
    mechanism={
        "sharded-weight": Mechanism(
            "a weight in shards, used where no wrapper's forward pass has gathered it",
            r"(?s)\A(?!.*(?:fully_sharded_data_parallel|runtime/engine|generation/utils)\.py\", line \d)"
            r"(?=.*/modeling_\w+\.py\", line \d{1,6}, in forward)(?=.*F\.embedding\()",
        ),
        "mixed-dtensor": Mechanism(
            "a weight in shards, used where no forward pass of FSDP2's root has gathered it",
            r"(?s)\A(?!.*(?:generation/utils|trl/trainer/\w+)\.py\", line \d)"
            r"(?=.*/modeling_\w+\.py\", line \d{1,6}, in forward)(?=.*aten\.embedding\.default)",
        ),
    },
    variants=(
        Variant(
            "broken", checkpointing=OFF, look="a method of the model, other than `forward`, that computes the loss"
        ),
        Variant("head_broken", checkpointing=OFF, look="`lm_head.weight` in a loss of one's own"),
        Variant(
            "early_head_broken",
            checkpointing=OFF,
            strategies=("single", "ddp", "zero3", "fsdp*"),
            look="`lm_head.weight` read before the forward pass",
        ),
        Variant("child_broken", checkpointing=OFF, look="a part of the model that runs before the model"),
        Variant("redirected", checkpointing=OFF),
        Variant("registered", checkpointing=OFF, strategies=("fsdp2*",)),
        Variant("full_tensor", checkpointing=OFF, strategies=("fsdp2*",)),
        Variant(
            "broken",
            trainer="sft",
            checkpointing=OFF,
            strategies=("single", "ddp", "zero3", "fsdp2"),
            needs=("adapter",),
        ),
        Variant(
            "head_broken",
            trainer="sft",
            checkpointing=OFF,
            strategies=("single", "ddp", "zero3", "fsdp2*"),
            needs=("adapter", "trained head"),
        ),
        Variant("head_of_logits", trainer="sft", checkpointing=OFF, strategies=("single", "fsdp2")),
    ),
    claims={
        "a": Claim(
            "redirect the root's `forward` to the method (`_ForwardRedirection`)",
            swap={"remedy": "redirected"},
            where={"variant": "broken"},
            general="call the wrapper, and do in its forward pass all that reads its weights (`_ForwardRedirection`)",
        ),
        "b": Claim(
            "`register_fsdp_forward_method(model, name)`",
            swap={"remedy": "registered"},
            where={"variant": "broken", "strategy": "fsdp2*"},
            source=METHOD,
        ),
        "c": Claim(
            "`lm_head.weight.full_tensor()` once, before the loss is computed",
            swap={"variant": "full_tensor"},
            where={"variant": "early_head_broken", "strategy": "fsdp2*"},
        ),
        "d": Claim(
            "`unwrap_model` first",
            kind="present",
            where={"variant": "broken", "strategy": "fsdp*"},
        ),
        "e": Claim(
            "`reshard_after_forward=False`",
            swap={"strategy": "fsdp2-no-reshard"},
            where={"strategy": "fsdp2", "variant": "*broken"},
        ),
        "f": Claim("a newer TRL (1.16.0)", swap={"stack": "today"}, where={"variant": "sft-*broken"}, source=TRL_FIX),
        "g": Claim(
            "a `compute_loss_func` of one's own, to which `SFTTrainer` gives the logits",
            swap={"remedy": "head_of_logits"},
            where={"variant": "sft-head_broken", "strategy": "fsdp2"},
        ),
    },
)


def bare(model):
    """What `unwrap_model` gives: of FSDP2 the same object."""
    return getattr(model, "module", model)


def logits_of(model, input_ids):
    return model.lm_head(model.model(input_ids=input_ids).last_hidden_state)


def by_method(model, input_ids):
    return bare(model).logits_of(input_ids)


def by_head(model, input_ids):
    hidden = model(input_ids=input_ids, output_hidden_states=True).hidden_states[-1]
    return hidden @ bare(model).lm_head.weight.T


def by_early_head(model, input_ids):
    weight = bare(model).lm_head.weight
    return model(input_ids=input_ids, output_hidden_states=True).hidden_states[-1] @ weight.T


def by_whole_head(model, input_ids):
    weight = bare(model).lm_head.weight
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return model(input_ids=input_ids, output_hidden_states=True).hidden_states[-1] @ weight.T


def by_forward(model, input_ids):
    return model(input_ids=input_ids).logits


def redirected(model, input_ids):
    from trl.models.utils import _ForwardRedirection

    return _ForwardRedirection()(model, bare(model), bare(model).logits_of, input_ids)


WAYS = {
    "head_broken": by_head,
    "early_head_broken": by_early_head,
    "child_broken": by_forward,
    "redirected": redirected,
    "full_tensor": by_whole_head,
}


def scenario(remedy, setup):
    from types import MethodType

    from faultline.scenario import Scenario, next_token_loss, sgd
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    model = qwen2()
    model.logits_of = MethodType(logits_of, model)

    def loss(model, batch):
        return next_token_loss(WAYS.get(remedy, by_method)(model, batch["input_ids"]), batch)

    def registered(model):
        from torch.distributed.fsdp import register_fsdp_forward_method

        register_fsdp_forward_method(model, "logits_of")
        return sgd(model)

    return Scenario(
        model,
        loss,
        text_batch,
        optimizer=registered if remedy == "registered" else None,
        before_step=one_block_first if remedy == "child_broken" else None,
    )


def one_block_first(model, step):
    """Run the model's first block before the model, as one does to look at what it gives."""
    import torch

    if step:
        return
    body = bare(model).model
    device = next(model.parameters()).device
    hidden = torch.ones(1, 4, body.config.hidden_size, device=device)
    with torch.no_grad():
        body.layers[0](hidden, position_embeddings=body.rotary_emb(hidden, torch.arange(4, device=device)[None]))


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import add_lora, qwen2
    from tiny_models.tokenizer import tokenizer

    config = SFTConfig(**arguments, loss_type="chunked_nll")  # computes the loss from `lm_head.weight`, in chunks
    words, saved = tokenizer(padding_side="right"), ["lm_head"] if variant.remedy.startswith("head") else None
    others = {"compute_loss_func": loss_of_logits} if variant.remedy == "head_of_logits" else {}
    model = add_lora(qwen2(), modules_to_save=saved)
    return SFTTrainer(model, config, train_dataset=text_dataset(), processing_class=words, **others)


def loss_of_logits(outputs, labels, num_items_in_batch):
    """The same loss, from the logits that the whole forward pass gives."""
    import torch

    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / num_items_in_batch
