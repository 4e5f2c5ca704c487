"""The oracle's arithmetic: gradients and weights of every step against the reference's."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from faultline.cells.cell import MARGIN, TOLERANCE
from faultline.ranks.report import Step

Tensors = dict[str, torch.Tensor]

EPSILON = {"fp32": 2.0**-23, "bf16": 2.0**-8}


@dataclass(frozen=True)
class Trace:
    """One run: initial weights, then gradients and weights after each step, whole and by name, in fp32.

    `outputs` has what modules gave in each step, in the order of their calls, where somebody observed them. `buffers`
    are this rank's after each step, from `held` on, and `entered` as a step's first forward pass began. A reference has
    in `shares`, for each step, those that the forward pass of each rank's rows leaves behind, where that was seen.
    `unsaved` are those that no checkpoint has, before the first step.
    `logged` are the norms of all gradients that an engine gave.
    """

    initial: Tensors = field(default_factory=dict)
    gradients: list[Tensors | None] = field(default_factory=list)
    weights: list[Tensors] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    held: Tensors = field(default_factory=dict)
    unsaved: Tensors = field(default_factory=dict)
    buffers: list[Tensors] = field(default_factory=list)
    entered: list[Tensors] = field(default_factory=list)
    shares: list[list[Tensors]] = field(default_factory=list)
    logged: list[float] = field(default_factory=list)

    def add(self, gradients: Tensors | None, weights: Tensors, outputs: Tensors | None = None) -> None:
        self.gradients.append(None if gradients is None else copy(gradients))
        self.weights.append(copy(weights))
        self.outputs.append(copy(outputs or {}))

    def keep(self, buffers: Tensors, entered: Tensors | None, replaced: bool = False) -> None:
        """The buffers after a step, none if `replaced`, and as it began: if not seen, as the one before it ended."""
        self.entered.append((self.buffers[-1] if self.buffers else self.held) if entered is None else entered)
        self.buffers.append({} if replaced else copy(buffers))


def copy(tensors: Mapping[str, torch.Tensor | None]) -> Tensors:
    """Detached, dense fp32 copies on the CPU, of complex numbers as pairs; a gradient that is None is left out."""
    return {name: _plain(tensor.detach()) for name, tensor in tensors.items() if tensor is not None}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return (torch.view_as_real(dense) if dense.is_complex() else dense).to("cpu", torch.float32, copy=True)


def digest(tensors: Tensors, before: str = "") -> str:
    """Equal on two ranks only if every bit of every tensor is, and the digest of what came `before`."""
    hashed = hashlib.blake2b(before.encode(), digest_size=8)
    for name in sorted(tensors):
        hashed.update(name.encode())
        # A tensor of one number counts as contiguous with any stride, and then has no view as bytes: hence the copy.
        flat = tensors[name].reshape(-1).clone(memory_format=torch.contiguous_format)
        hashed.update(flat.view(torch.uint8).numpy())
    return hashed.hexdigest()


def compare(
    trace: Trace,
    reference: Trace,
    noise: Trace,
    precision: str,
    rank: int = 0,
    world_size: int = 1,
    *,
    before: int = 0,
) -> list[Step]:
    """The errors of each step, of a run that begins where the reference had `before` steps behind it.

    An error is relative, ``|x - r| / |r|`` in the Euclidean norm of one
    parameter, of its gradient or of its movement since the start. It is bad when
    it is above the tolerance and the difference is more than rounding explains;
    what rounding does explain is in `rounding`, with how many times the noise it
    is. A weight can't show a movement below its own last place, so that much is
    rounding whatever the noise is. Gradients that were not read (None) are not compared.
    A reference that is not finite proves nothing, so that counts as `nan` too. `outputs` is there where modules were
    observed: those that are bad, in the order of their calls. `factors` are there where the first step is wrong.
    `buffers` are those that are bad, held against what this rank's rows leave behind (see `truth`).
    """
    runs = ((trace, 0), (reference, before), (noise, before))
    size = dict(zip(reference.initial, _sizes([*reference.initial.values()]), strict=True))
    steps = []
    for index in range(len(trace.weights)):
        step = Step()
        sides = {"weights": [movement(run, at + index) for run, at in runs]}
        if trace.gradients[index] is not None:
            sides["gradients"] = [run.gradients[at + index] or {} for run, at in runs]
            step.gradients = _errors(step, "gradients", sides["gradients"], precision, {})
        step.weights = _errors(step, "weights", sides["weights"], precision, size)
        bad = {name.partition(":")[0] for name in step.bad} if not index else set()
        factors = {kind: factor(sides[kind][0], sides[kind][1], TOLERANCE[precision]) for kind in sorted(bad)}
        step.factors = {kind: times for kind, times in factors.items() if times}
        for kind in bad - step.factors.keys():
            names = [name for name in sides[kind][1] if f"{kind}:{name}" in step.bad]
            run, want = ({name: side[name] for name in names if name in side} for side in sides[kind][:2])
            if len(names) > 1 and (times := factor(run, want, TOLERANCE[precision])):
                step.partial |= {kind: times}
        if trace.outputs and trace.outputs[index] and reference.outputs[before + index]:
            outputs = [run.outputs[at + index] for run, at in runs]
            step.outputs = _bad_outputs(outputs, TOLERANCE[precision], MARGIN[precision])
        if trace.buffers and trace.buffers[index]:
            step.buffers = _bad_buffers(trace, reference, noise, index, precision, rank, world_size, before)
        steps.append(step)
    return steps


def started(trace: Trace, reference: Trace, precision: str) -> dict[str, float]:
    """The relative errors of the weights that training began with, of those that are not the reference's."""
    names = [name for name in reference.initial if name in trace.initial]
    norms = _norms(names, trace.initial, reference.initial, {})
    apart = {
        name: difference / want if want else float("inf")
        for name, (_, want, difference, _) in zip(names, norms, strict=True)
        if not difference <= TOLERANCE[precision] * want
    }
    return apart


