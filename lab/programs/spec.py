"""A spec: which features a model and its training have, as a small record that is printed and stored."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base.errors import UsageError


def one_of(*values: Any) -> Any:
    """A field with all values that it may have, the plainest first: that is the default."""
    return dataclasses.field(default=values[0], metadata={"values": values})


@dataclass(frozen=True)
class Spec:
    """A model, its loss and its batches; every field is a feature, and its first value is the plain one.

    - `seed` of the weights and batches; `layers`, `width`: how many blocks there are, and how many numbers go through
    - `block`: what a block has before its linear layer; `container`: what holds the blocks; `output`: what they return
    - `shared`: the last block is the first one; `tied`: the head has the embedding's weight, or two blocks have one
    - `calls` of the first block in a forward pass; `spare`: a layer that nothing uses
    - `frozen`: which parameters don't train; `no_grad`: what runs without a graph, such as
      a part that trains
    - `buffer`, `state`: a buffer that stays, and one that each forward pass changes
    - `dtype`, `shape`, `sparse`: one more parameter that is unusual in that
    - `branch`: one of two layers runs, by a rank's rows or by its number; `rows`: how unequal ranks' shares are
    - `method`: what the loss or the model calls in place of a forward pass
    - `hook`, `function`, `inplace`: hooks, an autograd function of its own, an operation that changes its input
    - `twice`: the loss has a gradient in it, so backward runs through backward; `loss`: what it is made of
    - `checkpoint`: the mode in which the model checkpoints its first block by itself
    """

    seed: int = 0
    layers: int = one_of(2, 1, 3)
    width: int = one_of(8, 6, 7)
    block: str = one_of("linear", "norm", "attention", "convolution", "experts")
    container: str = one_of("list", "sequence", "dict", "nested", "attributes")
    output: str = one_of("tensor", "tuple", "dict", "dataclass")
    shared: bool = one_of(False, True)
    tied: str = one_of("nothing", "head", "blocks")
    calls: int = one_of(1, 2, 3)
    spare: bool = one_of(False, True)
    frozen: str = one_of("nothing", "first", "biases", "block")
    no_grad: str = one_of("nothing", "tower", "target", "part")
    buffer: str = one_of("none", "constant", "unsaved")
    state: str = one_of("none", "count", "average", "batchnorm")
    dtype: str = one_of("float32", "float64", "bfloat16", "complex", "integer", "mixed")
    shape: str = one_of("usual", "scalar", "one", "empty", "transposed", "storage")
    sparse: bool = one_of(False, True)
    branch: str = one_of("none", "data", "rank")
    rows: str = one_of("equal", "unequal")
    method: str = one_of("forward", "block", "model")
    hook: str = one_of("none", "forward", "activation", "parameter")
    function: bool = one_of(False, True)
    inplace: bool = one_of(False, True)
    twice: bool = one_of(False, True)
    loss: str = one_of("one", "auxiliary", "two passes", "weight penalty", "zero term")
    checkpoint: str = one_of("none", "non-reentrant", "reentrant")

    @property
    def features(self) -> dict[str, Any]:
        """What is not plain, by field, without the seed."""
        return {name: getattr(self, name) for name, values in VALUES.items() if getattr(self, name) != values[0]}

    @property
    def parts_are_units(self) -> bool:
        """Whether the model has no list of modules, so that its parts are FSDP's units (`fsdp_units.name_blocks`)."""
        tied = self.tied == "blocks" and self.layers == 2  # and so none of the blocks can be one
        lists = (self.container in ("list", "nested") and not tied) or self.block == "experts" or self.dtype == "mixed"
        return not lists

    @property
    def linear_units(self) -> bool:
        """Whether linear layers are FSDP units by themselves, and not only blocks."""
        return self.parts_are_units or self.block == "experts" or self.dtype == "mixed"

    @property
    def blocks_are_units(self) -> bool:
        """Whether blocks are FSDP units, but for those that share a weight."""
        parts = self.container == "attributes" and self.parts_are_units
        return parts or (self.container in ("list", "nested") and not self.parts_are_units)

    @property
    def bare_blocks(self) -> bool:
        """Whether blocks are FSDP units with parameters that are in no smaller one."""
        rest = self.block in ("norm", "convolution") or self.state == "batchnorm"
        return self.blocks_are_units and (rest or not self.linear_units)

    @property
    def alone_in_unit(self) -> bool:
        """Whether an unusual parameter is the only one in its FSDP unit, a part or the root."""
        in_root = self.tied != "nothing" or self.sparse
        in_root |= self.state == "batchnorm" and self.container not in ("list", "nested")
        return self.parts_are_units or (self.linear_units and not in_root)

    @property
    def root_again(self) -> bool:
        """Whether the first block has parameters that the root gathers, and is recomputed several times in a step."""
        rest = self.block in ("norm", "convolution") and not self.blocks_are_units
        in_root = (self.tied == "blocks" and self.layers > 1) or rest
        return in_root and (self.calls > 1 or self.loss == "two passes")

    @property
    def unit_again(self) -> bool:
        """Whether an FSDP unit that trains is in the first block, and takes part in several places of a step."""
        inner = self.linear_units and self.block in ("attention", "experts")
        unit = inner or self.tied != "blocks" or self.layers == 1
        return self._again and unit and not self._first_is_frozen

    @property
    def reused(self) -> bool:
        """Whether a parameter of the first block trains, and takes part in several places of a step."""
        tied = self.tied == "blocks" and not (self.frozen == "block" and self.layers == 2)
        return (tied and self.layers > 1) or (self._again and not self._first_is_frozen)

    @property
    def _again(self) -> bool:
        return self.calls > 1 or (self.shared and self.layers > 1) or self.loss == "two passes"

    @property
    def _first_is_frozen(self) -> bool:
        return self.frozen == "block" and (self.shared or self.layers == 1)

    @property
    def words(self) -> str:
        """The spec in a line, as a person reads it: ``layers 3, shared, tied head (seed 7)``."""
        parts = [name if value is True else f"{name} {value}" for name, value in self.features.items()]
        return f"{', '.join(parts) or 'plain'} (seed {self.seed})"

    @property
    def digest(self) -> str:
        """Short, and another one for any other spec."""
        return digest(self.to_json())

    def to_json(self) -> str:
        """The seed and what is not plain, which `parse` reads."""
        return json.dumps({"seed": self.seed, **self.features})


