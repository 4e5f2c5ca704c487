"""The oracle's arithmetic: what differs is named and nothing else is, down to the last step and the last bit."""

import dataclasses
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.axes import PRECISIONS
from faultline.cells.cell import MARGIN, STEPS, TOLERANCE
from faultline.ranks import compare, tensor_file
from faultline.ranks.compare import EPSILON, Trace
from faultline.ranks.run import perturb

SHAPES = {"a.weight": (3, 4), "a.bias": (4,), "b.scale": (), "b.weight": (2, 3, 2)}
KINDS = ("gradients", "weights")
NAMES = sorted(SHAPES)
CLOSE = {"max_examples": 60}

seeds = st.integers(0, 2**32 - 1)
precisions = st.sampled_from(PRECISIONS)
places = st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.integers(0, STEPS - 1))


def tensors(generator, size=1.0):
    """Values of either sign between half of `size` and one and a half of it: none is lost in another's rounding."""
    parts = {name: torch.rand(shape, generator=generator) * 2 - 1 for name, shape in SHAPES.items()}
    return {name: size * (part + part.sign() / 2) for name, part in parts.items()}


def a_run(seed, size=0.1):
    """Initial weights, and gradients and movements of about `size` after each step."""
    generator = torch.Generator().manual_seed(seed)
    initial = tensors(generator)
    steps = [(tensors(generator, size), tensors(generator, size)) for _ in range(STEPS)]
    weights = [{name: initial[name] + move[name] for name in SHAPES} for _, move in steps]
    return Trace(initial, [gradients for gradients, _ in steps], weights)


def changed(run, place, change):
    """The run with ``change(gradient or movement since the start)`` in one place."""
    kind, name, step = place
    start = run.initial[name] if kind == "weights" else torch.zeros(())
    parts = [dict(part) for part in getattr(run, kind)]
    parts[step][name] = start + change(parts[step][name] - start)
    return dataclasses.replace(run, **{kind: parts})


def noisy(run, seed, size):
    """The run with every gradient and movement off by `size` of its norm, each in a direction of its own."""
    generator = torch.Generator().manual_seed(seed)

    def off(value):
        direction = torch.randn(value.shape, generator=generator)
        return value + size * value.norm() * direction / direction.norm()

    for place in ((kind, name, step) for kind in KINDS for name in NAMES for step in range(STEPS)):
        run = changed(run, place, off)
    return run


def results_of(key, *args):
    """What `compare` lists under a key, as (kind or "", name, step)."""
    steps = compare.compare(*args)
    return {(*entry.rpartition(":")[::2], number) for number, step in enumerate(steps) for entry in getattr(step, key)}


@pytest.mark.slow
@given(seeds, seeds, precisions)
@settings(**CLOSE)
def test_law_a_run_does_not_differ_from_itself(seed, other, precision):
    """Breaks when anything but a difference is called one."""
    run = a_run(seed)
    for step in compare.compare(run, run, noisy(run, other, 1e-6), precision):
        assert not step.bad and not step.unmoved and not step.nan and not step.rounding
        assert {*step.gradients.values(), *step.weights.values()} == {0.0}
        assert set(step.gradients) == set(step.weights) == set(NAMES)


@given(seeds, places, st.sampled_from([10, -10, 0.5, -0.5]), precisions)
@settings(**CLOSE)
def test_law_one_scaled_tensor_is_found_beyond_the_tolerance_and_nothing_else(seed, place, times, precision):
    """Breaks when a step, a kind or a parameter is left out; when only what is too large counts; when runs without
    measured noise have to agree to the bit; or when small errors are not reported."""
    run, size = a_run(seed), times * TOLERANCE[precision]
    off = changed(run, place, lambda value: value * (1 + size))
    assert results_of("bad", off, run, run, precision) == ({place} if abs(times) > 1 else set())
    kind, name, step = place
    reported = compare.compare(off, run, run, precision)[step].errors(kind)[name]
    assert reported == pytest.approx(abs(size), rel=0.05)


