"""Without a `ref_model` TRL's trainers read the reference from the policy's path: what was changed since is lost."""

import copy
import math
from pathlib import Path

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant
from faultline.errors import CheckFailed

ISSUE = "https://github.com/huggingface/trl/issues/1340"

OFF = ("off",)  # checkpointing has no part in where a model comes from
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
LOADED = {"variant": "dpo-loaded_broken"}
BISECT = (
    "make bisect FAILURE=ref_model_reloaded_from_path PACKAGE=trl VARIANT=dpo-loaded_broken STRATEGY=ddp"
    " CHECKPOINTING=off FROM=0.27.2 TO=1.0.0 DIRECTION=fixed"
)
TRAINED_BEFORE = "an adapter that was trained before, loaded to be trained on, and no `ref_model`"
LOOK = "a policy that is changed after `from_pretrained`, and no `ref_model`"

FAILURE = Failure(
    title="Without a `ref_model` the reference is read from the policy's path, not copied from the policy",
    records=(
        ISSUE,
        "https://github.com/huggingface/trl/issues/495",
        "https://github.com/huggingface/trl/issues/1005",
        "https://github.com/allenai/open-instruct/pull/355",
        "https://github.com/huggingface/trl/pull/5534",
        "https://github.com/huggingface/trl/issues/2046",
    ),
    since="February 2024, as reported",
    until="open with trl 1.16.0",
    upstream="huggingface/trl",
    report="dpo-broken/*",
    reported=Reported("trl-0.17.0", "dpo-loaded_broken", "ddp", good="trl-1.0.0"),
    fixes=(Turn("trl", "0.29.0", LOADED, BISECT),),
    signatures={
        "no-path": r"Repo id must|Incorrect path_or_model_id|not a valid model identifier",
        "no-zero3-copy": r"not compatible with `create_reference_model",
        "copied-shards": r"'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0",
        "no-default-adapter": r"KeyError: 'default'",
        "check": r"CheckFailed: .*not ln 2",
    },
    context={
        "no-path": r"trl/trainer/\w+\.py\", line \d{1,6}, in __init__\n *self\.ref_model = ",
        "no-default-adapter": r"peft_config\[.default.\]",
    },
    variants=(
        Variant("broken", checkpointing=OFF, needs=("reference model",), look=LOOK),
        Variant("explicit", strategies=(*SOME, "fsdp1-full"), checkpointing=OFF),
        Variant("saved_again", strategies=(*SOME, "fsdp1-full"), checkpointing=OFF),
        Variant("broken", "dpo", checkpointing=OFF, look=LOOK),
        Variant("broken", "kto", SOME, checkpointing=OFF, look=LOOK),
        Variant("broken", "grpo", SOME, checkpointing=OFF, needs=("reference model",), look=LOOK),
        *(Variant(each, "dpo", SOME, checkpointing=OFF) for each in ("explicit", "saved_again", "ln_2", "no_path")),
        Variant("peft", "dpo", SOME, checkpointing=OFF),
        Variant("loaded_broken", "dpo", SOME, checkpointing=OFF, needs=("adapter",), look=TRAINED_BEFORE),
        Variant("loaded", "kto", SOME, checkpointing=OFF),
        Variant("loaded_ln_2", "dpo", SOME, checkpointing=OFF),
        # It ends before there is a trainer: only what DeepSpeed was told shows by then under which strategy.
        Variant("two_adapters", "dpo", ("zero2", "zero3"), checkpointing=OFF),
        *(Variant(each, "dpo", ("ddp", "zero3"), checkpointing=OFF) for each in ("deepcopy", "create")),
        *(Variant("saved_again", each, SOME, checkpointing=OFF) for each in ("kto", "grpo")),
    ),
    claims={
        "a": Claim("save the changed policy and load it from there", swap={"remedy": "saved_again"}),
        "b": Claim("pass `ref_model=`", swap={"remedy": "explicit"}),
        "c": Claim(
            "the first loss tells: it must be ln 2",
            kind="detects",
            swap={"remedy": "ln_2"},
            where={"variant": "dpo-broken"},
        ),
        "d": Claim("an adapter (PEFT)", swap={"remedy": "peft"}, where={"variant": "dpo-broken"}),
        "e": Claim(
            "`ref_model=copy.deepcopy(model)`",
            swap={"remedy": "deepcopy"},
            where={"variant": "dpo-broken"},
            source="https://github.com/huggingface/trl/issues/827",
        ),
        "f": Claim(
            "`ref_model=create_reference_model(model)`",
            swap={"remedy": "create"},
            where={"variant": "dpo-broken"},
        ),
        "g": Claim("a model without a path is refused", kind="shows", where={"variant": "dpo-no_path"}),
        "h": Claim(
            "with an adapter loaded from disk the reference is a copy of it",
            kind="trains",
            where={"variant": "*-loaded*"},
            source=ISSUE,
        ),
        "i": Claim(
            "two adapters, one of them the reference, neither named `default`, are refused",
            kind="shows",
            where={"variant": "dpo-two_adapters"},
            source=ISSUE,
        ),
        "j": Claim(
            "a newer TRL (0.29.0), for an adapter that was trained before", swap={"stack": "today"}, where=LOADED
        ),
    },
)


