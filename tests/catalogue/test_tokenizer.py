"""The character tokenizer: it reads every text of the fixtures, and marks are one token each."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tiny_models import data
from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE, VOCABULARY, tokenizer

WORDS = tokenizer()
FIXTURES = ("text", "prompts", "image_text")


def read(text):
    """What the tokenizer makes of a text, its tokens put together."""
    return "".join(WORDS.convert_ids_to_tokens(WORDS(text)["input_ids"]))


def test_the_tokenizer_knows_every_character_of_the_fixtures_and_gives_it_back():
    for record in (record for name in FIXTURES for record in data.records(name)):
        text = record.get("text") or record["prompt"]
        assert read(text) == text, "a character is unknown or lost"
        assert WORDS.decode(WORDS(text)["input_ids"]) == text, "rewards and logs would read another text"


PLAIN = st.lists(st.sampled_from([word for word in VOCABULARY if word not in SPECIAL])).map("".join)


@given(PLAIN)
@example("a\n\nb")
@settings(deadline=None)
def test_law_tokens_put_together_are_the_text(text):
    assert read(text) == text


def test_special_tokens_are_single_ids():
    for number, mark in enumerate(SPECIAL):
        assert WORDS(mark)["input_ids"] == [number], f"{mark} is not one token: masks and image places would be off"
        assert WORDS(f"a{mark}b")["input_ids"][1:-1] == [number], f"{mark} is not found inside of text"
    assert len(VOCABULARY) == len(set(VOCABULARY)) <= VOCAB_SIZE
    assert WORDS.model_input_names == ["input_ids", "attention_mask"]
    assert {*WORDS("a red field")} == {"input_ids", "attention_mask"}, "older releases refuse the batch"


def test_the_chat_template_marks_turns():
    messages = [{"role": "user", "content": "<boi>what is it"}, {"role": "assistant", "content": "a leaf"}]
    text = WORDS.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><turn>user\n<boi>what is it<end>\n<turn>assistant\na leaf<end>\n<turn>assistant\n"
    tokens = WORDS.convert_ids_to_tokens(WORDS(text)["input_ids"])
    assert tokens[:4] == ["<bos>", "<turn>", "user", "\n"], "a role is one token"
    assert "<unk>" not in tokens, "the template writes what the tokenizer can't read"