def drawn(trace: Trace, reference: Trace, precision: str, wrong: bool) -> dict[str, float]:
    """As `started`, of the buffers that the first forward pass got.

    What no checkpoint has counts if a run is `wrong`: a rank may hold what is its own, such as its number.
    """
    first, apart = (trace.entered or [trace.held])[0], {}
    here = {**trace.held, **trace.unsaved}
    for name, want in {**reference.held, **(reference.unsaved if wrong else {})}.items():
        have = here.get(name)
        if have is None or have.shape != want.shape or not torch.equal(have, first.get(name, have)):
            continue
        off, size = _gap(have, want), _size(want)
        if off > TOLERANCE[precision] * size:
            apart[name] = off / size if size else math.inf
    return apart


def _errors(
    step: Step, kind: str, sides: Sequence[Tensors], precision: str, size: Mapping[str, float]
) -> dict[str, float]:
    """The errors of one kind, what they say added to the step; `sides` are the run, the reference and its noise."""
    tolerance, margin = TOLERANCE[precision], MARGIN[precision]
    errors: dict[str, float] = {}
    names = [*dict.fromkeys([*sides[1], *sides[0]])]  # as the model has them
    for name, norms in zip(names, _norms(names, *sides), strict=True):
        have, want, difference, rounding = norms
        rounding = max(rounding, EPSILON["fp32"] * size.get(name, 0.0))
        error = difference / want if want else (difference and float("inf"))
        if not all(map(math.isfinite, norms)):
            step.nan.append(f"{kind}:{name}")
        elif error > tolerance and difference > margin * rounding:
            step.bad.append(f"{kind}:{name}")
            if kind == "weights" and have <= tolerance * want:
                step.unmoved.append(name)
        elif error > tolerance:
            step.rounding[f"{kind}:{name}"] = difference / rounding
        errors[name] = error
    return errors


def _bad_outputs(sides: Sequence[Tensors], tolerance: float, margin: float) -> dict[str, float]:
    """Outputs that are not the reference's, with their relative errors; one of another shape is off by infinity."""
    run, reference, _ = sides
    same = [name for name in run if name in reference and run[name].shape == reference[name].shape]
    bad = {name: float("inf") for name in run if name not in same}
    for name, (_, want, difference, rounding) in zip(same, _norms(same, *sides), strict=True):
        if not difference <= max(tolerance * want, margin * rounding):  # what is not a number is bad
            bad[name] = difference / want if want else float("inf")
    return {name: bad[name] for name in run if name in bad}


def truth(reference: Trace, index: int, rank: int, world_size: int) -> Tensors:
    """What a rank's buffers are to hold after a step: what the forward pass of its rows leaves behind.

    It begins with rank 0's state, as under an engine that broadcasts it. Where a reference ran the global batch only,
    what depends on rows is left out, which is all that moves and isn't a count, if nothing else is known.
    """
    whole, shares = _reference_buffers(reference, index)
    if len(shares) == world_size:
        return shares[rank]
    if world_size == 1:
        return whole
    if shares:
        return {name: held for name, held in whole.items() if all(_gap(held, each.get(name)) == 0 for each in shares)}
    first = reference.held
    return {name: t for name, t in whole.items() if _gap(t, first.get(name)) == 0 or bool((t == t.round()).all())}


