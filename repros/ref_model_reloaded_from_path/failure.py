"""Without a `ref_model` TRL's trainers read the reference from the policy's path: what was changed since is lost."""

import copy

from faultline.catalogue import TRIED_HERE, Failure, Variant, detects, helps, shows, trains, variants

SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
COLUMNS = {"dpo": "prompt chosen rejected", "kto": "prompt completion label", "grpo": "prompt"}

FAILURE = Failure(
    title="The reference model is read from the policy's path: changes in memory are lost",
    first_seen="TRL's DPO trainer, with an adapter that was trained before",
    since="February 2024, as reported",
    until="open with trl 1.16.0",
    upstream="huggingface/trl",
    checkpointing=("off",),  # checkpointing has no part in where a model comes from
    errors={
        "no-path": r"Repo id must|Incorrect path_or_model_id|not a valid model identifier",
        "no-zero3-copy": r"not compatible with `create_reference_model",
        "copied-shards": r"'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0",
        "no-default-adapter": r"KeyError: 'default'",
        # DeepSpeed makes hpZ's groups once in a process (utils/groups.py:939), and calls a method that only its stage 3
        # optimizer has where an engine has no optimizer (runtime/engine.py:2719): no second engine can be made.
        "second-hpz-engine": r"parallel group is already initialized|no attribute '_set_zero_group_parallelism'",
        "check": r"the first loss is \S+, not ln 2",
    },
    variants=(
        *variants("explicit saved_again", strategies=(*SOME, "fsdp1-full")),
        Variant("broken", "dpo"),
        Variant("loaded", "kto", SOME, text="an adapter that was trained before"),
        *variants("broken saved_again", "kto", SOME),
        *variants("broken saved_again", "grpo", SOME),
        Variant("loaded_broken", "dpo", SOME, text="the failure, with an adapter that was trained before"),
        Variant("loaded_ln_2", "dpo", SOME, text="an adapter that was trained before, with a check of the first loss"),
        Variant("no_path", "dpo", SOME, text="a model without a path"),
        *variants("explicit saved_again ln_2 peft", "dpo", SOME),
        Variant("two_adapters", "dpo", ("zero2", "zero3"), text="two adapters, one of them the reference"),
        *variants("deepcopy create", "dpo", ("ddp", "zero3")),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/840": helps("pass `ref_model=`", remedy="explicit"),
        "https://github.com/eric-mitchell/direct-preference-optimization/issues/46": detects(
            "the first loss shows it: it must be ln 2", "dpo-broken", remedy="ln_2"
        ),
        "https://github.com/huggingface/trl/pull/640": helps("an adapter (PEFT)", "dpo-broken", remedy="peft"),
        "https://github.com/huggingface/trl/issues/827": (
            helps("`ref_model=copy.deepcopy(model)`", "dpo-broken", remedy="deepcopy"),
            helps("`ref_model=create_reference_model(model)`", "dpo-broken", remedy="create"),
        ),
        "https://github.com/huggingface/trl/issues/1340": (
            trains("with an adapter loaded from disk the reference is a copy of it", "*-loaded*"),
            shows("two adapters, one of them the reference, neither named `default`, are refused", "dpo-two_adapters"),
        ),
        TRIED_HERE: (
            helps("save the changed policy and load it from there", remedy="saved_again"),
            shows("a model without a path is refused", "dpo-no_path"),
            helps("a newer TRL (0.29.0), for an adapter that was trained before", "dpo-loaded_broken", stack="today"),
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
    from tiny_models.kit import Scenario, qwen2, saved, text_batch
    from tiny_models.second import near, prepared_as_by_trl, second_model

    policy = change(saved(qwen2(), setup))
    if remedy == "saved_again":
        policy = saved(policy, setup, "changed")
    given = remedy == "explicit" or setup.reference
    reference = copy.deepcopy(policy) if given else type(policy).from_pretrained(policy.config._name_or_path)
    prepared, second = second_model(lambda accelerator: prepared_as_by_trl(accelerator, reference))

    return Scenario(policy, near(prepared), text_batch, second=second)


def trainer(variant, arguments, setup):
    """The real trainer, whose arguments come first: under ZeRO-3 the policy is loaded in shards then."""
    from faultline.trainers import from_trl
    from tiny_models.kit import GRPO, add_lora, letter_score, qwen2, saved, tokenizer, turns
    from tiny_models.second import first_loss_is_ln_2, with_saved_adapter

    name, remedy = variant.trainer.upper(), variant.remedy
    settings = {"grpo": {**GRPO, "beta": 0.1}, "kto": {"loss_type": "apo_zero_unpaired"}}.get(variant.trainer, {})
    made = from_trl(variant.trainer, f"{name}Config")
    if remedy == "two_adapters" and hasattr(made, "ref_adapter_name"):  # older releases ask which is which
        settings = {"model_adapter_name": "policy", "ref_adapter_name": "reference"}
    others = {"args": made(**{**arguments, **settings}), "train_dataset": turns(COLUMNS[variant.trainer])}
    if variant.trainer == "grpo":
        others["reward_funcs"] = letter_score
    again = setup.reference or remedy == "saved_again"
    model = saved(change(qwen2()), setup) if again else change(saved(qwen2(), setup))
    if remedy == "peft":
        model = add_lora(model)
    elif remedy.startswith("loaded") or remedy == "two_adapters":
        model = with_saved_adapter(setup, "policy" if remedy == "two_adapters" else "default")
        if setup.reference:  # by what it should be: the policy as it was loaded, in a model of its own
            others["ref_model"] = with_saved_adapter(setup).merge_and_unload()
        elif remedy == "two_adapters":
            model.load_adapter(f"{setup.folder}/adapter", adapter_name="reference")
    elif remedy == "explicit":
        others["ref_model"] = change(saved(qwen2(), setup))
    elif remedy in ("deepcopy", "create"):
        copied = copy.deepcopy if remedy == "deepcopy" else from_trl("models", "create_reference_model")
        others["ref_model"] = copied(model)
    elif remedy == "no_path" and not setup.reference:
        model.config._name_or_path = ""
    built = from_trl(variant.trainer, f"{name}Trainer")(model=model, processing_class=tokenizer(), **others)
    if remedy.endswith("ln_2") and not setup.reference:
        built.compute_loss = first_loss_is_ln_2(built.compute_loss)
    return built
