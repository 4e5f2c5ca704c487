"""Which checkpointing mode is seen at work."""

import torch

from faultline.checkpointing import Watch


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


def test_a_segment_that_runs_without_grad_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    first = model[0].forward
    model[0].forward = lambda x: torch.utils.checkpoint.checkpoint(lambda y: model[1](first(y)), x, use_reentrant=True)
    watch = Watch(model)
    with watch.training():
        loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    loss.backward()
    watch.close()
    assert watch.evidence()["checkpointing_seen"] == "reentrant"
