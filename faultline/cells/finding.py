"""In what the numbers of a cell differ from those of one process."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from faultline.base.text import one_line, percent

Number = float | str  # read from JSON, what is not finite is the text ``nan``, ``inf`` or ``-inf``
SHOWN = 3  # names of parameters in a sentence


@dataclass(frozen=True)
class Factor:
    """All gradients of the first step, or how far all weights move in it, are so many `times` the reference's.

    `kind` is ``gradients`` or ``weights``, and `means` are the numbers of the cell that `times` is, in words.
    """

    kind: str
    times: float
    means: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Where a cell first differs from one process: in the ``forward`` pass, ``backward`` or the ``update``.

    Where only weights were read, in a whole ``step``. What differs before training does at the ``start``, in step 0.
    """

    step: int
    rank: int
    phase: str
    module: str
    error: Number | None
    parameter: str = ""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a cell's numbers; `unmoved` has the first of `unmoved_count` parameters that never move.

    `apart` has the first buffers of which ranks hold different values as a step begins; `ranks_differ` says whether
    they hold different weights after some step.
    """

    factor: Factor | None = None
    unmoved: tuple[str, ...] = ()
    unmoved_count: int = 0
    first: Difference | None = None
    apart: tuple[str, ...] = ()
    ranks_differ: bool = False

    @property
    def words(self) -> list[str]:
        """The finding in sentences, the one that says most first."""
        lines = [described(self.factor)] if self.factor else []
        lines += [f"never moved: {self.names}"] if self.unmoved else []
        lines += [f"first differs: {describe_difference(self.first)}"] if self.first and not self.factor else []
        return lines

    @property
    def names(self) -> str:
        """The first of the parameters that never moved, and how many more there are."""
        return first_names(self.unmoved, self.unmoved_count)


def described(factor: Factor, which: str = "") -> str:
    """``every gradient is 0.5 times what it should be (1 / world size)``; `which` says that it is some of them."""
    means = f" ({' or '.join(factor.means)})" if factor.means else ""
    times = f"{factor.times:.3g} times"
    if factor.kind == "gradients":
        return f"every gradient {which}{' ' * bool(which)}is {times} what it should be{means}"
    return f"every weight {which}{' ' * bool(which)}moves {times} as far as it should{means}"


def split_factor(detail: str) -> tuple[str, str]:
    """The factor that what is said of a cell begins with, if there is one, and the rest."""
    first, _, rest = detail.partition("; ")
    return (first, rest) if re.match(r"every (?:gradient|weight) [^;]*\d times ", first) else ("", detail)


def describe_difference(difference: Difference) -> str:
    """Where a cell first differs from the reference, in words."""
    module = one_line(difference.module) or "the model itself"
    parameter = f"{module} ({one_line(difference.parameter)})"
    if difference.phase == "start":
        return f"before step 1, {parameter}, by {percent(difference.error or 0)}, on rank {difference.rank}"
    what = {
        "forward": f"in the forward pass, the output of {module}",
        "backward": f"in the backward pass, {parameter}",
        "buffers": f"in the forward pass, the buffer {parameter}",
        "update": f"in the optimizer's step, {parameter}",
        "step": f"in the weights after it, {parameter}",
    }[difference.phase]
    if difference.error is None:
        off = "which is not a number"
    else:
        off = (
            f"by {percent(difference.error)}"
            if math.isfinite(float(difference.error))
            else "whose reference is zero or of another shape"
        )
    return f"step {difference.step}, {what}, {off}, on rank {difference.rank}"


def first_names(names: Sequence[str], count: int = 0) -> str:
    """The first names, and how many more there are of `count`, or of the names."""
    count = count or len(names)
    shown = ", ".join(map(one_line, names[:SHOWN]))
    return f"{shown} and {count - SHOWN} more" if count > SHOWN else shown
