"""The rows of each rank of somebody's own batch, and the loss of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from faultline.base.errors import Refused
from faultline.ranks.observer import Observer, tensors
from faultline.ranks.own_model import draws
from faultline.ranks.parameters import dense
from faultline.ranks.state import Snapshot
from faultline.scenario import mapped, my_rows, to
from faultline.strategies import ROWS, Setup


@dataclass(frozen=True)
class Rows:
    """The rows of a step's micro-batch, by its place among those of all ranks; with `last`, a process has no more."""

    place: int
    batch: Any
    last: bool = True
    step: int = 0


@dataclass(frozen=True)
class Share:
    """The loss of a rank's rows in one process, and these rows."""

    loss: torch.Tensor
    batch: Any


@dataclass(frozen=True)
class OneProcess:
    """What one process knows that trains in place of `world` ranks: the `shares` of a step so far."""

    world: int
    shares: list[Share] = field(default_factory=list)


def of(batch: Any, world: int, each: int, number: int, rank: int, world_size: int) -> Rows:
    """A rank's rows in one of the `each` micro-batches of a step; in the reference, those of one rank after the other.

    Half of a resized life has another `world_size` than the `world` whose rows the reference shares.
    """
    give = batch if callable(batch) else lambda step, rank, world: share(batch, rank, world)
    ranks, count = (world, world * each) if world_size == 1 else (world_size, each)
    step, place = divmod(number, count)
    last = place == count - 1
    place += rank * each
    return Rows(place, give(step, place, ranks * each), last, step)


def together(batch: Any, world: int, number: int, rank: int, world_size: int) -> Rows:
    """The rows of all ranks in a step as one batch; raises Refused where they can't be one."""
    every = [of(batch, world, 1, number, each, world).batch for each in range(world)]
    try:
        return Rows(0, joined(every), step=number)
    except (RuntimeError, ValueError) as error:  # each of another shape
        raise Refused(f"the rows of {world} ranks can't be put into one batch: {error}") from error


def loss_of(
    loss: Callable[..., Any],
    observer: Observer,
    setup: Setup,
    alone: OneProcess | None,
    model: Any,
    rows: Rows,
) -> torch.Tensor:
    """The loss of a rank's rows. Training on as many ranks takes the mean over shares, which a process `alone` has.

    So it does of gradients that a loss computes by itself.
    """
    # Numbers as bf16 where DeepSpeed made the model so, as Trainer does.
    dtype = next((parameter.dtype for parameter in model.parameters()), None)  # FSDP1 may have taken them away
    cast = dtype if dtype == torch.bfloat16 or observer.known.cast else None
    observer.share = rows.place
    before = {each: gradient.clone() for each, gradient in gradients(model).items()} if alone else {}
    batch = to(rows.batch, setup.device, cast)
    draws.seed(rows.step, rows.place, observer.generators)
    seeded = draws.states(observer.generators) if alone else ()
    observer.in_loss = True
    number = scalar(loss(model, batch))
    observer.in_loss = False
    if alone is None:
        return number
    observer.drew = observer.drew or draws.states(observer.generators) != seeded
    for parameter, gradient in gradients(model).items():
        was = before.get(parameter, torch.zeros_like(gradient))
        if not torch.equal(gradient, was):
            observer.own_backward = True
            parameter.grad = was + (gradient - was) / alone.world
    alone.shares.append(Share(number, rows.batch))
    if rows.last:
        trainable(alone.shares)
        alone.shares.clear()
    # A rank whose rows reach nothing that is trained has no part in the step, and is no error of one process.
    return number if number.requires_grad else number + torch.zeros((), requires_grad=True, device=number.device)