def _reference_buffers(reference: Trace, index: int) -> tuple[Tensors, list[Tensors]]:
    """The buffers of a reference after a step, and those that each rank's rows leave behind."""
    return next(iter(reference.buffers[index:]), {}), next(iter(reference.shares[index:]), [])


def _gap(one: torch.Tensor, other: torch.Tensor | None) -> float:
    """How far two tensors are apart, where they aren't equal: infinities are equal to themselves, as is NaN."""
    if other is None or one.shape != other.shape:
        return math.inf
    off = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, one - other).norm().item()
    return off if math.isfinite(off) else math.inf


def _bad_buffers(
    trace: Trace, reference: Trace, noise: Trace, index: int, precision: str, rank: int, world_size: int, before: int
) -> dict[str, float]:
    """Buffers that are not the reference's, with their errors relative to how far the reference's have moved.

    One whose shape is another is a cache of rows, and is left out. Engines may hold them in the cell's precision.
    """
    run, wrong = trace.buffers[index], {}
    rounded = truth(noise, before + index, rank, world_size)
    whole, shares = _reference_buffers(reference, before + index)
    for name, want in truth(reference, before + index, rank, world_size).items():
        first, have, start = reference.held.get(name), run.get(name), trace.held.get(name)
        if have is None or have.shape != want.shape or first is None or start is None or first.shape != want.shape:
            continue
        moved, off = _gap(want, first), _gap(have, want)
        # An engine that casts buffers changes them before training: what it makes of them counts from there.
        if _gap(start, first) <= TOLERANCE[precision] * first.norm():
            off = min(off, _gap(have - start, want - first))
        if shares and _gap(whole[name], shares[0].get(name)):  # where ranks put together what all rows leave behind
            off = min(off, _gap(have, whole[name]))
        size = max(_size(first), _size(want))
        rounding = max(_gap(rounded.get(name, want), want), EPSILON[precision] * size)
        if off > TOLERANCE[precision] * moved and off > MARGIN[precision] * rounding:
            wrong[name] = off / moved if moved else math.inf
    return wrong


def _size(tensor: torch.Tensor) -> float:
    return torch.where(tensor.isfinite(), tensor, 0.0).norm().item()


def distance(one: Tensors, other: Tensors) -> float:
    """How far two runs are apart in all tensors together, relative to the larger of them; some may be in one only."""
    sizes = torch.tensor(list(_norms(sorted({*one, *other}), one, other, other))).reshape(-1, 4).norm(dim=0)
    return float(sizes[2] / sizes[:2].max()) if sizes[:2].any() else 0.0


def factor(run: Tensors, reference: Tensors, tolerance: float) -> float | None:
    """How many times another run's tensors all of these are; None where they are no multiple of them."""
    if run.keys() != reference.keys() or not reference:
        return None
    one, other = (torch.cat([tensors[name].double().flatten() for name in reference]) for tensors in (run, reference))
    square = float(other.dot(other))
    times = float(one.dot(other)) / square if square else 0.0
    apart = float((one - times * other).norm())
    return times if times and apart <= tolerance * float(one.norm()) else None


def movement(trace: Trace, index: int) -> Tensors:
    """How far each weight has come since the start."""
    return {name: trace.weights[index][name] - initial for name, initial in trace.initial.items()}


def _norms(names: Iterable[str], run: Tensors, reference: Tensors, noise: Tensors) -> list[tuple[float, ...]]:
    """For each name: norms of a run and of its reference, of their difference, and of the reference's noise."""
    sides: tuple[list[torch.Tensor], ...] = ([], [], [])
    for name in names:
        like = run[name] if name in run else reference[name]
        for tensors, side in zip(sides, (run, reference, noise), strict=True):
            tensors.append(side[name] if name in side else torch.zeros_like(like))
    a, b, c = sides
    compared = (a, b, torch._foreach_sub(a, b), torch._foreach_sub(c, b)) if a else ()
    return list(zip(*map(_sizes, compared), strict=True))


def _sizes(tensors: Sequence[torch.Tensor]) -> list[float]:
    """The norm of each, in one call for all: most have a few numbers, and a call takes longer than they do."""
    return torch.stack(torch._foreach_norm(tensors)).tolist() if tensors else []
