"""What a failure's file builds for the ranks: a model, its batches and its loss."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import torch

from faultline.base.errors import LACKS, Impossible

LR = 0.05
MOMENTUM = 0.9


@dataclass(frozen=True)
class Scenario:
    """A model, a loss and the batches of each rank; it knows nothing of strategies.

    `batch(number, rank, world_size)` gives a rank its rows of the global batch:
    rank 0 of 1 gets all of them. `loss(model, batch)` must be scaled so that the
    mean over the ranks, and over a step's micro-batches, is the loss of the global batch. `check(model, batch)`
    runs once before training, on the wrapped model, and may raise. `checkpoint(model, mode)` sets the
    checkpointing mode where `gradient_checkpointing_enable` is not meant.
    `around()` is held open from a forward pass until its backward pass has ended.
    `second(accelerator)` prepares a model that is only read and gives it back;
    the scenario then trains through accelerate, as it does where `accelerate` says so. `deepspeed` changes the config
    that a ZeRO strategy takes from its file, and `keywords` has more arguments of torch's engines, by the family of the
    strategy, or under `accelerator` those of accelerate's. `scheduler(optimizer)` makes a schedule, which accelerate
    prepares with the model. `observer` (see `observer.Observer`) sees what the model's modules do.

    `same_rows` says that each rank has the same rows, which is the failure; then others are no evidence of it.

    A step has `micro_batches`, numbered through all steps; the last step has `last_window` of them, unless that is 0.
    The engine itself accumulates their gradients, unless `by_hand(model, last)` is there: then each is a forward and a
    backward pass with that held open around it, as a loop of one's own has it, and the engine knows of none.
    `optimizer(model)` makes the optimizer where it isn't `sgd`, once the model is wrapped (DeepSpeed wants it before).
    `loop(wrapped)` changes what the loop does with an engine, such as clipping before the step. `before_step(model,
    step)` runs between the steps; a bare model that it gives back is wrapped again, with an optimizer of its own, and
    trains on. A reference whose micro-batches are the `shares` of so many ranks gives each of them the same state of
    the model to begin with, and of what the loss keeps `beside` it. `whole(model)` is how far the loss of all rows is
    from the mean of the ranks' losses.

    In a life that is resumed, `keep(save, wrapped, folder)` and `resume(load, wrapped, folder)` are there where a loop
    has a checkpoint of its own. Every rank calls them. `save()` and `load()` are what the engine's users do.
    """

    model: torch.nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    batch: Callable[[int, int, int], Any]
    check: Callable[[Any, Any], None] | None = None
    checkpoint: Callable[[Any, str], None] | None = None
    around: Callable[[], AbstractContextManager[Any]] | None = None
    second: Callable[[Any], torch.nn.Module] | None = None
    deepspeed: dict[str, object] = field(default_factory=dict)
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    observer: Any = None
    same_rows: bool = False
    accelerate: bool = False
    micro_batches: int = 1
    last_window: int = 0
    shares: int = 0
    beside: Sequence[Any] = ()
    whole: Callable[[Any], float] | None = None
    by_hand: Callable[[Any, bool], AbstractContextManager[Any]] | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    loop: Callable[[Any], Any] | None = None
    before_step: Callable[[Any, int], torch.nn.Module | None] | None = None
    keep: Callable[[Callable[[], None], Any, Path], None] | None = None
    resume: Callable[[Callable[[], None], Any, Path], None] | None = None


@contextmanager
def building() -> Iterator[None]:
    """While a failure builds its model, batches or trainer: what its stack lacks makes its cells impossible."""
    try:
        yield
    except ImportError as error:
        reason = " ".join(str(error).split(" (/")[0].split())
        raise Impossible(f"{LACKS}{reason}") from error


def sgd(model: Any) -> torch.optim.Optimizer:
    """SGD with momentum, of what is trained: Adam would hide a gradient that is off by a factor."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR, momentum=MOMENTUM)


