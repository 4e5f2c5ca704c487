"""Tied embeddings in two groups of FSDP2: refused since torch 2.12, silently untied before."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps

AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/pull/2213"
EVEN = 96  # rows of the embedding, which two or four ranks share evenly
ODD = 97

FAILURE = Failure(
    title="Tied weights in two FSDP2 groups: refused; before torch 2.12, silently untied",
    first_seen="models with tied embeddings, as accelerate 1.14 splits them",
    since="torch's fully_shard; the error since torch 2.12, and silent before",
    until="accelerate 1.15.0, which keeps tied weights in one group; by hand, one must",
    upstream="pytorch/pytorch",
    checkpointing=("off",),  # the check comes before anything is recomputed, and reentrant does as these do
    errors={
        "shared-parameter": r"already managed\s+by another FSDP\b",
        # FSDP1, whose tied modules are two units.
        "flat-weight": r"size mismatch, got input \(\d+\), mat \(\d+x\d+\), vec \(\d+\)"
        r"|mat2 must be a matrix|'weight' must be 2-D",
    },
    variants=(
        Variant("broken", checkpointing=("off", "non-reentrant")),
        Variant("one_group", strategies=("fsdp*",)),
        Variant("even_broken", strategies=("fsdp2*",), text="the failure, if the ranks share the vocabulary evenly"),
        Variant("broken", trainer="sft", strategies=("single", "ddp", "zero3", "fsdp*")),
    ),
    claims={
        "https://github.com/huggingface/accelerate/pull/4171": (
            helps("`fully_shard([embedding, head])`, one group for both", "broken/fsdp2", remedy="grouped_by_hand"),
            helps("accelerate 1.15.0 or newer", "sft-broken", stack="today"),
        ),
        AUTOMODEL: helps("tie them again once the model is sharded", "broken/fsdp2*", remedy="tied_again"),
        "https://github.com/pytorch/pytorch/issues/176076": (
            helps(
                "tie them again once the model is sharded, with torch 2.11, if the ranks share the vocabulary unevenly",
                "broken/fsdp2*",
                remedy="tied_again",
                stack="torch-2.11.0",
            ),
            helps(
                "tie them again once the model is sharded, with torch 2.11, if the ranks share the vocabulary evenly",
                "even_broken/fsdp2*",
                remedy="even_tied_again",
                stack="torch-2.11.0",
            ),
        ),
        TRIED_HERE: helps("leave embedding and head in the root's group", "broken", remedy="one_group"),
    },
)


def tied(rows):
    """A Qwen2 whose head is its embedding of as many rows, in the blocks that its class names."""
    from tiny_models.kit import qwen2

    return qwen2(tie_word_embeddings=True, vocab_size=rows)


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, causal_lm_loss, sgd, text_batch

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
    from tiny_models.kit import sft_trainer

    return sft_trainer(tied(EVEN), arguments)
