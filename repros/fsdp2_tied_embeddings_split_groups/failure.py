"""Tied embeddings in two groups of FSDP2: refused since torch 2.12, silently untied before."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

FIX = "https://github.com/huggingface/accelerate/pull/4171"

BISECT = (
    "make bisect FAILURE=fsdp2_tied_embeddings_split_groups PACKAGE=accelerate VARIANT=sft-broken STRATEGY=fsdp2"
    " OTHERS=fixed"
)
SFT = {"variant": "sft-broken", "strategy": "fsdp2*"}

OFF = ("off",)
MODES = ("off", "non-reentrant")  # the check comes before anything is recomputed, and reentrant does as these do
FSDP = ("fsdp2*",)
EVEN = 96  # rows of the embedding, which two or four ranks share evenly
ODD = 97
SPLIT_BY_HAND = {"variant": "broken", "strategy": "fsdp2*"}

FAILURE = Failure(
    title="Tied embeddings in two groups of FSDP2 are refused, and untied without a word before torch 2.12",
    records=(
        FIX,
        "https://github.com/huggingface/accelerate/pull/4015",
        "https://github.com/pytorch/pytorch/pull/176225",
        "https://github.com/pytorch/pytorch/pull/176257",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/3708",
        "https://github.com/huggingface/accelerate/pull/3154",
        "https://github.com/EvolvingLMMs-Lab/lmms-engine/pull/157",
    ),
    since="torch's fully_shard; the error since torch 2.12, and silent before",
    until="accelerate 1.15.0, which keeps tied weights in one group; by hand, one must",
    upstream="pytorch/pytorch",
    reported=Reported("accelerate-1.14.0", "sft-broken", "fsdp2"),
    began=(Turn("accelerate", "1.14.0", SFT, f"{BISECT} DIRECTION=introduced FROM=1.12.0 TO=1.14.0"),),
    fixes=(Turn("accelerate", "1.15.0", SFT, f"{BISECT} DIRECTION=fixed FROM=1.14.0"),),
    signatures={
        "shared-parameter": r"is shared with a parameter already managed by another FSDP group",
        # FSDP1, whose tied modules are two units.
        "flat-weight": r"size mismatch, got input \(\d+\), mat \(\d+x\d+\), vec \(\d+\)"
        r"|mat2 must be a matrix|'weight' must be 2-D",
    },
    # Or the head, called by its model within FSDP1's forward pass, where weights of other units alone are in shards.
    context={
        "flat-weight": r"(?s)\A(?:.*(?:tie_word_embeddings['\"]?[=: ]{1,3}[tT]rue|tie_weights|"
        r"[tT]ied (?:weights|embeddings))|"
        r"(?=.*fully_sharded_data_parallel\.py\", line \d{1,6}, in forward)"
        r"(?=.*, in forward\n *logits = self\.lm_head\())"
    },
    variants=(
        Variant("broken", checkpointing=MODES, look="tied embeddings of which one has an FSDP unit of its own"),
        Variant("one_group", checkpointing=OFF, strategies=("fsdp*",)),
        Variant("grouped_by_hand", checkpointing=OFF, strategies=("fsdp2",)),
        Variant("tied_again", checkpointing=OFF, strategies=FSDP),
        Variant("even_broken", checkpointing=OFF, strategies=FSDP),
        Variant("even_tied_again", checkpointing=OFF, strategies=FSDP),
        Variant("broken", trainer="sft", checkpointing=OFF, strategies=("single", "ddp", "zero3", "fsdp*")),
    ),
    claims={
        "a": Claim(
            "leave embedding and head in the root's group",
            swap={"remedy": "one_group"},
            where={"variant": "broken"},
        ),
        "b": Claim(
            "`fully_shard([embedding, head])`, one group for both",
            swap={"remedy": "grouped_by_hand"},
            where={"variant": "broken", "strategy": "fsdp2"},
        ),
        "c": Claim(
            "tie them again once the model is sharded",
            swap={"remedy": "tied_again"},
            where=SPLIT_BY_HAND,
        ),
        "c2": Claim(
            "tie them again once the model is sharded, with torch 2.11, if the ranks share the vocabulary unevenly",
            swap={"remedy": "tied_again", "stack": "torch-2.11.0"},
            where=SPLIT_BY_HAND,
        ),
        "c3": Claim(
            "tie them again once the model is sharded, with torch 2.11, if the ranks share the vocabulary evenly",
            swap={"remedy": "even_tied_again", "stack": "torch-2.11.0"},
            where={"variant": "even_broken", "strategy": "fsdp2*"},
        ),
        "d": Claim("accelerate 1.15.0 or newer", swap={"stack": "today"}, where={"variant": "sft-broken"}, source=FIX),
    },
)


def tied(rows):
    """A Qwen2 whose head is its embedding of as many rows, in the blocks that its class names."""
    from tiny_models.qwen2 import qwen2

    return qwen2(tie_word_embeddings=True, vocab_size=rows)


def scenario(remedy, setup):
    import torch

    from faultline.scenario import Scenario, causal_lm_loss, sgd
    from tiny_models.data import text_batch

    model = tied(EVEN if remedy.startswith("even_") else ODD)
    if remedy != "one_group":
        model._no_split_modules = [*model._no_split_modules, "Embedding"]
    if remedy == "grouped_by_hand" and torch.distributed.is_initialized():
        group_by_hand(model, setup)

    def tied_again(model):
        model.lm_head.weight = model.model.embed_tokens.weight
        return sgd(model)

    return Scenario(model, causal_lm_loss, text_batch, optimizer=tied_again if remedy.endswith("tied_again") else None)


def group_by_hand(model, setup):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model._no_split_modules = model._no_split_modules[:-1]
    mesh = init_device_mesh(setup.device.type, (setup.world_size,))
    fully_shard([model.model.embed_tokens, model.lm_head], mesh=mesh)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.tokenizer import tokenizer

    words = tokenizer(padding_side="right")
    return SFTTrainer(tied(EVEN), SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
