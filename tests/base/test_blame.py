"""Whose an error is: what the suite gets wrong is its own, what models, engines and trainers raise is theirs."""

from pathlib import Path

import pytest
import torch

from faultline import scenario
from faultline.base import errors, traces
from faultline.base.paths import LAB, PACKAGE
from faultline.ranks import compare, report, tensor_file
from faultline.ranks.observer import Observer
from faultline.ranks.own_model import batch
from lab.programs import fault as faults


def fault_of(do):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whichever
        do()
    return traces.own_fault(raised.value)


class Model(torch.nn.Module):
    """Its forward pass does what it is given."""

    def __init__(self, does):
        super().__init__()
        self.does, self.layer = does, torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.does(self.layer(x))


def fails(x):
    raise KeyError("mine")


ONE = {"w": torch.ones(2)}


def test_the_places_that_are_not_ours_to_answer_for_exist():
    """Breaks when a module is renamed, and a user's error is taken for a fault of ours."""
    homes = {place: LAB if place.startswith("programs/") else PACKAGE for place in (*traces.RUN, *traces.TAKE)}
    places = {place: home / place for place, home in homes.items()}
    missing = [
        place
        for place, there in places.items()
        if not (there.is_dir() if place.endswith("/") else there.with_suffix(".py").exists())
    ]
    assert missing == []


def test_what_the_suite_computes_wrongly_is_its_own():
    """Breaks when the comparison chokes on a layout, in torch or by itself, and the model is told to be at fault."""
    trace = compare.Trace(ONE, [ONE], [ONE])
    other = compare.Trace(ONE, [{"w": torch.ones(3)}], [ONE])
    assert fault_of(lambda: compare.compare(trace, other, other, "fp32")).startswith("compare.py:")
    assert "in digest" in fault_of(lambda: compare.digest({"w": 7}))
    assert fault_of(lambda: tensor_file.read(Path("absent"))).startswith("tensor_file.py:"), "a library raises it"
    assert fault_of(lambda: faults.parse(7)).startswith("fault.py:"), "what stands beside the package is ours"
    model = Model(lambda x: x)
    model.layer.register_forward_hook(lambda *_: compare.digest({"w": 7}))
    assert "in digest" in fault_of(lambda: model(torch.ones(1, 2))), "a hook of the suite's within a model"


def test_what_models_losses_and_engines_raise_is_theirs():
    """The near misses: breaks when a model's error is hidden as the suite's own, as it is called from there."""
    x = torch.ones(1, 2)
    assert fault_of(lambda: Model(fails)(x)) == ""
    assert fault_of(lambda: batch.loss(Model(fails), {"x": x})) == ""
    assert fault_of(lambda: batch.loss(Model(lambda x: x), {"x": x})) == "", "no output of transformers"
    assert fault_of(lambda: Model(lambda x: x @ x)(x)) == ""
    assert fault_of(lambda: scenario.next_token_loss(x, {})) == ""
    observed = Model(fails)
    Observer(observed)
    assert fault_of(lambda: observed(x)) == ""


def test_what_is_raised_by_intent_or_meets_anybody_is_no_fault():
    def refuses():
        raise errors.Impossible("no such thing")

    def ends(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert fault_of(refuses) == ""
    assert fault_of(lambda: tensor_file.read(Path("removed/file"))) == "", "a model that clears TMPDIR"
    assert fault_of(lambda: compare.copy({"w": type("Late", (), {"detach": ends})()})) == ""


def test_the_kind_of_an_error_is_not_read_from_its_name():
    """Breaks when somebody's own `class Impossible(Exception)` is taken for the suite's, which counts as agreement."""

    class Impossible(Exception):
        pass

    def reported(error, cause=None):
        with pytest.raises(type(error)) as raised:
            raise error from cause
        return report.error_report(raised.value)

    assert reported(Impossible("no")).kind == reported(ValueError("no")).kind == "error"
    results = reported(errors.Impossible("lacks it"), ImportError("it"))
    assert (results.kind, results.message, results.fault) == ("impossible", "lacks it", "")
    assert [(each.kind, each.text, each.follows) for each in results.chain] == [
        ("error", "ImportError: it\n", False),
        ("impossible", "faultline.base.errors.Impossible: lacks it\n", True),
    ]
    assert results.chain[-1].frames[-1].name == "reported" and results.line == "raise error from cause"