@given(seeds, seeds, places, st.sampled_from([0.5, 2.0]), precisions)
@settings(**CLOSE)
def test_law_noise_explains_its_margin_and_no_more(seed, other, place, times, precision):
    """Breaks when noise explains everything, nothing, or the noise of another parameter."""
    run, size = a_run(seed), 2 * TOLERANCE[precision]
    noise = noisy(run, other, size)
    near = changed(run, place, lambda value: value * (1 + times * MARGIN[precision] * size))
    assert results_of("bad", near, run, noise, precision) == ({place} if times > 1 else set())
    kind, name, step = place
    answer = compare.compare(near, run, noise, precision)[step]
    assert answer.errors(kind)[name] > TOLERANCE[precision], "an error that rounding explains is not told"
    excused = {} if times > 1 else {f"{kind}:{name}": pytest.approx(times * MARGIN[precision], rel=0.05)}
    assert answer.rounding == excused
    only_here = changed(run, place, lambda value: value * (1 + size))
    others = {(kind, name, step) for kind in KINDS for name in NAMES for step in range(STEPS)} - {place}
    assert results_of("bad", noisy(run, seed, size), run, only_here, precision) == others


@pytest.mark.parametrize(("precision", "noise"), [("fp32", 1e-4), ("bf16", 0.03)])
@given(seed=seeds)
@settings(**CLOSE)
def test_a_lost_rank_of_four_is_found_in_a_noisy_model(precision, noise, seed):
    """Breaks when the margin grows so large that noise, as it was measured, would hide a whole rank's rows."""
    run = a_run(seed)
    lost = noisy(changed(run, ("gradients", "a.weight", STEPS - 1), lambda value: value * 0.75), seed, noise)
    assert results_of("bad", lost, run, noisy(run, seed + 1, noise), precision) == {
        ("gradients", "a.weight", STEPS - 1)
    }


@given(seeds, st.sampled_from(NAMES), precisions)
@settings(**CLOSE)
def test_a_weight_that_stays_where_it_was_is_named(seed, name, precision):
    """Breaks when a frozen parameter is not told from one that went astray."""
    run = a_run(seed)
    frozen = changed(run, ("weights", name, STEPS - 1), torch.zeros_like)
    astray = changed(run, ("weights", name, STEPS - 1), torch.neg)
    no_gradient = changed(run, ("gradients", name, STEPS - 1), torch.zeros_like)
    assert results_of("unmoved", frozen, run, run, precision) == {("", name, STEPS - 1)}
    assert results_of("bad", frozen, run, run, precision) == {("weights", name, STEPS - 1)}
    assert results_of("bad", no_gradient, run, run, precision) == {("gradients", name, STEPS - 1)}
    assert not results_of("unmoved", astray, run, run, precision)
    assert not results_of("unmoved", no_gradient, run, run, precision)


def test_a_weight_that_is_all_noise_is_not_called_frozen():
    """Breaks when `unmoved` is said of k_proj's bias, whose true gradient is zero, because another fault shook it."""
    place = ("weights", "a.bias", 0)
    run = changed(a_run(1), place, lambda value: torch.full_like(value, 1e-4))
    noise = changed(run, place, lambda value: value * 1.25)
    shaken = changed(run, place, lambda value: -value)
    assert results_of("bad", shaken, run, noise, "bf16") == {place}
    assert not results_of("unmoved", shaken, run, noise, "bf16")


@given(seeds, places.filter(lambda place: "weight" in place[1]))  # one number's noise can be zero by chance
@settings(**CLOSE)
def test_a_parameter_whose_true_gradient_is_zero_may_be_any_rounding_noise(seed, place):
    """Breaks when k_proj's bias, which softmax cancels out, is an alarm; or when a fault can hide in it."""
    generator = torch.Generator().manual_seed(seed)

    def noise(value):
        direction = torch.randn(value.shape, generator=generator)
        return 1e-6 * direction / direction.norm()

    run, rounding, measured = (changed(a_run(seed), place, noise) for _ in range(3))
    kind, name, step = place
    assert not results_of("bad", measured, run, rounding, "fp32")
    answer = compare.compare(measured, run, rounding, "fp32")[step]
    assert answer.errors(kind)[name] > TOLERANCE["fp32"] and [*answer.rounding] == [f"{kind}:{name}"]
    moved = changed(a_run(seed), place, lambda value: 1e-3 * value / value.norm())
    assert results_of("bad", moved, run, rounding, "fp32") == {place}