def gradients(model: torch.nn.Module) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Each gradient that there is; a sparse one as a dense copy."""
    return {each: each.grad.to_dense() for each in model.parameters() if each.grad is not None}


def whole_apart(
    loss: Callable[..., Any],
    observer: Observer,
    setup: Setup,
    give: Callable[[int, int, int], Rows],
    world: int,
    beside: Sequence[Any],
    model: Any,
) -> float:
    """How far the loss of all ranks' rows at once is from the mean of the ranks' losses, relative to the larger one.

    It is far where rows are seen together, as by a mean over tokens or by negatives of the batch. Each pass begins with
    one state of the model, and of what its loss keeps `beside` it. Where rows can't be put together, or the model takes
    no more of them, nothing is known, which is 0.
    """
    every = [give(rank, 0, 1).batch for rank in range(world)]
    start = Snapshot(model, beside=beside)

    def take(rank: int, batch: Any) -> float:
        start.restore()
        return loss_of(loss, observer, setup, None, model, Rows(rank, batch)).item()

    if observer.drew:
        with suppress(Exception):  # it ran before, so nothing is to be said of an error here
            observer.draws = draws.places(lambda: take(0, every[0]), observer.generators)
    try:
        with torch.no_grad():
            mean = sum(take(rank, batch) for rank, batch in enumerate(every)) / world
            whole = take(0, joined(every))
        apart = abs(whole - mean) / (max(abs(whole), abs(mean)) or 1.0)
        return apart if math.isfinite(apart) else 0.0  # training may have driven it out of what a number holds
    except Exception:  # noqa: BLE001 - a batch of another size is nobody's promise
        return 0.0


def joined(batches: Sequence[Any]) -> Any:
    """The rows of several batches as one; what is no row, such as a number, is that of the first."""
    columns = iter([*zip(*map(tensors, batches), strict=True)])

    def together(tensor: torch.Tensor) -> torch.Tensor:
        parts = next(columns)
        return torch.cat(parts) if tensor.ndim else tensor

    return mapped(batches[0], together)


def trainable(shares: Sequence[Share]) -> None:
    """Refuse a step of one process that nothing can be held against, by its shares."""
    whole = torch.stack([part.loss.detach() for part in shares]).mean()
    if not any(part.loss.requires_grad for part in shares):
        raise Refused("the loss has no graph: no trainable parameter takes part in it, or it was detached")
    if not whole.isfinite():
        raise Refused(f"the loss is {whole.item()} in one process already, so there is nothing to compare")
    first, *others = shares
    if others and all(part.loss.item() == first.loss.item() and same_batch(part.batch, first.batch) for part in others):
        raise Refused("every rank has the same rows: give rows that differ, or a mix-up can't be seen")


def same_batch(one: Any, other: Any) -> bool:
    """Whether two batches have the same tensors. Losses alone don't say so: a head of zeros gives all rows the same."""
    pairs = zip_longest(tensors(one), tensors(other), fillvalue=torch.empty(0))
    return all(a.dtype == b.dtype and torch.equal(dense(a), dense(b)) for a, b in pairs)


def kind(value: Any) -> str:
    """What a value is, in words: an int, a float."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def share(batch: Any, rank: int, world_size: int) -> Any:
    """A rank's rows of a batch, nested or not: of every tensor its part along dimension 0."""

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:
            return tensor
        if dense(tensor) is not tensor:
            raise Refused(
                f"the batch has a sparse tensor {list(tensor.shape)}, which ranks can't share: give a function"
                " batch(step, rank, world_size)"
            )
        if len(tensor) % world_size:
            raise Refused(
                f"the batch has a tensor {list(tensor.shape)}, which {world_size} ranks can't share by its rows;"
                f" give {ROWS} rows, or a function batch(step, rank, world_size)"
            )
        return my_rows(tensor, rank, world_size)

    refuse_list(batch, next((len(tensor) for tensor in tensors(batch) if tensor.ndim), 0))
    if not any(True for _ in tensors(batch)):
        raise Refused(f"the batch is {kind(batch)} without a tensor: give tensors, in dictionaries or lists")
    return mapped(batch, part)


def refuse_list(batch: Any, rows: int) -> None:
    """Refuse a list that has an item for each of so many rows: what a rank gets of it, only a function can say."""
    if isinstance(batch, list) and len(batch) > 1:
        samples = all(isinstance(each, Mapping | tuple) and not _has_columns(each) for each in batch)
        plain = len(batch) == rows and all(isinstance(each, str | int | float) for each in batch)
        if samples or plain:
            what = "samples" if samples else "texts or numbers"
            raise Refused(
                f"the batch has a list of {len(batch)} {what}, which ranks can't share: give tensors with a row for"
                " each, or a function batch(step, rank, world_size)"
            )
    for part in batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ():
        refuse_list(part, rows)


def _has_columns(sample: Any) -> bool:
    """Whether all that a dictionary or tuple holds are tensors with rows."""
    values = sample.values() if isinstance(sample, Mapping) else sample
    return all(isinstance(each, torch.Tensor) and each.ndim for each in values)


def scalar(loss: Any) -> torch.Tensor:
    """A loss, or the one of a model's output; raises Refused for what can't be trained on."""
    number = loss if isinstance(loss, torch.Tensor) else getattr(loss, "loss", None)
    if number is None:
        what = "returns nothing" if loss is None else f"returns {kind(loss)}"
        raise Refused(f"the loss {what}: return a tensor with one number")
    if not isinstance(number, torch.Tensor):
        raise Refused(f"the loss is {kind(number)}: return the tensor, without `.item()`")
    if number.numel() != 1:
        raise Refused(f"the loss has the shape {list(number.shape)}: return one number, such as its mean")
    return number.reshape(())
