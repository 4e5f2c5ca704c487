"""Weights are told apart by every bit, and noise is measured with the smallest change there is."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faultline.cells.cell import PRECISIONS
from faultline.ranks import compare
from faultline.ranks.compare import EPSILON
from faultline.ranks.run import perturb

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


def test_a_digest_tells_zeros_apart_and_takes_any_layout():
    """Breaks when bits are compared as numbers, when tensors change places, or at a parameter that is one number."""
    zero, nan = torch.zeros(()), torch.tensor([float("nan")])
    assert compare.digest({"w": zero}) != compare.digest({"w": -zero})
    assert compare.digest({"w": nan}) == compare.digest({"w": nan.clone()})
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
