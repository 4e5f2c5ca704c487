"""A small batch for a model of transformers: text, and images and sound where it takes them."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from faultline.base.errors import NotTaken, Refused
from faultline.ranks.own_model import shrink
from faultline.strategies import ROWS

WIDTH = 12  # tokens of text in a row
FRAMES = 64  # of a spectrogram
SAMPLES = 8000  # of a wave: half a second
SIDE = 32  # pixels of an image, where the model leaves it open
GRID = 4  # patches to each side of an image, where the model leaves it open

Batch = dict[str, Any]


def loss(model: Any, batch: Batch) -> Any:
    return model(**batch).loss


def of(model: Any) -> tuple[Batch, list[str]]:
    """The fullest batch of ROWS rows that a model takes and has a finite loss for, and what fuller ones failed of.

    Raises Refused where there is none.
    """
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    tried: dict[str, str] = {}
    for name, make in MAKERS.items():
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(3)
            try:
                batch = make(bare)
                loss = getattr(bare(**batch), "loss", None)
            except NotTaken:
                continue
            except Exception as error:  # noqa: BLE001 - what a model doesn't take, it says in any way
                tried[name] = " ".join(f"{type(error).__name__}: {error}".split())[:150]
                continue
        if loss is not None and loss.isfinite():
            return batch, [f"{each} ({why})" for each, why in tried.items() if "pictures" in each or "sound" in each]
        tried[name] = "no finite loss"
    what = f"no batch could be made for {type(bare).__name__}; give a function that returns (model, loss, batch)"
    unset = shrink.unset(bare.config) if hasattr(bare, "config") else []
    without = f" Its config has no value for {', '.join(unset)}." if unset else ""
    raise Refused(f"{what}.{without} Tried: {'; '.join(f'{name} ({why})' for name, why in tried.items())}")


def _spectrogram(model: Any, transposed: bool = False) -> Batch:
    """For models that turn speech into text, or tell classes of it."""
    features, _ = list(_spectrograms(model.config))[transposed]
    return {"input_features": features} | _labels(model, torch.randint(16, 100, (ROWS, WIDTH)))


def _wave(model: Any) -> Batch:
    """For models that take the wave itself."""
    if "input_values" not in inspect.signature(model.forward).parameters:
        raise NotTaken
    return {"input_values": torch.randn(ROWS, SAMPLES)} | _labels(model, torch.randint(4, 30, (ROWS, WIDTH)))


def _image(model: Any) -> Batch:
    config = model.config
    halved = hasattr(config, "depths")  # from stage to stage
    size = SIDE if halved else _number(config, "image_size", SIDE)
    pixels = torch.randn(ROWS, config.num_channels, size, size)
    return {"pixel_values": pixels, "labels": torch.arange(ROWS) % config.num_labels}


def _pairs(model: Any) -> Batch:
    """For models that tell which text belongs to which picture: their loss is asked for."""
    takes = inspect.signature(model.forward).parameters
    if not {"return_loss", "pixel_values", "input_ids"} <= takes.keys():
        raise NotTaken
    vision = model.config.vision_config
    size, ids = _number(vision, "image_size", GRID), _tokens(model)
    pixels = torch.randn(ROWS, _number(vision, "num_channels", 3), size, size)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels, "return_loss": True}


def _tokens(model: Any) -> torch.Tensor:
    """Rows of ordinary tokens [ROWS, WIDTH], drawn at random."""
    highest = getattr(model.config.get_text_config(), "vocab_size", shrink.VOCABULARY)
    return torch.randint(min(32, highest // 2), min(shrink.VOCABULARY, highest), (ROWS, WIDTH))


def _text(model: Any, *media: Callable[[Any], tuple[Batch, list[int]]]) -> Batch:
    """Rows of ordinary tokens behind those that stand for pictures and sound."""
    batch: Batch = {}
    marks: list[int] = []
    for make in media:
        features, places = make(model)
        batch |= features
        marks += places
    text = _tokens(model)
    ids = torch.cat([torch.tensor([marks] * ROWS, dtype=torch.long).reshape(ROWS, -1), text], dim=1)
    special = torch.isin(ids, torch.tensor(sorted(set(marks)), dtype=torch.long))
    takes = inspect.signature(model.forward).parameters if media else ()
    types = {name: special.long() for name in ("token_type_ids", "mm_token_type_ids") if name in takes}
    labels = _labels(model, ids.masked_fill(special, -100))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **batch, **types, **labels}


def _pixels(model: Any) -> tuple[Batch, list[int]]:
    """Pixels for one picture a row, and the tokens that stand for one."""
    features = getattr(model, "get_image_features", None)
    if not features:
        raise NotTaken
    token = _token(model.config, "image_token_id", "image_token_index", "image_id")
    vision = model.config.vision_config
    takes = inspect.signature(features).parameters
    patch = _number(vision, "patch_size", 4)
    if "image_grid_thw" in takes:
        channels = _number(vision, "in_channels", _number(vision, "num_channels", 3))
        deep = channels * _number(vision, "temporal_patch_size", 1)
        pixels = torch.randn(ROWS * GRID * GRID, deep * patch * patch)
        batch = {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, GRID, GRID]] * ROWS)}
    elif "image_position_ids" in takes:  # patches with their places, of which some are pooled into a token
        side = 2 * _number(vision, "pooling_kernel_size", 1)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).repeat(ROWS, 1, 1)
        pixels = torch.randn(ROWS, side * side, _number(vision, "num_channels", 3) * patch * patch)
        batch = {"pixel_values": pixels, "image_position_ids": places}
    else:
        size = _number(vision, "image_size", GRID * patch)
        batch = {"pixel_values": torch.randn(ROWS, _number(vision, "num_channels", 3), size, size)}
        if "image_sizes" in takes:
            batch["image_sizes"] = torch.tensor([[size, size]] * ROWS)
        if "pixel_attention_mask" in takes:  # several pictures a row
            batch = {"pixel_values": batch["pixel_values"].unsqueeze(1)}
    return batch, [token] * _count(features(**batch))


def _heard(model: Any) -> tuple[Batch, list[int]]:
    """A spectrogram a row, and the tokens that stand for it."""
    features = getattr(model, "get_audio_features", None)
    tower: Any = getattr(getattr(model, "model", model), "audio_tower", None)
    if not features and not hasattr(tower, "_get_feat_extract_output_lengths"):
        raise NotTaken
    token = _token(model.config, "audio_token_id", "audio_token_index", "audio_id")
    takes = inspect.signature(features or model.forward).parameters
    mask = next((name for name in ("feature_attention_mask", "input_features_mask") if name in takes), "")
    errors = []
    for spectrogram, frames in _spectrograms(model.config.audio_config):
        batch = {"input_features": spectrogram}
        if mask:
            batch[mask] = torch.ones(ROWS, frames, dtype=torch.long)
        try:
            if features:
                return batch, [token] * _count(features(**batch))
            return batch, [token] * int(tower._get_feat_extract_output_lengths(torch.tensor(frames))[1])
        except Exception as error:  # noqa: BLE001 - the other way round, perhaps
            errors.append(error)
    raise errors[0]


def _spectrograms(config: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """Both ways round, [rows, mel, frames] and [rows, frames, mel], and the number of frames."""
    mel = _number(config, "num_mel_bins", _number(config, "input_feat_per_channel", 80))
    frames = 2 * _number(config, "max_source_positions", FRAMES // 2)
    yield torch.randn(ROWS, mel, frames), frames
    yield torch.randn(ROWS, frames, mel), frames


def _count(features: Any) -> int:
    """How many tokens of a row some features stand for: of ROWS equal rows, whether they are a list, flat or not."""
    features = getattr(features, "pooler_output", features)
    parts = features if isinstance(features, list | tuple) else [features]
    return sum(part.numel() // part.shape[-1] for part in parts) // ROWS


def _token(config: Any, *names: str) -> int:
    for name in names:
        if type(getattr(config, name, None)) is int:
            return getattr(config, name)
    raise LookupError(f"its config names no token for it, as {names[0]}")


def _number(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, None)
    value = value[0] if isinstance(value, list | tuple) and value else value
    return value if type(value) is int else default


def _labels(model: Any, ids: torch.Tensor) -> Batch:
    """What the head of a model learns, by the name of its class."""
    name, classes = type(model).__name__, getattr(model.config, "num_labels", 2)
    if name.endswith(("ForSequenceClassification", "ForAudioClassification", "ForImageClassification")):
        return {"labels": torch.arange(ROWS) % classes}
    if name.endswith("ForTokenClassification"):
        return {"labels": ids.clamp(min=0) % classes}
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": torch.arange(ROWS) % WIDTH, "end_positions": torch.arange(ROWS) % WIDTH}
    return {"labels": ids.clone()}


MAKERS: dict[str, Callable[[Any], Batch]] = {  # the fullest first
    "pictures with their texts": _pairs,
    "pictures and sound": lambda model: _text(model, _pixels, _heard),
    "pictures": lambda model: _text(model, _pixels),
    "sound": lambda model: _text(model, _heard),
    "text": _text,
    "spectrogram": _spectrogram,
    "transposed spectrogram": lambda model: _spectrogram(model, transposed=True),
    "wave": _wave,
    "image": _image,
}
