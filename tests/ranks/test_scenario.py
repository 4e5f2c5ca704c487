"""Batches and losses: what ranks share out adds up to the global batch, bit for bit where it must."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from faultline import trainers as faultline_trainers
from faultline.cells.cell import STEPS, WORLD_SIZES
from faultline.ranks import trainers
from faultline.scenario import my_rows, next_token_loss, sgd, share_dropout, to, token_batch
from tiny_models import data
from tiny_models.gemma3 import processor
from tiny_models.tokenizer import SPECIAL

ids = st.integers(min_value=1, max_value=10)
ROWS = st.lists(st.lists(ids, min_size=1, max_size=9), min_size=4, max_size=4)


def bigram_logits(table, batch):
    """Logits [B, T, vocabulary] of a model that looks only at the token itself."""
    return table[batch["input_ids"]]


@given(ROWS, st.integers(min_value=0, max_value=2**32 - 1))
def test_law_the_mean_of_the_ranks_losses_is_the_loss_of_the_global_batch(rows, seed):
    """And so is the mean of their gradients, which is what every strategy computes."""
    tokens = sum(len(row) - 1 for row in rows)
    assume(tokens)
    table = torch.randn(11, 11, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    pairs = [(a, b) for row in rows for a, b in pairwise(row)]
    by_hand = -sum(table.log_softmax(-1)[a, b] for a, b in pairs) / tokens
    wanted = torch.autograd.grad(by_hand, table)[0]
    for world in WORLD_SIZES:
        batches = [token_batch(rows, rank, world) for rank in range(world)]
        mean = sum(next_token_loss(bigram_logits(table, batch), batch) for batch in batches) / world
        torch.testing.assert_close(mean, by_hand, msg=lambda m, w=world: f"{w} ranks train on another loss: {m}")
        torch.testing.assert_close(torch.autograd.grad(mean, table)[0], wanted)


@given(ROWS, st.integers(min_value=0, max_value=10))
def test_law_padding_is_never_trained_on_and_every_rank_pads_to_the_same_width(rows, pad):
    assume(sum(len(row) - 1 for row in rows))
    table = torch.randn(11, 11, generator=torch.Generator().manual_seed(0))
    plain, padded = token_batch(rows, 0, 1), token_batch(rows, 0, 1, pad)
    assert torch.equal(plain["labels"], padded["labels"]), "the padding token became a label"
    assert torch.equal(padded["attention_mask"].sum(1), torch.tensor([len(row) for row in rows]))
    losses = [next_token_loss(bigram_logits(table, batch), batch) for batch in (plain, padded)]
    assert torch.equal(*losses), "what stands in the padding changes the loss"
    for world in WORLD_SIZES:
        batches = [token_batch(rows, rank, world)["input_ids"] for rank in range(world)]
        assert torch.equal(torch.cat(batches), plain["input_ids"]), "rows are lost or out of order"


def dropped(modules, seed):
    """A model of dropout modules whose masks are shared, as ranks see it, with another global state each time."""
    model = torch.nn.ModuleList(modules).train()
    share_dropout(model)
    torch.manual_seed(seed)
    return model


@given(
    st.integers(min_value=1, max_value=4),
    st.integers(min_value=1, max_value=6),
    st.integers(min_value=1, max_value=33),
    st.sampled_from([0.05, 0.5, 0.9]),
    st.integers(min_value=0, max_value=2**32 - 1),
)
def test_law_shared_dropout_knows_neither_rows_nor_padding(rows, tokens, channels, rate, seed):
    x = torch.randn(rows, tokens, channels, generator=torch.Generator().manual_seed(seed))
    whole = dropped([torch.nn.Dropout(rate)], seed)[0](x)
    again = dropped([torch.nn.Dropout(rate)], seed + 1)[0]
    assert torch.equal(torch.cat([again(row[None]) for row in x]), whole), "a row's mask depends on its batch"
    padded = torch.nn.functional.pad(x, (0, 0, 0, 3))
    assert torch.equal(again(padded)[:, :tokens], whole), "a token's mask depends on the padding"
    assert torch.equal(again(x), whole), "a second forward pass draws another mask: checkpointing would recompute it"
    flat = again(x.flatten(0, 1)).reshape(x.shape)
    assert torch.equal(flat, whole), "a token's mask depends on how the batch is laid out"


def test_shared_dropout_is_dropout():
    x = torch.ones(2, 3, 20_000)
    first, second, none = dropped([torch.nn.Dropout(0.3), torch.nn.Dropout(0.3), torch.nn.Dropout(0.0)], 0)
    remaining = first(x) != 0
    assert abs(remaining.float().mean() - 0.7) < 0.02, "it drops another share than its rate"
    torch.testing.assert_close(first(x)[remaining], torch.full_like(x, 1 / 0.7)[remaining])
    assert not torch.equal(first(x), second(x)), "every module has the same mask"
    assert torch.equal(none(x), x)
    first.eval()
    assert torch.equal(first(x), x), "dropout is in force in evaluation"
    assert first(x.bfloat16()).dtype == torch.bfloat16


def test_the_optimizer_is_sgd_with_momentum_on_what_is_trained():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    [group] = sgd(model).param_groups
    assert group["params"] == [model.weight], "a frozen parameter is given to the optimizer"
    assert (type(sgd(model)), group["momentum"]) == (torch.optim.SGD, 0.9)


def test_every_step_has_other_rows_of_unequal_length_and_every_rank_another_count():
    batches = [data.text_rows(step) for step in range(STEPS)]
    assert [len(rows) for rows in batches] == [data.ROWS] * STEPS
    assert len({str(rows) for rows in batches}) == STEPS, "a stale batch would not be noticed"
    assert all(len({len(row) for row in rows}) > 1 for rows in batches), "nothing is ever padded"
    for world in WORLD_SIZES[1:]:
        counts = [
            {sum(len(row) - 1 for row in my_rows(rows, rank, world)) for rank in range(world)} for rows in batches
        ]
        assert any(len(shares) > 1 for shares in counts), "a loss that is scaled by each rank's own count looks right"
    texts = [record["text"] for record in data.records("text")]
    assert len(set(data.letter_score(texts))) > len(texts) // 2, "equal rewards make advantages of zero"


def test_each_row_has_its_own_picture():
    batch = data.image_text_batch(0, 0, 1, "dummy")
    for row, record in enumerate(data.records("image_text")[: data.ROWS]):
        picture = processor()(text="<boi>", images=[data.picture(record["colour"])], return_tensors="pt")
        assert torch.equal(batch["inputs"]["pixel_values"][row], picture["pixel_values"][0]), f"row {row} has another"


def test_marks_and_images_are_not_trained_on():
    dummy, plain = (data.image_text_batch(0, 0, 1, images)["labels"] for images in ("dummy", "none"))
    trained = set(dummy[dummy != -100].tolist())
    marks = {SPECIAL.index(mark) for mark in ("<pad>", "<boi>", "<image>", "<eoi>")}
    assert trained and not trained & marks, "the model learns to write marks"
    for with_image, without in zip(dummy, plain, strict=True):
        assert with_image[with_image != -100].tolist() == without[without != -100].tolist(), "a dummy adds something"


def test_a_batch_stays_what_it_is_on_a_device_and_only_numbers_with_fractions_change_their_type():
    """Breaks when bf16 makes other tokens of ids, or a tuple comes back as a list."""
    batch = {"ids": torch.tensor([300, 1]), "rest": [(torch.tensor([0.5]), "text"), torch.tensor([True])]}
    moved = to(batch, torch.device("cpu"), torch.bfloat16)
    assert moved["ids"].equal(batch["ids"]) and moved["ids"].dtype == torch.int64
    (numbers, text), mask = moved["rest"]
    assert (numbers.dtype, text, mask.dtype) == (torch.bfloat16, "text", torch.bool)
    assert isinstance(moved["rest"][0], tuple)
    assert to(batch, torch.device("cpu"))["rest"][0][0].dtype == torch.float32


# Trainers: the same completions however rows are spread, and the model beside the trained one.

PROMPTS = 8


def drawn(rank, rows, blocks):
    """The tokens that a rank draws: [steps, rows]."""
    with trainers.scripted_sampling(rank, blocks):
        return [torch.multinomial(torch.ones(rows, 60), 1).flatten().tolist() for _ in range(STEPS)]


@given(world=st.sampled_from([1, 2, 4]), copies=st.sampled_from([1, 2]), in_blocks=st.booleans())
def test_law_a_prompts_completions_are_the_same_on_any_number_of_ranks(world, copies, in_blocks):
    """Breaks when a cell is compared with a reference that sampled other completions: healthy trainers diverge then."""

    def samples(world):
        """{(prompt, copy): its tokens at each step}, for prompts that ranks share in contiguous parts."""
        share, results = PROMPTS // world, {}
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
    assert copies == 1 or any(alone[p, 0] != alone[p, 1] for p in range(PROMPTS)), (
        "copies have nothing to choose between"
    )


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