def my_rows(values: Any, rank: int, world_size: int) -> Any:
    """This rank's contiguous share of the global batch, of a sequence or a tensor of rows."""
    return values[rank * len(values) // world_size : (rank + 1) * len(values) // world_size]


class TokenBatch(TypedDict):
    """Padded rows of tokens [B, T].

    `scale` makes the mean over ranks of ``sum of token losses * scale`` the
    token mean of the global batch, however unequal the ranks' token counts.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    scale: float


def token_batch(rows: list[list[int]], rank: int, world_size: int, pad: int = 0) -> TokenBatch:
    """This rank's rows, padded, as input_ids and labels [B, T]."""
    width, tokens = max(map(len, rows)), sum(len(row) - 1 for row in rows)
    share = my_rows(rows, rank, world_size)
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in share])
    ids, mask = labels.masked_fill(labels < 0, pad), (labels >= 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "scale": world_size / tokens}


# In an exported file, in place of `token_batch`: what fails at once needs no other rows.
def random_batch(rows: list[list[int]], rank: int, world_size: int) -> TokenBatch:
    """This rank's own random rows, as input_ids and labels [B, T]."""
    ids = torch.randint(12, 48, (4 // world_size, 32), generator=torch.Generator().manual_seed(rank))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "scale": 1 / ids.numel()}


def next_token_loss(logits: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    """Scaled sum of next-token losses for logits [B, T, vocabulary]."""
    predicted, labels = logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(predicted, labels, reduction="sum") * batch["scale"]


def causal_lm_loss(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Scaled sum of a causal language model's next-token losses."""
    return next_token_loss(model(input_ids=batch["input_ids"]).logits, batch)


def checkpoint_layers(model: Any, mode: str) -> None:
    """torch.utils.checkpoint around every decoder layer of a PeftModel, as models of one's own have it."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(hidden_states: torch.Tensor, **others: Any) -> Any:
            return checkpoint(partial(forward, **others), hidden_states, use_reentrant=mode == "reentrant")

        return run

    for layer in model.get_base_model().model.layers if mode != "off" else ():
        layer.forward = checkpointed(layer.forward)


def divergence(logits: torch.Tensor, other: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    """Scaled sum of the KL divergence between what two models predict at each token, of logits [B, T, vocabulary]."""
    predicted, wanted = logits.float().log_softmax(-1), other.float().log_softmax(-1)
    terms = torch.nn.functional.kl_div(predicted, wanted, log_target=True, reduction="none")
    return (terms * batch["attention_mask"].unsqueeze(-1)).sum() * batch["scale"]


def share_dropout(model: torch.nn.Module) -> None:
    """Give every token the same dropout mask wherever its row runs and however it is padded.

    Dropout stays in force with its own rate; the mask over channels is drawn
    once for each module, so that a run in one process and a run on several
    ranks, whose trainers shuffle and pad rows in ways of their own, can be compared.
    """

    def keyed(module: torch.nn.Dropout, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(x: torch.Tensor) -> torch.Tensor:
            if not module.training or module.p == 0:
                return x
            generator = torch.Generator().manual_seed(seed)
            mask = torch.rand(x.shape[-1], generator=generator) >= module.p
            return x * mask.to(x.device, x.dtype) / (1 - module.p)

        return forward

    for seed, module in enumerate(m for m in model.modules() if isinstance(m, torch.nn.Dropout)):
        module.forward = keyed(module, seed)


def to(batch: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """A batch, nested or not, on the device; numbers that are not whole as `dtype`, if there is one."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if dtype and tensor.is_floating_point() else tensor.dtype)

    return mapped(batch, moved)


def mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch of the same kind with every tensor changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: mapped(value, change) for key, value in batch.items()}
        try:
            return type(batch)(changed)  # type: ignore[call-arg]
        except TypeError:
            return changed
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(mapped(value, change) for value in batch)
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        values = {field.name: mapped(getattr(batch, field.name), change) for field in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **values)
    return batch
