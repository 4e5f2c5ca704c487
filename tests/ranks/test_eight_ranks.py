"""Cells of eight ranks, with a global batch of eight rows."""

import pytest

from tests.support.program import python

CELLS = (
    "grpo_lora_no_grad/broken/zero3/reentrant/fp32/w8/cpu",
    "grpo_lora_no_grad/sft-broken/fsdp2/reentrant/fp32/w8/cpu",
    "zero3_dummy_loss/broken/ddp/off/fp32/w8/cpu",
)


@pytest.mark.slow
def test_eight_ranks_are_in_the_matrix_of_eight_rows_alone():
    """Breaks when the default matrix grows by cells that a machine of two cores can't run; or when somebody with eight
    GPUs reads that it can't be, and not how it can."""
    refused = python("-m", "faultline", "list", "--world", "8")
    assert refused.returncode == 2 and "with FAULTLINE_ROWS=8 also over 8" in refused.stderr
    listed = python("-m", "faultline", "list", "--ids", "--failure", "grpo_lora_no_grad", FAULTLINE_ROWS="8")
    assert "/w8/" in listed.stdout


@pytest.mark.slow
@pytest.mark.nightly
def test_eight_ranks_do_what_four_do(tmp_path):
    """Breaks when a global batch of eight rows isn't shared by eight ranks, or is held against one of four."""
    done = python(
        "-m", "faultline", "run", "--cell", ",".join(CELLS), "--results", str(tmp_path / "run"), FAULTLINE_ROWS="8"
    )
    assert done.returncode == 0, done.stdout
    assert "3 cells: trains 2, raises 1; 0 not as expected" in done.stdout