def test_a_movement_below_the_last_place_of_a_weight_is_rounding():
    """Breaks when a gradient of 1e-9 is an alarm because one run's weights could not show it and another's did."""
    place = ("weights", "a.weight", 1)
    still = changed(a_run(1), place, torch.zeros_like)
    shaken = changed(still, place, lambda value: torch.full_like(value, 6e-8))
    assert not results_of("bad", shaken, still, still, "fp32")
    moved = changed(still, place, lambda value: torch.full_like(value, 6e-6))
    assert results_of("bad", moved, still, still, "fp32") == {place}


def test_no_gradient_is_a_gradient_of_zeros():
    """Breaks when engines that leave None and engines that fill in zeros can't both agree with the reference."""
    place = ("gradients", "a.bias", 1)
    zeros = changed(a_run(1), place, torch.zeros_like)
    nothing = Trace(zeros.initial, [], [])
    for gradients, weights in zip(zeros.gradients, zeros.weights, strict=True):
        nothing.add({name: value if value.any() else None for name, value in gradients.items()}, weights)
    assert "a.bias" not in nothing.gradients[1]
    for measured, peers in ((zeros, nothing), (nothing, zeros), (nothing, nothing)):
        assert not results_of("bad", measured, peers, peers, "fp32")
    assert results_of("bad", nothing, a_run(1), a_run(1), "fp32") == {place}
    assert results_of("bad", a_run(1), nothing, nothing, "fp32") == {place}


def test_an_engine_that_leaves_no_gradients_is_judged_by_its_weights():
    """Breaks when such a run has no gradients to compare and so all are bad, or its weights pass with them."""
    run = a_run(1)
    measured = Trace(run.initial, [], [])
    for weights in run.weights:
        measured.add(None, weights)
    assert not results_of("bad", measured, run, run, "fp32")
    place = ("weights", "b.weight", STEPS - 1)
    assert results_of("bad", changed(measured, place, torch.neg), run, run, "fp32") == {place}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@given(place=places, precision=precisions)
@settings(**CLOSE)
def test_what_is_not_a_number_is_found_wherever_it_is(value, place, precision):
    """Breaks when NaN, which no comparison holds for, passes as agreement; in the reference it would excuse all."""
    run = a_run(1)
    spoilt = changed(
        run, place, lambda tensor: tensor.reshape(-1).index_fill(0, torch.tensor([0]), value).view_as(tensor)
    )
    for args in ((spoilt, run, run), (run, spoilt, run), (run, run, spoilt), (spoilt, spoilt, spoilt)):
        assert results_of("nan", *args, precision) == {place}
        assert not results_of("bad", *args, precision)


def test_weights_that_one_run_lacks_differ():
    """Breaks when a parameter that was not read is not compared."""
    run = a_run(1)
    less = Trace(*([{k: v for k, v in part.items() if k != "a.bias"} for part in parts] for parts in parts_of(run)))
    less = dataclasses.replace(less, initial=less.initial[0])
    wanted = {(kind, "a.bias", step) for kind in KINDS for step in range(STEPS)}
    assert results_of("bad", less, run, run, "fp32") == results_of("bad", run, less, less, "fp32") == wanted


def parts_of(run):
    return [run.initial], run.gradients, run.weights