def change(model):
    """What a user does to a policy in memory; under ZeRO-3 each rank has its shard."""
    weight = model.lm_head.weight
    getattr(weight, "ds_tensor", weight).data.mul_(3)
    return model


def scenario(remedy, setup):
    """The mechanism: a policy that stays near a reference, which is read from where the policy was read from."""
    import torch

    from faultline.scenario import Scenario, divergence, next_token_loss
    from tiny_models.data import saved, text_batch
    from tiny_models.qwen2 import qwen2

    policy = change(saved(qwen2(), setup))
    if remedy == "saved_again":
        policy = saved(policy, setup, "changed")
    if remedy == "explicit" or setup.reference:
        reference = copy.deepcopy(policy)
    else:
        reference = type(policy).from_pretrained(policy.config._name_or_path)
    prepared = {}

    def second(accelerator):
        prepared["reference"] = prepare(accelerator, reference)
        return prepared["reference"]

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            near = prepared["reference"](input_ids=batch["input_ids"]).logits
        return next_token_loss(logits, batch) + divergence(logits, near, batch)

    return Scenario(policy, loss, text_batch, second=second)


def prepare(accelerator, reference):
    """As the trainers prepare it."""
    from trl.models.utils import prepare_deepspeed, prepare_fsdp

    kind = accelerator.distributed_type.value
    if kind == "FSDP":
        return prepare_fsdp(reference, accelerator)
    if kind == "DEEPSPEED":
        return prepare_deepspeed(reference, accelerator)
    return accelerator.prepare_model(reference, evaluation_mode=True)


# What the policy's adapter is called.
ADAPTER = {**dict.fromkeys(("loaded", "loaded_broken", "loaded_ln_2"), "default"), "two_adapters": "policy"}
NAMES = {"dpo": "DPO", "kto": "KTO", "grpo": "GRPO"}


def trainer(variant, arguments, setup):
    """The real trainer, whose arguments come first: under ZeRO-3 the policy is loaded in shards then."""
    from faultline.trainer import from_trl
    from tiny_models.data import GRPO, letter_score, prompts, saved, turns
    from tiny_models.qwen2 import add_lora, qwen2
    from tiny_models.tokenizer import tokenizer

    name = NAMES[variant.trainer]
    settings = {"grpo": {**GRPO, "beta": 0.1}, "kto": {"loss_type": "apo_zero_unpaired"}}.get(variant.trainer, {})
    made = from_trl(variant.trainer, f"{name}Config")
    if variant.remedy == "two_adapters" and hasattr(made, "ref_adapter_name"):  # older releases are told which is which
        settings = {"model_adapter_name": "policy", "ref_adapter_name": "reference"}
    config = made(**{**arguments, **settings})
    others = {"processing_class": tokenizer(), "args": config}
    if variant.trainer == "grpo":
        others |= {"reward_funcs": letter_score, "train_dataset": prompts()}
    else:
        columns = {"dpo": "prompt chosen rejected", "kto": "prompt completion label"}[variant.trainer]
        others["train_dataset"] = turns(columns)
    if setup.reference or variant.remedy == "saved_again":
        model = saved(change(qwen2()), setup)
    else:
        model = change(saved(qwen2(), setup))
    if variant.remedy == "peft":
        model = add_lora(model)
    elif variant.remedy in ADAPTER:
        model = with_saved_adapter(saved(qwen2(), setup), setup, ADAPTER[variant.remedy])
        if setup.reference:  # by what it should be: the policy as it was loaded, in a model of its own
            others["ref_model"] = with_saved_adapter(saved(qwen2(), setup), setup).merge_and_unload()
        elif variant.remedy == "two_adapters":
            model.load_adapter(Path(setup.folder) / "adapter", adapter_name="reference")
    elif variant.remedy == "explicit":
        others["ref_model"] = change(saved(qwen2(), setup))
    elif variant.remedy == "deepcopy":
        others["ref_model"] = copy.deepcopy(model)
    elif variant.remedy == "create":
        from trl.models import create_reference_model

        others["ref_model"] = create_reference_model(model)
    elif variant.remedy == "no_path" and not setup.reference:
        model.config._name_or_path = ""
    built = from_trl(variant.trainer, f"{name}Trainer")(model=model, **others)
    if variant.remedy.endswith("ln_2") and not setup.reference:
        built.compute_loss = first_is_ln_2(built.compute_loss)
    return built


def with_saved_adapter(base, setup, name="default"):
    """The base with an adapter that was trained before, and is loaded from a folder to be trained on."""
    import torch
    from peft import PeftModel

    from tiny_models.qwen2 import add_lora, qwen2

    folder = Path(setup.folder) / "adapter"
    if setup.rank == 0:
        add_lora(qwen2()).save_pretrained(folder)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return PeftModel.from_pretrained(base, folder, adapter_name=name, is_trainable=True)


def first_is_ln_2(compute_loss):
    """The check that people recommend: policy and reference are equal in the first step."""

    losses = []

    def checked(*args, **kwargs):
        loss = compute_loss(*args, **kwargs)
        losses.append(float(loss.detach()))
        if abs(losses[0] - math.log(2)) > 1e-3:
            raise CheckFailed(f"the first loss is {losses[0]:.4f}, not ln 2")
        return loss

    return checked
