"""Which checkpointing mode is seen at work."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from faultline.ranks.checkpointing import CutOff, Watch


class Block(torch.nn.Module):
    """Has a part, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.part, self.own = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(2))

    def forward(self, x, scale=1.0):
        return self.part(x) * self.own * scale

    def without_a_module(self, x):
        return x * self.own


class Offloaded(torch.autograd.Function):
    """A reentrant checkpoint of one's own."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.run(x).backward(gradient)
        return None, x.grad


reentrant = partial(checkpoint, use_reentrant=True)
FIXED = torch.ones(1, 2)


def graph():
    return torch.ones(1, 2, requires_grad=True)


class Rounded(torch.autograd.Function):
    """Runs a module, and lets the gradient through."""

    @staticmethod
    def forward(ctx, x, module):
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def without_grad(module, *args):
    with torch.no_grad():
        return module(*args)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("train", "mode"),
    [
        (lambda a, b, both: reentrant(lambda x: b(a(x)), graph()), "reentrant"),
        (lambda a, b, both: checkpoint(b, a(FIXED), use_reentrant=False), "non-reentrant"),
        # A trainer's reference that is the model itself, adapters off; and an evaluation.
        (lambda a, b, both: (both(FIXED), without_grad(both, FIXED))[0], "off"),
        (lambda a, b, both: (without_grad(reentrant, a, FIXED), a(FIXED))[1], "off"),
        # A frozen tower or a target network.
        (lambda a, b, both: b(without_grad(a.requires_grad_(False), FIXED)), "off"),
        (lambda a, b, both: checkpoint(b, without_grad(a, FIXED), use_reentrant=False), "non-reentrant"),
        # A straight-through estimator.
        (lambda a, b, both: Rounded.apply(a(FIXED), b), "off"),
    ],
    ids=["reentrant", "non-reentrant", "reference", "evaluation", "tower", "tower, non-reentrant", "estimator"],
)
def test_the_mode_that_is_at_work_is_seen(train, mode):
    """Breaks when what runs without a gradient is taken for a checkpoint, and remedies are judged in another mode."""
    assert seen(train) == mode


def test_a_reentrant_checkpoint_is_seen_where_torch_applies_functions_in_c(monkeypatch):
    """Breaks when no model can be checked with torch 2.14 or later, whose `Function.apply` is a method of C."""
    monkeypatch.setattr(torch.autograd.Function, "apply", torch._C._FunctionBase.__dict__["apply"])
    assert seen(lambda a, b, both: reentrant(a, graph())) == "reentrant"


def seen(train):
    """The mode that is seen while a loss of two blocks is trained twice."""
    model = torch.nn.Sequential(Block(), Block())
    watch = Watch(model)
    for _ in range(2):
        with watch.training():
            loss = train(*model, model).sum()
        loss.backward()
    watch.close()
    return watch.evidence()["checkpointing_seen"]


def cut_off(run, frozen=()):
    model = torch.nn.ModuleDict({"a": Block(), "b": Block(), "head": torch.nn.Linear(2, 2)})
    for name in frozen:
        model[name].requires_grad_(False)
    seen = CutOff({module: name for name, module in model.named_modules()})
    apply = torch.autograd.Function.__dict__["apply"]
    with seen.watching():
        model["head"](run(model["a"], model["b"])).sum().backward()
    assert torch.autograd.Function.__dict__["apply"] is apply
    return [*seen.modules]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("run", "modules"),
    [
        (lambda a, b: reentrant(b, reentrant(a, FIXED)), ["a", "b"]),
        (lambda a, b: reentrant(partial(a, scale=2.0), FIXED), ["a"]),
        (lambda a, b: reentrant(lambda x: b(a(x)), FIXED), ["a", "b"]),
        (lambda a, b: reentrant(a.without_a_module, FIXED), ["a"]),
        (lambda a, b: reentrant(lambda xs: a(xs[0]), [graph()]), ["a"]),
        (lambda a, b: Offloaded.apply(a, FIXED), ["a"]),
        (lambda a, b: reentrant(lambda x: x + reentrant(a, FIXED), graph()), ["a"]),
    ],
    ids=["each", "keywords", "a function", "no module", "in a list", "one's own", "in another"],
)
def test_what_a_reentrant_checkpoint_cuts_off_is_seen(run, modules):
    """Breaks when weights that never move are put down to something else, or to nothing."""
    assert cut_off(run) == modules


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("run", "frozen"),
    [
        (lambda a, b: checkpoint(a, FIXED, use_reentrant=False), ""),
        (lambda a, b: reentrant(a, graph()), ""),
        (lambda a, b: reentrant(lambda x, dummy: a(x), FIXED, graph()), ""),
        (lambda a, b: reentrant(a, FIXED), "a"),
        (lambda a, b: reentrant(a, a(FIXED)), ""),
        (lambda a, b: Offloaded.apply(a, graph()), ""),
        (lambda a, b: reentrant(lambda x: b(reentrant(a, x)), graph()), ""),
        (lambda a, b: torch.no_grad()(lambda: reentrant(a, FIXED))(), ""),
    ],
    ids=["other mode", "graph", "dummy", "frozen", "behind another", "one's own", "in another", "without grad"],
)
def test_a_checkpoint_with_a_graph_cuts_nothing_off(run, frozen):
    assert cut_off(run, frozen) == []
