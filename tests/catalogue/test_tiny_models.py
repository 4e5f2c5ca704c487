"""Tiny models: small, the same bits from the same seed, and really what their names say."""

from __future__ import annotations

import hashlib
import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import Gemma3ForConditionalGeneration, Qwen2ForCausalLM

from tiny_models import data
from tiny_models.gemma3 import TOKENS_PER_IMAGE, gemma3, processor
from tiny_models.group_decode import SpeechModel, speech_model
from tiny_models.per_image_vision import per_image_vision_model
from tiny_models.qwen2 import add_lora, lora_config, qwen2
from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE, VOCABULARY, tokenizer


def lora(seed=0):
    return add_lora(qwen2(seed=seed), seed=seed + 1)


MODELS = {"gemma3": gemma3, "qwen2": qwen2, "lora": lora, "speech": speech_model, "per_image": per_image_vision_model}
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def bits(model):
    """A digest of every weight: two models share it only if they are equal to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@given(st.sampled_from(sorted(MODELS)), SEEDS, SEEDS)
@settings(deadline=None, max_examples=15)
def test_law_the_seed_alone_decides_the_weights(name, seed, noise):
    first = bits(MODELS[name](seed=seed))
    torch.manual_seed(noise)
    assert bits(MODELS[name](seed=seed)) == first, f"{name} depends on more than its seed"
    assert bits(MODELS[name](seed=(seed + 1) % 2**32)) != first, f"{name} ignores its seed"


def unfit(make):
    """What makes a model unfit for cells."""
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    model = make()
    if not torch.equal(torch.get_rng_state(), before[0]) or random.getstate() != before[1]:
        yield "building it moves a generator of random numbers"
    count = sum(parameter.numel() for parameter in model.parameters())
    if not 1_000 < count <= 100_000:
        yield f"it has {count} parameters: cells become slow, or there is nothing to shard"
    for name, parameter in model.named_parameters():
        if parameter.detach().flatten().unique().numel() < 2:
            yield f"{name} is constant and can hide a lost gradient"
    for module in model.modules():  # `share_dropout` reaches modules, and no dropout inside a function
        if getattr(getattr(module, "config", None), "attention_dropout", 0):
            yield "it drops attention by a function: ranks and reference would differ"


def test_models_are_fit_for_cells():
    """Breaks when a model is slow, or hides what it was made to show."""
    wrong = {name: [*unfit(make)] for name, make in MODELS.items()}
    assert {name: said for name, said in wrong.items() if said} == {}


@pytest.mark.parametrize(("make", "cls"), [(gemma3, Gemma3ForConditionalGeneration), (qwen2, Qwen2ForCausalLM)])
def test_saving_and_loading_gives_the_same_model(make, cls, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    assert type(model) is type(loaded) is cls
    assert bits(model) == bits(loaded), "a trainer that loads the model by name would train another one"
    assert len([*model.parameters()]) == len([*loaded.parameters()]), "weights are tied in one of them alone"


def test_gemma3_takes_what_its_processor_makes_of_text_and_images():
    pictures = [[data.picture([200, 30, 30])], [data.picture([30, 160, 40])]]
    texts = ["<boi>a red field", "<boi>one green leaf"]
    two_rows = processor()(text=texts, images=pictures, padding=True, padding_side="right", return_tensors="pt")
    images = (two_rows["input_ids"] == SPECIAL.index("<image>")).sum(1).tolist()
    assert images == [TOKENS_PER_IMAGE] * 2, "the processor leaves another room for an image than the tower fills"
    model = gemma3()
    assert type(model.model.vision_tower).__name__ == "SiglipVisionModel", "no real vision tower to leave unused"
    assert type(model.model.multi_modal_projector).__name__ == "Gemma3MultiModalProjector"
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for part in ("vision_tower.encoder.layers.0", "multi_modal_projector", "language_model.layers.0"):
        assert any(part in name for name in names), f"nothing of {part} is trained: the failure could not happen"
    logits = model(**two_rows).logits
    assert logits.shape == (*two_rows["input_ids"].shape, VOCAB_SIZE)
    logits.square().mean().backward()
    tower = model.model.vision_tower.embeddings.patch_embedding.weight
    assert tower.grad is not None and tower.grad.norm() > 0, "the image doesn't reach the logits"
    other = dict(two_rows, pixel_values=two_rows["pixel_values"].clone())
    other["pixel_values"][1] *= -1
    model.eval()
    with torch.no_grad():
        before, after = model(**two_rows).logits, model(**other).logits
    torch.testing.assert_close(before[0], after[0])
    assert (before[1] - after[1]).abs().max() > 1e-3, "the second row does not see its image"


def test_lora_keeps_the_scale_and_dropout_of_the_report_and_trains_alone(tmp_path):
    config, report = lora_config(), {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}
    assert config.lora_alpha / config.r == report["lora_alpha"] / report["r"] == 2
    assert config.lora_dropout == report["lora_dropout"]
    model = lora(seed=4)
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    assert len(layers) == 2, "q_proj and v_proj carry an adapter"
    for layer in layers:
        assert layer.scaling == {"default": 2.0}, "the adapter has another scale than the report's"
        assert [drop.p for drop in layer.lora_dropout.values()] == [0.05]
        assert layer.lora_A["default"].weight.norm() > 0 and layer.lora_B["default"].weight.norm() > 0
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained), "the base is not frozen: there is no failure to show"
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(qwen2(seed=4), tmp_path)
    assert bits(model) == bits(loaded), "an adapter that was saved is not the one that was trained"


sizes = partial(st.integers, min_value=1)


@given(sizes(max_value=3), sizes(max_value=6), sizes(max_value=5), sizes(max_value=20), SEEDS)
@settings(deadline=None, max_examples=20)
def test_law_layer_l_of_the_speech_adapter_has_features_lv_to_l1v(rows, tokens, layers, vocabulary, seed):
    model = speech_model(seed, audio_vocab_size=vocabulary, code_layer=layers)
    ids = torch.arange(rows * tokens).reshape(rows, tokens) % VOCAB_SIZE
    seen = []
    model.adapter.linear.register_forward_hook(lambda module, inputs, output: seen.append((*inputs, output)))
    with torch.no_grad():
        assert model(ids)[1] is None and not seen, "nobody asked, and the adapter takes part all the same"
        model.also = SpeechModel.audio
        logits, audio = model(ids)
    assert logits.shape == (rows, tokens, VOCAB_SIZE + vocabulary)
    assert audio.shape == (rows, tokens, layers, vocabulary)
    [(taken, flat)] = seen
    assert torch.equal(taken, logits[..., VOCAB_SIZE:]), "the adapter reads other logits than the audio tokens'"
    for layer in range(layers):
        features = flat[..., layer * vocabulary : (layer + 1) * vocabulary]
        assert torch.equal(audio[..., layer, :], features), f"layer {layer} holds another layer's logits"


@given(sizes(max_value=3), sizes(max_value=3), sizes(max_value=6), st.data(), SEEDS)
@settings(deadline=None, max_examples=15)
def test_law_calls_are_the_vision_towers_and_change_no_logits(rows, slices, tokens, draw, seed):
    calls = draw.draw(st.integers(1, rows * slices))
    model = per_image_vision_model(seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(SPECIAL), len(VOCABULARY), (rows, tokens), generator=generator)
    pixels = torch.randn(rows, slices, 3, 8, 8, generator=generator)
    seen = []
    model.vpm.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    with torch.no_grad():
        logits = {count: (seen.clear(), model(ids, pixels, count), len(seen))[1:] for count in (1, calls)}
        each = model(ids, pixels, rows * slices)
    assert logits[1][1] == 1 and logits[calls][1] == calls, "the tower runs another number of times than is said"
    assert each.shape == (rows, tokens, VOCAB_SIZE)
    for results, _ in logits.values():
        torch.testing.assert_close(results, each, rtol=1e-4, atol=1e-5)


# The character tokenizer reads every text of the fixtures, and marks are one token each.

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