def sensible(spec: Spec) -> Spec:
    """The spec without features that say nothing together with others."""
    plain: dict[str, Any] = {}
    if spec.layers == 1 or spec.tied == "blocks":
        plain["shared"] = False
    if spec.layers == 1 and spec.tied == "blocks":
        plain["tied"] = "nothing"
    if spec.sparse and spec.tied == "head":
        plain["tied"] = "nothing"  # the gradients of both uses can't be added in one process either
    if spec.no_grad == "part":  # of which something has to train, and whose input gets no gradient
        plain |= {"twice": False}
        plain |= {"frozen": "nothing"} if spec.frozen == "first" else {}
        plain |= {"checkpoint": "none"} if spec.checkpoint == "reentrant" else {}
    if spec.container == "sequence":  # which is called as a whole
        plain |= {"calls": 1, "checkpoint": "none"}
    if spec.dtype == "complex":
        plain["shape"] = "usual"  # which engines refuse together, and each by itself
    if spec.linear_units:  # of which some would be gathered, and others not
        plain["method"] = "forward"
    if spec.frozen == "biases" and spec.hook == "parameter":
        plain["hook"] = "none"  # it is a bias's
    if spec.method == "block":
        plain["checkpoint"] = "none"
    if spec.checkpoint == "reentrant" and spec.no_grad != "part":
        # It takes no gradient of a gradient, and sees no tensor in a dictionary.
        plain |= {"twice": False, "frozen": "nothing" if spec.frozen == "first" else spec.frozen, "output": "tensor"}
    if spec.checkpoint != "none" and spec.state == "batchnorm":
        plain["state"] = "none"
    return dataclasses.replace(spec, **plain)


def digest(text: str, size: int = 5) -> str:
    """A text's, as twice as many hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


VALUES: Mapping[str, tuple[Any, ...]] = {
    each.name: each.metadata["values"] for each in dataclasses.fields(Spec) if each.metadata
}
"""The values of each feature, the plain one first."""


def parse(text: str) -> Spec:
    """Read a spec back; raises UsageError for anything else."""
    seed, values = read(text, "a spec", VALUES)
    return Spec(seed=seed, **values)


def read(text: str, kind: str, known: Mapping[str, tuple[Any, ...]]) -> tuple[int, dict[str, Any]]:
    """A seed and features from JSON, of which `known` has all values; raises UsageError for what isn't of that kind."""
    try:
        values = json.loads(text)
        seed = values.pop("seed", 0)
        wrong = [name for name, value in values.items() if value not in known.get(name, ())]
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"not {kind}: {text[:200]!r}") from None
    if wrong or type(seed) is not int:
        raise UsageError(f"not {kind}: {text[:200]!r} has no valid {wrong[0] if wrong else 'seed'}")
    return seed, values


def blocks(spec: Spec) -> list[str]:
    """The names of the blocks in the model, in the order of their calls; a shared one has its first name."""
    form = {"list": "blocks.{}", "sequence": "blocks.{}", "dict": "blocks.b{}", "nested": "blocks.{}.0"}
    names = [form.get(spec.container, "block{}").format(number) for number in range(spec.layers)]
    return names[:-1] if spec.shared and spec.layers > 1 else names
