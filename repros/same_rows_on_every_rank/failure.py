"""A data loader that knows nothing of ranks gives each of them the same rows: more of them train on no more data."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps, trains, variants

DATASETS = "https://github.com/huggingface/datasets/issues/5360"
TORCH = "https://docs.pytorch.org/docs/stable/data.html"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
RANKS = SOME[1:]

FAILURE = Failure(
    title="Every rank trains on the same rows, because the data isn't divided among them",
    first_seen="streamed data sets in loops with DDP, and Lightning",
    since="whenever a data loader was first used on several ranks",
    until="not fixed: neither torch nor datasets asks for the rank, and nothing warns",
    upstream="huggingface/datasets",
    checkpointing=("off",),  # which has no part in the order of data
    variants=(
        Variant("broken", strategies=SOME),
        Variant("shuffled_broken", "", SOME, text="not streamed, and shuffled by one seed on all ranks"),
        *variants("split sampler own_seed prepared", "", SOME),
        Variant("streamed", "trainer", SOME, text="transformers' `Trainer` with a streamed data set"),
        Variant("split_and_prepared", "", RANKS, text="the stream is divided twice"),
        Variant("split_streamed", "trainer", RANKS, text="transformers' `Trainer` divides a stream that is divided"),
    ),
    claims={
        DATASETS: (
            helps("`datasets.distributed.split_dataset_by_node`", "broken", remedy="split"),
            trains("transformers' `Trainer`, which divides a streamed data set", "trainer-streamed"),
        ),
        TORCH: helps("`DistributedSampler`", "shuffled_broken", remedy="sampler"),
        "https://github.com/deepmodeling/deepmd-kit/pull/1032": helps(
            "a seed of its own for each rank's shuffling", "shuffled_broken", remedy="own_seed"
        ),
        "https://huggingface.co/docs/accelerate/concept_guides/internal_mechanism": helps(
            "a data loader that accelerate prepares", "broken", remedy="prepared"
        ),
        TRIED_HERE: (
            fails("`split_dataset_by_node`, and then accelerate's `prepare` as well", "split_and_prepared"),
            fails("`split_dataset_by_node`, and then transformers' `Trainer`", "trainer-split_streamed"),
        ),
    },
)


def rows():
    """Those of six steps, all as long, so that means need no weights."""
    from datasets import Dataset

    from tiny_models.kit import text_rows

    ids = [row[:20] for step in range(6) for row in text_rows(step)]
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def streamed(split, setup):
    """The rows as a stream, of which a rank takes its own if it is split."""
    from datasets.distributed import split_dataset_by_node

    stream = rows().to_iterable_dataset()
    return split_dataset_by_node(stream, setup.data_rank, setup.data_world) if split else stream


def scenario(remedy, setup):
    import torch
    from accelerate import PartialState
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader, DistributedSampler

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_rows, token_batch

    share, batches = len(text_rows(0)) // setup.data_world, []

    def collate(part):
        return torch.tensor([row["input_ids"] for row in part])

    def loader():
        if remedy in ("shuffled_broken", "own_seed"):
            seed = setup.data_rank if remedy == "own_seed" else 0
            order = torch.Generator().manual_seed(seed)
            return DataLoader(rows(), share, shuffle=True, generator=order, collate_fn=collate)
        if remedy == "sampler":
            data = rows()
            sampler = DistributedSampler(data, setup.data_world, setup.data_rank)
            return DataLoader(data, share, sampler=sampler, collate_fn=collate)
        plain = DataLoader(streamed(remedy in ("split", "split_and_prepared"), setup), share, collate_fn=collate)
        if setup.reference or remedy not in ("prepared", "split_and_prepared"):
            return plain
        PartialState(cpu=setup.device.type == "cpu")  # by which the data loader knows its ranks
        return prepare_data_loader(plain, setup.device, put_on_device=True)

    def batch(number, rank, world_size):
        if not batches:
            batches.append(iter(loader()))
        return token_batch(next(batches[0]).tolist(), 0, 1)

    return Scenario(qwen2(), causal_lm_loss, batch, same_rows="broken" in remedy)


def trainer(variant, arguments, setup):
    from transformers import Trainer, TrainingArguments

    from tiny_models.kit import qwen2

    split = {"streamed": False, "split_streamed": True}[variant.remedy]
    return Trainer(qwen2(), TrainingArguments(**arguments), train_dataset=streamed(split, setup))