def test_what_was_read_does_not_change_later():
    """Breaks when a trace holds the live tensors, which the next step moves: every step would look like the last."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    trace = Trace(compare.copy({"w": weight}), [], [])
    trace.add({"w": weight.grad}, {"w": weight})
    with torch.no_grad():
        weight.add_(1)
        weight.grad.zero_()
    assert all(part["w"].eq(1).all() and not part["w"].requires_grad for parts in parts_of(trace) for part in parts)
    assert compare.copy({"w": weight.bfloat16()})["w"].dtype == torch.float32
    assert compare.copy({"zeros": torch.zeros(2), "nothing": None}).keys() == {"zeros"}


@given(seeds, st.sampled_from(["full", "no gradients", "some gradients"]))
@settings(**CLOSE)
def test_law_a_saved_run_comes_back_bit_by_bit(tmp_path_factory, seed, gradients):
    """Breaks when a reference on disk is not the run that was recorded."""
    run = a_run(seed)
    if gradients != "full":
        remaining = () if gradients == "no gradients" else NAMES[1:2]
        run = dataclasses.replace(run, gradients=[{name: part[name] for name in remaining} for part in run.gradients])
    run.weights[0]["a.bias"][:2] = torch.tensor([-0.0, float("nan")])
    file = tmp_path_factory.mktemp("saved") / "reference.pt"
    tensor_file.write([run, a_run(seed + 1)], file)
    reference, noise = tensor_file.read(file)
    assert [[compare.digest(part) for part in parts] for parts in parts_of(reference)] == [
        [compare.digest(part) for part in parts] for parts in parts_of(run)
    ]
    assert [{k: v.shape for k, v in part.items()} for part in reference.weights] == [
        {k: v.shape for k, v in part.items()} for part in run.weights
    ]
    assert compare.digest(noise.initial) == compare.digest(a_run(seed + 1).initial)


def test_a_run_that_is_a_multiple_of_its_reference_says_of_what():
    """Breaks when half of every gradient is told as any error of a half, or one that is no multiple as one."""
    peers = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[-3.0]])}

    def of(**measured):
        return compare.factor({name: torch.tensor(values) for name, values in measured.items()}, peers, 1e-3)

    assert of(a=[0.5, 1.0], b=[[-1.5]]) == pytest.approx(0.5)
    assert of(a=[-2.0, -4.0], b=[[6.0]]) == pytest.approx(-2)
    assert of(a=[0.5, 1.0], b=[[-3.0]]) is None and of(a=[1.5, 1.0], b=[[-1.5]]) is None
    assert of(a=[0.0, 0.0], b=[[0.0]]) is None


def with_buffers(*values, shares=()):
    """A run whose buffer starts at zero and infinity, and holds these after each step; of shares, those of each."""
    start = torch.tensor([0.0, float("-inf")])
    run = a_run(0)
    run.held["between.mean"] = start
    for step, value in enumerate(values):
        run.keep({"between.mean": start + value}, None)
        run.shares.append([{"between.mean": start + share[step]} for share in shares])
    return run


@pytest.mark.parametrize(
    ("rank", "right", "twice"), [(0, (1.0, 2.0, 3.0), (2.0, 4.5, 6.0)), (1, (5.0, 6.0, 7.0), (10.0, 11.0, 12.0))]
)
def test_a_buffer_is_held_against_what_a_ranks_own_rows_leave(rank, right, twice):
    """Breaks when a rank's buffers are held against another's rows, or when infinities count as a difference."""
    reference = with_buffers(3.0, 4.0, 5.0, shares=((1.0, 2.0, 3.0), (5.0, 6.0, 7.0)))
    for values, bad in ((right, False), (twice, True)):
        steps = compare.compare(with_buffers(*values), reference, reference, "fp32", rank, 2)
        assert [bool(step.buffers) for step in steps] == [bad] * STEPS
    other = compare.compare(with_buffers(*right), reference, reference, "fp32", rank, 4)
    assert not any(step.buffers for step in other), "what depends on rows has no truth at another world size"


SHARES = (1.0, 2.0, 3.0), (5.0, 6.0, 7.0)


@pytest.mark.parametrize(
    ("reference", "values", "bad"),
    [
        # What the global batch leaves behind, as SyncBatchNorm has it, is right; a reference of shares never ran it.
        (with_buffers(3.0, 4.0, 5.0, shares=SHARES), (3.0, 4.0, 5.0), [0, 0, 0]),
        (with_buffers(3.0, 4.0, 5.0, shares=SHARES), (3.0, 4.0, 5.5), [0, 0, 1]),
        (with_buffers(1.0, 2.0, 3.0, shares=SHARES), (1.0, 2.0, 3.0), [1, 1, 1]),
        # A count is known without shares, and what depends on rows is not.
        (with_buffers(1.0, 2.0, 3.0), (2.0, 4.0, 6.0), [1, 1, 1]),
        (with_buffers(0.5, 0.7, 0.9), (0.1, 0.2, 0.3), [0, 0, 0]),
    ],
)
def test_what_ranks_put_together_is_right_and_a_count_is_known(reference, values, bad):
    """Breaks when statistics over all ranks count as wrong, or trainers' counters are left out."""
    steps = compare.compare(with_buffers(*values), reference, reference, "fp32", 1, 2)
    assert [bool(step.buffers) for step in steps] == bad


