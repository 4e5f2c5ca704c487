"""The models that specs become: they train in one process, and have the names that faults go by."""

import random

import pytest
import torch

from faultline.programs import build, sampling
from faultline.programs.spec import VALUES, Spec, blocks

FEATURES = [(name, value) for name, values in VALUES.items() for value in values]


def backward(spec):
    model, loss, batch = build.program(spec.to_json())
    total = loss(model, batch(0, 0, 2))
    total.backward()
    return model, total


@pytest.mark.parametrize(("name", "value"), FEATURES)
def test_every_feature_trains_in_one_process(name, value):
    """Breaks when a proof would blame an engine for a model that doesn't train at all."""
    _, total = backward(Spec(seed=1, **{name: value}))
    assert total.isfinite()


@pytest.mark.parametrize("number", range(150))
def test_a_fault_finds_its_weight_in_the_model(number):
    """Breaks when the sampler names a weight that the model doesn't have, or that gets no gradient."""
    spec = sampling.sample(random.Random(number))
    model, _ = backward(spec)
    for name in sampling.weights(spec):
        assert type(model.get_submodule(name)) is torch.nn.Linear
        assert model.get_parameter(f"{name}.weight").grad.any()
    assert {*blocks(spec)} == {name for name, module in model.named_modules() if isinstance(module, build.Block)}


def test_a_spec_gives_the_same_model_and_rows_again():
    """Breaks when ranks build other models than the reference."""
    text = sampling.healthy(0, 1).spec.to_json()
    (one, _, rows), (other, _, again) = build.program(text), build.program(text)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(rows(1, 1, 2)["x"], again(1, 1, 2)["x"])
    assert not torch.equal(rows(1, 0, 2)["x"], rows(1, 1, 2)["x"])
