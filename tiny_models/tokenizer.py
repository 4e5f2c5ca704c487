"""A character tokenizer with a chat template, and a processor for text and images on top of it."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<turn>", "<end>", "<boi>", "<image>", "<eoi>")
ROLES = ("user", "assistant", "system")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,?!\nABCD"
VOCABULARY = (*SPECIAL, *ROLES, *LETTERS)  # models have room for what a library adds
VOCAB_SIZE = 96

TEMPLATE = """\
{{ bos_token }}{% for message in messages %}<turn>{{ message['role'] }}
{{ message['content'] }}<end>
{% endfor %}{% if add_generation_prompt %}<turn>assistant
{% endif %}"""


def tokenizer(padding_side: str = "left") -> PreTrainedTokenizerFast:
    """One token for each character, role and special mark.

    Left padding is for generation. A trainer that learns from texts gets ``right``: trl 0.16 pads as its tokenizer
    says, and behind padding on the left a row's first token is predicted too, so that the loss of a row would
    depend on which rows share its rank.

    It names its inputs itself: with `token_type_ids` among them, `generate` of
    transformers 4.55 to 4.57 refuses the batch.
    """
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    backend.add_special_tokens(list(SPECIAL))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(ROLES) + r"|.|\n"), "isolated")
    backend.decoder = decoders.ByteLevel()  # what is ASCII reads the same; some trainers take no other tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens={"boi_token": "<boi>", "image_token": "<image>", "eoi_token": "<eoi>"},
        model_input_names=["input_ids", "attention_mask"],
        chat_template=TEMPLATE,
        padding_side=padding_side,
        model_max_length=512,
    )
