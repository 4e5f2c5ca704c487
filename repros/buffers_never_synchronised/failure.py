"""Buffers that the forward pass moves, such as BatchNorm's statistics or a moving average, differ between ranks."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, detects, helps, variants

MMDETECTION = "https://github.com/open-mmlab/mmdetection"
FAIRSCALE = "https://github.com/facebookresearch/fairscale/issues/68"
ENCODEC = "https://github.com/facebookresearch/encodec/issues/16"
ESPNET = "https://github.com/espnet/espnet/pull/6284"
RETINANET = "https://github.com/kuangliu/pytorch-retinanet/issues/18"
SOME = ("zero2", "zero3", "fsdp1-full", "fsdp2")
NORM = "batch_norm_broken"

FAILURE = Failure(
    title="Running statistics and moving averages differ between ranks under FSDP, ZeRO",
    first_seen="fairscale's sharded DDP, with a model that has BatchNorm",
    since="DeepSpeed (2020), torch's FSDP1 (2022) and fully_shard (2024)",
    until="not fixed: DDP broadcasts rank 0's buffers before each forward pass, and no other engine does",
    checkpointing=("off",),  # which has no part in it where the buffer's module isn't computed anew
    errors={"check": r"ranks hold different buffers"},
    variants=(
        Variant("broken", text="a moving average of the last hidden states"),
        Variant(NORM, "", ("ddp", *SOME), text="a BatchNorm in place of the last norm"),
        Variant("broken", "sft", ("single", "ddp", "zero3", "fsdp1-full", "fsdp2"), text="the same in TRL's SFT"),
        *variants("averaged all_reduced broadcast broadcast_late checked", "", SOME),
        *variants("group_norm frozen untracked cumulative", "", SOME),
    ),
    claims={
        FAIRSCALE: helps("broadcast rank 0's buffers before each forward pass, as DDP", "broken", remedy="broadcast"),
        ENCODEC: helps("average the buffers over the ranks after each backward pass", "broken", remedy="averaged"),
        ESPNET: helps("`all_reduce` in forward what the buffer is moved towards", "broken", remedy="all_reduced"),
        f"{MMDETECTION}/pull/4582": helps(
            "broadcast rank 0's buffers before the model is evaluated or saved", "broken", remedy="broadcast_late"
        ),
        f"{MMDETECTION}/issues/437": helps("BatchNorm in `eval()` while the rest trains", NORM, remedy="frozen"),
        RETINANET: helps("GroupNorm in place of BatchNorm", NORM, remedy="group_norm"),
        TRIED_HERE: (
            helps("`track_running_stats=False`", NORM, remedy="untracked"),
            helps("`momentum=None`, the plain mean over all batches", NORM, remedy="cumulative"),
            detects("compare the buffers between the ranks", "broken", remedy="checked"),
            helps("DDP instead of FSDP or ZeRO", "*broken", strategy="ddp"),
        ),
    },
)


def with_norm(model, remedy):
    """A BatchNorm over all tokens in place of the last norm, or what is recommended in its place."""
    import torch

    size, grouped = model.config.hidden_size, remedy == "group_norm"

    class TokenNorm(torch.nn.GroupNorm if grouped else torch.nn.BatchNorm1d):
        def forward(self, hidden):
            return super().forward(hidden.flatten(0, 1)).view_as(hidden)

    settings = {"momentum": None if remedy == "cumulative" else 0.1, "track_running_stats": remedy != "untracked"}
    norm = model.model.norm = TokenNorm(4, size) if grouped else TokenNorm(size, **settings)
    if remedy == "frozen":
        norm.eval().train = lambda mode=True: norm
    return model


def over_ranks(tensor):
    """A tensor, which becomes its mean over the ranks."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.all_reduce(tensor)
        tensor /= distributed.get_world_size()
    return tensor


def with_average(model, remedy):
    """A buffer [hidden size] that each forward pass moves towards the mean of its hidden states."""
    import torch

    def update(module, args, output):
        mean = output.last_hidden_state.detach().mean((0, 1)).to(module.average.dtype)
        module.average.lerp_(over_ranks(mean) if remedy == "all_reduced" else mean, 0.1)

    model.model.register_buffer("average", torch.zeros(model.config.hidden_size))
    model.model.register_forward_hook(update)
    return model


def scenario(remedy, setup):
    from contextlib import contextmanager

    from torch import distributed

    from faultline.base.errors import CheckFailed
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    normed = remedy in (NORM, "group_norm", "frozen", "untracked", "cumulative")
    model = (with_norm if normed else with_average)(qwen2(), remedy)
    shares = 2 if normed and setup.reference else 0

    def before(wrapped, step):
        if distributed.is_initialized() and (remedy == "broadcast" or (remedy == "broadcast_late" and step == 2)):
            distributed.broadcast(model.model.average, 0)
        if remedy == "checked" and not over_ranks(model.model.average.clone()).allclose(model.model.average):
            raise CheckFailed("ranks hold different buffers")

    @contextmanager
    def after():
        yield
        if remedy == "averaged":
            over_ranks(model.model.average)

    def batch(number, rank, world_size):
        return text_batch(number // 2, number % 2, 2) if shares else text_batch(number, rank, world_size)

    parts = shares or 1
    return Scenario(model, causal_lm_loss, batch, around=after, before_step=before, micro_batches=parts, shares=shares)


def trainer(variant, arguments, setup):
    from tiny_models.kit import qwen2, sft_trainer

    return sft_trainer(with_average(qwen2(), variant.remedy), arguments)
