"""DPO with `precompute_ref_log_probs` and a data set in memory: other ranks can't open what rank 0 has cached."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present, variants

SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
FIX = "https://github.com/huggingface/trl/pull/6348"

FAILURE = Failure(
    title="Other ranks can't open what rank 0 has cached of a data set in memory",
    first_seen="TRL's DPO trainer with `precompute_ref_log_probs=True`",
    since="June 2026, with trl's pull request 5906",
    until="closed upstream in July 2026, and open with trl 1.16.0 on two ranks or more",
    upstream="huggingface/trl",
    checkpointing=("off",),  # checkpointing has no part in where a data set is cached
    also_raises=("second-hpz-engine",),  # ref_model_reloaded_from_path
    errors={
        "not-my-cache": r"Failed to open local file "
        r"'(?:[^'\n]{0,300}hf_datasets-[^/'\n]{0,60}/cache-[^/'\n]{0,100}\.arrow|<path>)'"
    },
    variants=(
        Variant("from_disk", strategies=SOME),
        Variant("broken", trainer="dpo"),
        *variants("from_disk from_file not_precomputed", trainer="dpo", strategies=SOME),
    ),
    claims={
        FIX: present("a newer trl, up to 1.16.0", "dpo-broken/[dzf]*/*/fp32/w2", key="newer_trl"),
        TRIED_HERE: (
            helps("`save_to_disk`, and `load_from_disk` on all ranks", remedy="from_disk"),
            helps("a data set that is loaded from a file", "dpo-broken", remedy="from_file"),
            present("a `TMPDIR` that all ranks share", "*broken/[dzf]*/*/fp32/w2", key="TMPDIR"),
            helps("`precompute_ref_log_probs=False`", "dpo-broken", remedy="not_precomputed"),
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism alone, before training: rank 0 maps the data set into a cache file, and all ranks open it."""
    from datasets import Dataset

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch, text_dataset, wait

    def check(model, batch):
        data = text_dataset() if remedy == "broken" else on_disk(text_dataset(), setup)
        cache = data._get_cache_file_path("0123456789abcdef")
        if setup.rank == 0:
            data.map(
                lambda row: {"length": len(row["text"])}, cache_file_name=cache, new_fingerprint="0123456789abcdef"
            )
        wait()
        assert len(Dataset.from_file(cache)) == len(data)

    return Scenario(qwen2(), causal_lm_loss, text_batch, check=check)


def on_disk(data, setup):
    """The data set from a folder that rank 0 has saved it to."""
    from datasets import load_from_disk

    from tiny_models.kit import wait

    if setup.rank == 0:
        data.save_to_disk(f"{setup.folder}/data")
    wait()
    return load_from_disk(f"{setup.folder}/data")


def trainer(variant, arguments, setup):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from tiny_models.kit import qwen2, saved, tokenizer, turns, wait

    data = turns("prompt chosen rejected")
    if variant.remedy == "from_disk":
        data = on_disk(data, setup)
    elif variant.remedy == "from_file":
        if setup.rank == 0:
            data.to_json(f"{setup.folder}/data.jsonl")
        wait()
        data = Dataset.from_json(f"{setup.folder}/data.jsonl", cache_dir=f"{setup.folder}/cache")
    model = saved(qwen2(), setup)
    config = DPOConfig(**arguments, precompute_ref_log_probs=variant.remedy != "not_precomputed")
    return DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer())
