"""DPO with `precompute_ref_log_probs` and a data set in memory: other ranks can't open what rank 0 has cached."""

from faultline.catalogue import Claim, Failure, Mechanism, Variant

FIX = "https://github.com/huggingface/trl/pull/6348"
LOOK = "a data set of `Dataset.from_list` or `Dataset.from_dict`"

OFF = ("off",)  # checkpointing has no part in where a data set is cached
SOME = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")

FAILURE = Failure(
    title="`precompute_ref_log_probs` with a data set in memory: other ranks can't open what rank 0 has cached",
    records=(
        "https://github.com/huggingface/trl/issues/6291",
        FIX,
        "https://github.com/huggingface/trl/pull/6293",
        "https://github.com/huggingface/trl/pull/6292",
        "https://github.com/huggingface/trl/pull/5906",
        "https://github.com/huggingface/trl/pull/5909",
        "https://github.com/huggingface/trl/issues/2423",
    ),
    since="June 2026, with trl's pull request 5906",
    until="closed upstream in July 2026, and open with trl 1.16.0 on two ranks or more",
    upstream="huggingface/trl",
    report="dpo-broken/*",
    signatures={"not-my-cache": r"Failed to open local file '(?:.*hf_datasets-[^/]*/cache-[^/]*\.arrow|<path>)'"},
    # Files of that name are missing for other reasons too: from a pickle, say, whose process has ended.
    context={
        "not-my-cache": r"\btrl/[\w/]+\.py\", line \d{1,6}, in _precompute_ref_logps\n[^\n]*\bDataset\.from_file\("
    },
    told_by={"not-my-cache": "TRL's `_precompute_ref_logps`, in which `Dataset.from_file` opens the file"},
    mechanism={
        "not-my-cache": Mechanism(
            "a data set in memory is cached in a temporary folder that each process makes for itself: another process,"
            " which has a folder of its own, can't open the file by its name",
            r"datasets/arrow_dataset\.py\", line \d{1,6}, in from_file\b",
        )
    },
    variants=(
        Variant(
            "broken", checkpointing=OFF, package="trl", look="a cache file of an in-memory data set, for all ranks"
        ),
        Variant("from_disk", strategies=SOME, checkpointing=OFF),
        Variant("broken", "dpo", checkpointing=OFF, package="trl", needs=("precompute_ref_log_probs",), look=LOOK),
        *(Variant(remedy, "dpo", SOME, checkpointing=OFF) for remedy in ("from_disk", "from_file", "not_precomputed")),
    ),
    claims={
        "a": Claim(
            "`save_to_disk`, and `load_from_disk` on all ranks",
            swap={"remedy": "from_disk"},
            general="`save_to_disk`, and `load_from_disk` on all ranks",
        ),
        "b": Claim(
            "a data set that is loaded from a file",
            swap={"remedy": "from_file"},
            where={"variant": "dpo-broken"},
        ),
        "c": Claim(
            "a `TMPDIR` that all ranks share",
            kind="present",
            where={"variant": "*broken", "strategy": "[dzf]*", "world_size": "2"},
        ),
        "d": Claim(
            "a newer trl, up to 1.16.0",
            kind="present",
            where={"variant": "dpo-broken", "strategy": "[dzf]*", "world_size": "2"},
            source=FIX,
        ),
        "e": Claim(
            "`precompute_ref_log_probs=False`",
            swap={"remedy": "not_precomputed"},
            where={"variant": "dpo-broken"},
        ),
    },
)


def scenario(remedy, setup):
    """The mechanism alone, before training: rank 0 maps the data set into a cache file, and all ranks open it."""
    from datasets import Dataset

    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch, text_dataset
    from tiny_models.qwen2 import qwen2

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

    if setup.rank == 0:
        data.save_to_disk(f"{setup.folder}/data")
    wait()
    return load_from_disk(f"{setup.folder}/data")


def wait():
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def trainer(variant, arguments, setup):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from tiny_models.data import saved, turns
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

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
