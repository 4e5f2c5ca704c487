"""Without a `ref_model` TRL's trainers read the reference from the policy's path: what was changed since is lost."""

import copy
import math
from pathlib import Path

from faultline.base.errors import CheckFailed
from faultline.catalogue import TRIED_HERE, Failure, Variant, detects, helps, shows, trains, variants

SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
ISSUE = "https://github.com/huggingface/trl/issues/1340"

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
    checkpointing=("off",),  # checkpointing has no part in where a model comes from
    errors={
        "no-path": r"Repo id must|Incorrect path_or_model_id|not a valid model identifier",
        "no-zero3-copy": r"not compatible with `create_reference_model",
        "copied-shards": r"'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0",
        "no-default-adapter": r"KeyError: 'default'",
        "check": r"CheckFailed: .*not ln 2",
    },
    variants=(
        *variants("explicit saved_again", strategies=("single", "ddp", "zero2", "zero3", "fsdp2", "fsdp1-full")),
        Variant("broken", trainer="dpo"),
        *variants("broken loaded saved_again", trainer="kto", strategies=SOME),
        *variants("broken saved_again", trainer="grpo", strategies=SOME),
        *variants("explicit saved_again ln_2 no_path peft loaded_broken", trainer="dpo", strategies=SOME),
        Variant("loaded_ln_2", trainer="dpo", strategies=SOME),
        Variant("two_adapters", trainer="dpo", strategies=("zero2", "zero3")),
        *variants("deepcopy create", trainer="dpo", strategies=("ddp", "zero3")),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/840": helps("pass `ref_model=`", remedy="explicit"),
        "https://github.com/eric-mitchell/direct-preference-optimization/issues/46": detects(
            "the first loss tells: it must be ln 2", remedy="ln_2", where="dpo-broken"
        ),
        "https://github.com/huggingface/trl/pull/640": helps("an adapter (PEFT)", remedy="peft", where="dpo-broken"),
        "https://github.com/huggingface/trl/issues/827": (
            helps("`ref_model=copy.deepcopy(model)`", remedy="deepcopy", where="dpo-broken"),
            helps("`ref_model=create_reference_model(model)`", remedy="create", where="dpo-broken"),
        ),
        ISSUE: (
            trains("with an adapter loaded from disk the reference is a copy of it", where="*-loaded*"),
            shows(
                "two adapters, one of them the reference, neither named `default`, are refused",
                where="dpo-two_adapters",
            ),
        ),
        TRIED_HERE: (
            helps("save the changed policy and load it from there", remedy="saved_again"),
            shows("a model without a path is refused", where="dpo-no_path"),
            helps(
                "a newer TRL (0.29.0), for an adapter that was trained before", stack="today", where="dpo-loaded_broken"
            ),
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

    from tiny_models.kit import Scenario, divergence, next_token_loss, qwen2, saved, text_batch
    from tiny_models.second import prepared_as_by_trl

    policy = change(saved(qwen2(), setup))
    if remedy == "saved_again":
        policy = saved(policy, setup, "changed")
    if remedy == "explicit" or setup.reference:
        reference = copy.deepcopy(policy)
    else:
        reference = type(policy).from_pretrained(policy.config._name_or_path)
    prepared = {}

    def second(accelerator):
        prepared["reference"] = prepared_as_by_trl(accelerator, reference)
        return prepared["reference"]

    def loss(model, batch):
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            near = prepared["reference"](input_ids=batch["input_ids"]).logits
        return next_token_loss(logits, batch) + divergence(logits, near, batch)

    return Scenario(policy, loss, text_batch, second=second)


# What the policy's adapter is called.
ADAPTER = {**dict.fromkeys(("loaded", "loaded_broken", "loaded_ln_2"), "default"), "two_adapters": "policy"}
COLUMNS = {"dpo": "prompt chosen rejected", "kto": "prompt completion label"}
NAMES = {"dpo": "DPO", "kto": "KTO", "grpo": "GRPO"}


def trainer(variant, arguments, setup):
    """The real trainer, whose arguments come first: under ZeRO-3 the policy is loaded in shards then."""
    from faultline.trainers import from_trl
    from tiny_models.kit import GRPO, add_lora, letter_score, prompts, qwen2, saved, tokenizer, turns

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
        others["train_dataset"] = turns(COLUMNS[variant.trainer])
    again = setup.reference or variant.remedy == "saved_again"
    model = saved(change(qwen2()), setup) if again else change(saved(qwen2(), setup))
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
    from peft import PeftModel

    from tiny_models.kit import add_lora, qwen2, wait

    folder = Path(setup.folder) / "adapter"
    if setup.rank == 0:
        add_lora(qwen2()).save_pretrained(folder)
    wait()
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
