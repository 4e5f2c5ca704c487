"""Trainers: the same completions however rows are spread, and the model beside the trained one."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faultline import trainers as faultline_trainers
from faultline.ranks import trainers

ROWS, STEPS = 8, 3


def drawn(rank, rows, blocks):
    """The tokens that a rank draws: [steps, rows]."""
    with trainers.scripted_sampling(rank, blocks):
        return [torch.multinomial(torch.ones(rows, 60), 1).flatten().tolist() for _ in range(STEPS)]


@given(world=st.sampled_from([1, 2, 4]), copies=st.sampled_from([1, 2]), in_blocks=st.booleans())
def test_law_a_prompts_completions_are_the_same_on_any_number_of_ranks(world, copies, in_blocks):
    """Breaks when a cell is compared with a reference that sampled other completions: healthy trainers diverge then."""

    def samples(world):
        """{(prompt, copy): its tokens at each step}, for prompts that ranks share in contiguous parts."""
        share, results = ROWS // world, {}
        for rank in range(world):
            prompts = range(rank * share, (rank + 1) * share)
            layout = [(p, c) for c in range(copies) for p in prompts] if in_blocks else None
            layout = layout or [(p, c) for p in prompts for c in range(copies)]
            for step in drawn(rank, share * copies, copies if in_blocks else 1):
                for place, token in zip(layout, step, strict=True):
                    results.setdefault(place, []).append(token)
        return results

    alone = samples(1)
    assert samples(world) == alone
    assert copies == 1 or any(alone[p, 0] != alone[p, 1] for p in range(ROWS)), "copies have nothing to choose between"


def test_a_trainer_without_a_second_model_is_no_evidence():
    """Breaks when a cell about a teacher passes although its trainer has none, or distils from itself."""
    relevant, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert trainers.second_model(SimpleNamespace(model=relevant, teacher_model=other), "teacher_model") is other
    for teacher in (None, relevant):
        with pytest.raises(LookupError, match="no model of its own in teacher_model"):
            trainers.second_model(SimpleNamespace(model=relevant, teacher_model=teacher), "teacher_model")
    with pytest.raises(LookupError):
        trainers.second_model(SimpleNamespace(model=relevant), "teacher_model")


@pytest.mark.slow
def test_what_trl_lacks_is_an_import_error():
    """Breaks when a trainer that a release doesn't have ends a cell in an error, where the cell is impossible."""
    assert faultline_trainers.from_trl("gkd", "SFTTrainer").__name__ == "SFTTrainer"
    assert faultline_trainers.from_trl("gkd", "GKDTrainer").__module__.startswith("trl.")
    with pytest.raises(ImportError, match="no AlchemyTrainer"):
        faultline_trainers.from_trl("alchemy", "AlchemyTrainer")
