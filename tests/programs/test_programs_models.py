"""The models that specs become: they train in one process, and have the names that faults go by."""

import random

import torch

from faultline.programs import build, sampling
from faultline.programs.spec import VALUES, Spec, blocks

FEATURES = [(name, value) for name, values in VALUES.items() for value in values]


def backward(spec):
    model, loss, batch = build.program(spec.to_json())
    total = loss(model, batch(0, 0, 2))
    total.backward()
    return model, total


def test_every_feature_trains_in_one_process():
    """Breaks when a proof would blame an engine for a model that doesn't train at all."""
    assert [each for each in FEATURES if not backward(Spec(seed=1, **dict([each])))[1].isfinite()] == []


def test_a_fault_finds_its_weight_in_the_model():
    """Breaks when the sampler names a weight that the model doesn't have, or that gets no gradient."""

    def wrong(spec):
        model, _ = backward(spec)
        for name in sampling.weights(spec):
            linear = model.get_submodule(name)
            if type(linear) is not torch.nn.Linear or not linear.weight.grad.any():
                yield name
        named = {name for name, module in model.named_modules() if isinstance(module, build.Block)}
        yield from named ^ {*blocks(spec)}

    specs = [sampling.sample(random.Random(number)) for number in range(150)]
    assert {spec.words: names for spec in specs if (names := [*wrong(spec)])} == {}


def test_a_spec_gives_the_same_model_and_rows_again():
    """Breaks when ranks build other models than the reference."""
    text = sampling.healthy(0, 1).spec.to_json()
    (one, _, rows), (other, _, again) = build.program(text), build.program(text)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(rows(1, 1, 2)["x"], again(1, 1, 2)["x"])
    assert not torch.equal(rows(1, 0, 2)["x"], rows(1, 1, 2)["x"])