# Weights are told apart by every bit, and noise is measured with the smallest change there is.

NAN = 0x7FC00000
BITS = st.integers(0, 2**32 - 1) | st.integers(NAN, NAN + 8)


def from_bits(bits):
    """One float32 of every kind there is: zeros of both signs, subnormals, infinities, NaN with any payload."""
    return torch.frombuffer(bytearray(struct.pack(f"{len(bits)}I", *bits)), dtype=torch.float32)


@given(st.dictionaries(st.sampled_from("abc"), st.lists(BITS, min_size=1, max_size=4), min_size=1), st.data())
def test_law_a_digest_changes_with_every_bit_and_with_nothing_else(values, data):
    """Breaks when ranks that hold different weights look alike, or ranks that hold the same don't."""
    before = compare.digest({name: from_bits(bits) for name, bits in values.items()})
    order = data.draw(st.permutations(list(values)))
    assert compare.digest({name: from_bits(values[name]).clone() for name in order}) == before
    name = data.draw(st.sampled_from(list(values)))
    at = data.draw(st.integers(0, len(values[name]) - 1))
    values[name][at] ^= 1 << data.draw(st.integers(0, 31))
    assert compare.digest({name: from_bits(bits) for name, bits in values.items()}) != before


def test_a_digest_tells_names_apart_and_takes_any_layout():
    """Breaks when tensors change places, or at a parameter that is one number."""
    zero, nan = torch.zeros(()), torch.tensor([float("nan")])
    table = torch.arange(6.0).view(2, 3)
    assert compare.digest({"w": table.t()}) == compare.digest({"w": table.t().contiguous()})
    assert compare.digest({"w": table.t()}) != compare.digest({"w": table})
    assert compare.digest({"w": table.index_fill(1, torch.tensor([2]), 0)}) != compare.digest({"w": table})
    assert compare.digest({"w": table}) != compare.digest({"v": table})
    for strided in (torch.arange(90.0)[::45][:1], torch.arange(90.0)[::45], torch.arange(90.0)[::45][:0], table[:, 1]):
        assert compare.digest({"w": strided}) == compare.digest(
            {"w": strided.clone(memory_format=torch.contiguous_format)}
        )
    assert compare.digest({"a": nan, "b": zero}) != compare.digest({"a": zero, "b": nan})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_noise_is_one_unit_in_the_last_place_of_every_weight(precision):
    """Breaks when the reference's noise is measured with a change that is none, too large, or different each time."""
    models = [torch.nn.Linear(8, 8) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    before = {name: value.clone() for name, value in models[0].state_dict().items()}
    for model in models:
        perturb(model, precision)
    for name, value in models[0].state_dict().items():
        ratio = (value / before[name] - 1).abs()
        assert (ratio > EPSILON[precision] / 4).all() and (ratio < EPSILON[precision] * 2).all()
        assert value.equal(models[1].state_dict()[name])
    grown = torch.cat([(models[0].state_dict()[name] / before[name] > 1).flatten() for name in before])
    assert grown.any() and not grown.all(), "all weights moved the same way"
