"""The models of this project train under each strategy as they do in a single process."""

import pytest


@pytest.mark.faultline(strategies="ddp,zero3,fsdp2", checkpointing="off")
def test_model():
    import model

    return model.model(), model.loss, model.batch()


@pytest.mark.xfail(strict=True, reason="ddp_forward_bypasses_wrapper")
@pytest.mark.faultline(strategies="ddp", checkpointing="off")
def test_loss_around_the_wrapper():
    import model

    return model.model(), model.loss_around_the_wrapper, model.batch()
