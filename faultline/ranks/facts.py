"""The facts of a model that its training shows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

Names = tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What was seen, by name. Of a run in one process all hold, under a strategy `apart`, `collectives`, `entered` and
    `inside`.

    - `model`: the class of the model; empty where nothing was seen. In JSON it is ``class``.
    - `no_gradient`, `zero_gradient`: trainable parameters in no step of which one came
    - `several_calls`: modules that run more than once in a forward pass
    - `frozen_input`: blocks that train on inputs without a graph, and what the model's own reentrant checkpoints cut
      off for that (see `checkpointing.CutOff`)
    - `unfrozen`: parameters that require gradients only since a step
    - `double_backward`: that a backward pass made a graph of itself, as a gradient penalty needs it
    - `own_backward`: that a loss runs a backward pass by itself
    - `input_gradient`: that a loss asks for a gradient by itself, which no parameter gets
    - `draws`: the lines of a forward pass that draw random numbers
    - `without_root`: modules that run where the model's own forward pass doesn't
    - `without_unit`: blocks whose parts run where their own forward pass doesn't
    - `overlapping`: parameters that are other ones and share memory; `complex_valued`: those of complex numbers;
      `sparse`: those that get sparse gradients; `hooked`: those with hooks on their gradients
    - `of_loss`: trainable parameters that the loss has and the model hasn't
    - `unregistered`: attributes that hold trainable weights as plain tensors, or in a plain list or dictionary
    - `collectives`: those that a rank's model or loss calls by itself, with their places
    - `units`: the classes of modules of which FSDP makes units
    - `whole_apart`: how far the loss of all rows is from the mean of the ranks' losses, relative to the larger
    - `moved_by_hand`: parameters that require no gradients, and that a forward pass moves
    - `written`: trainable parameters that a forward pass writes; `left_out`: those that get a gradient in some steps,
      and none in a later one
    - `written_inputs`: modules that write an input in place, which is read again after them
    - `left_unlike`: attributes of modules, other than buffers, in which each rank's rows leave another value
    - `not_saved`: attributes of modules, and buffers that no state dict has, which a forward pass changes
    - `unlike_buffers`: buffers in which each rank's rows leave another value, but for those of `batch_statistics`
    - `read_outside`: parameters that are read where no forward pass of their module runs
    - `entered`: the classes of the model and of what is around it whose forward passes ran
    - `unequal`: modules that run for some ranks' rows only in a step; `unlike_order`: those that run for all, but
      in another order
    - `batch_statistics`: modules that normalise by the statistics of a rank's rows
    - `tied`: the names of one parameter; `apart`: those of them that aren't one any more
    - `order`: all modules as they run; `inside`: the innermost module whose forward pass did not end
    - `not_fed`: what a made-up batch leaves out, and why; `cast`: the types of weights that were made fp32
    - `checkpointing`, `noise`: of a reference, its mode and how far rounding moves its gradients
    """

    model: str = ""
    parameters: int = 0
    trainable: int = 0
    no_gradient: Names = ()
    zero_gradient: Names = ()
    several_calls: Names = ()
    frozen_input: Names = ()
    unfrozen: Names = ()
    double_backward: bool = False
    own_backward: bool = False
    input_gradient: bool = False
    draws: Names = ()
    without_root: Names = ()
    without_unit: Names = ()
    overlapping: Names = ()
    complex_valued: Names = ()
    sparse: Names = ()
    hooked: Names = ()
    of_loss: Names = ()
    unregistered: Names = ()
    collectives: Names = ()
    units: Names = ()
    whole_apart: float = 0.0
    moved_by_hand: Names = ()
    written: Names = ()
    left_out: Names = ()
    written_inputs: Names = ()
    left_unlike: Names = ()
    not_saved: Names = ()
    unlike_buffers: Names = ()
    read_outside: Names = ()
    entered: Names = ()
    unequal: Names = ()
    unlike_order: Names = ()
    batch_statistics: Names = ()
    tied: tuple[Names, ...] = ()
    apart: tuple[Names, ...] = ()
    order: Names = ()
    inside: str | None = None
    not_fed: Names = ()
    cast: Names = ()
    checkpointing: str = "off"
    noise: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.model)

    def as_json(self) -> Mapping[str, object]:
        """The mapping that JSON has; empty where nothing was seen."""
        values = asdict(self)
        return {"class": values.pop("model"), **values} if self else {}


def not_in_all(every: Sequence[set[str]]) -> set[str]:
    """What some of these sets have, and not all."""
    return set[str]().union(*every) - every[0].intersection(*every) if every else set()


def not_in_one_order(every: Sequence[Iterable[str]]) -> set[str]:
    """What all of these have, but not in the same place among what all have."""
    common = set[str]().union(*every[:1]).intersection(*every)
    orders = [[name for name in each if name in common] for each in every]
    return {name for place in zip(*orders, strict=True) if len({*place}) > 1 for name in place}
