"""Which checkpointing mode is seen at work."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from faultline.ranks.checkpointing import CutOff, Watch


def test_a_pass_without_grad_is_no_checkpointing():
    """Breaks when a trainer whose reference is the model itself, adapters off, is taken for reentrant checkpointing."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    watch = Watch(model)
    with watch.training():
        loss = model(torch.ones(1, 2)).sum()
        with torch.no_grad():
            model(torch.ones(1, 2))
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "off"


@pytest.mark.parametrize("mode", ["off", "non-reentrant"])
def test_a_part_without_grad_is_no_checkpointing(mode):
    """Breaks when a model with a frozen tower or a target network is taken for one that checkpoints by itself."""
    tower, head = Block().requires_grad_(False), Block()
    model = torch.nn.ModuleList([tower, head])

    def forward(x):
        with torch.no_grad():
            x = tower(x)
        return checkpoint(head, x, use_reentrant=False) if mode != "off" else head(x)

    watch = Watch(model)
    with watch.training():
        loss = forward(torch.ones(1, 2)).sum()
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == mode


def test_a_reentrant_checkpoint_is_seen_where_torch_applies_functions_in_c(monkeypatch):
    """Breaks when no model can be checked with torch 2.14 or later, whose `Function.apply` is a method of C."""
    monkeypatch.setattr(torch.autograd.Function, "apply", torch._C._FunctionBase.__dict__["apply"])
    model = torch.nn.ModuleList([Block()])
    watch = Watch(model)
    with watch.training():
        loss = reentrant(model[0], torch.ones(1, 2, requires_grad=True)).sum()
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "reentrant"


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_pass_without_grad_through_checkpoints_is_none():
    """Breaks when what an evaluation does is taken for training."""
    model = torch.nn.ModuleList([Block()])
    watch = Watch(model)
    with watch.training():
        with torch.no_grad():
            reentrant(model[0], torch.ones(1, 2))
        loss = model[0](torch.ones(1, 2)).sum()
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "off"


class Rounded(torch.autograd.Function):
    """Runs a module, and lets the gradient through."""

    @staticmethod
    def forward(ctx, x, module):
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_a_function_with_a_gradient_of_its_own_is_no_checkpointing():
    """Breaks when a straight-through estimator is called reentrant, and remedies are judged in the wrong mode."""
    model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Hardtanh(), torch.nn.Linear(3, 3)])
    watch = Watch(model)
    for _ in range(2):
        with watch.training():
            out = model[2](Rounded.apply(model[0](torch.randn(2, 3)), model[1]))
        out.sum().backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "off"


def test_a_segment_that_runs_without_grad_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    first = model[0].forward
    model[0].forward = lambda x: checkpoint(lambda y: model[1](first(y)), x, use_reentrant=True)
    watch = Watch(model)
    with watch.training():
        loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "reentrant"


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
