"""A tiny config of the same classes: layers, widths, experts and vocabulary small, structure and tying kept."""

import re
from typing import Any

Config = dict[str, Any]  # as ``to_dict`` gives it, and a part of one

# A key's whole name, and the most that it keeps. The first that matches counts; None leaves the value alone.
MOST: tuple[tuple[re.Pattern[str], int | None], ...] = tuple(
    (re.compile(pattern), most)
    for pattern, most in (
        (r".*(_token|_id|_ids|_index|_idx|_tokens)", None),
        (
            r"num_(attention_)?head_channels|num_labels|num_channels|in_channels|out_channels|num_mel_bins|spatial.*",
            None,
        ),
        (r"(num_)?(hidden_|encoder_|decoder_|transformer_|text_|block_)?layers|n_layers?|depth|num_blocks", 2),
        (r"num_(encoder|decoder|hidden|speech_encoder|conformer|dec|enc|global)_layers", 2),
        (r"(num_|n_)?(local_|routed_)?experts|moe_num_experts|num_experts_per_layer", 4),
        (r"(num_experts_per_tok|top_?k_experts|moe_topk|moe_k|top_k|num_selected_experts|expert_top_k)", 2),
        (r"(mamba_|ssm_)?n_?groups|n_group|topk_group|num_expert_group|num_limited_groups", 1),
        (r"first_k_dense_replace|num_dense_layers|n_shared_experts|num_shared_experts", 1),
        (r"(num_|n_)?(attention_|encoder_attention_|decoder_attention_)?heads?|n_head|attention_heads", 4),
        (r"head_dim|kv_channels|d_kv|.*_head_dim|attention_head_size|head_size|rotary_dim|d_head", 8),
        (r"(q|kv|o|k|v|a|decay|gate)_(lora_)?(rank|low_rank_dim)|.*lora_rank.*|lora_dim", 16),
        (r"(shared_|moe_|expert_|dense_)*(expert_|moe_)(intermediate|ffn_hidden|ffn)_size|moe_ffn.*", 16),
        (r".*(intermediate|ffn_hidden|ffn_embed|inner|feedforward)_(size|dim)|.*ffn_dim|d_ff|n_inner|d_inner", 48),
        (r"conv_channels", 32),
        (r"vocab_size.*|.*_vocab_size|codebook_size", 128),
        (r"num_codebooks", 4),
        (
            r"(word_embed_proj_dim|hidden_size|d_model|n_embd|embed_dim|model_dim|hidden_dim|embedding_size|emb_dim|dim)",
            32,
        ),
        (
            r".*_hidden_size|.*_hidden_dim|.*_embed_dim|output_dim|projection_(dim|size)|.*_projection_dim|out_hidden_size",
            32,
        ),
        (r"max_position_embeddings|n_positions|max_sequence_length|max_seq_len|seq_length", 512),
        (r"max_source_positions", 16),
        (r"sliding_window|(attention_|mamba_)?chunk_size|window_size|local_attention", 8),
        (r"temporal_patch_size|mm_tokens_per_image", 4),
    )
)
VOCABULARY = 128
PATCH, IMAGE = 4, 16  # pixels to a side: an image of 4 x 4 patches
HEAD = 8  # the least that rotary embeddings of every kind can share out
SECTIONS = (HEAD // 2 - 2, 1, 1)  # of them, for the time, height and width of a picture's place
STAGES = re.compile(r"(encoder_)?hidden_sizes|conv_dim|dim_embed|embed_dims?")  # lists with a width for each stage
WIDEST = 64  # stage
DERIVED = ("stage_names", "out_features", "out_indices", "attention_layers")  # a class makes them of its layers
KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")


def shrunk(config: Config) -> Config:
    """A tiny config from a whole one.

    Dropout is off, images are of 4 x 4 patches. Special tokens get ids that fit the small vocabulary, the same id where
    they were the same. A list with an entry for each layer keeps one of each kind, in its order.
    """
    return _part(config, _ids(config))


def unset(config: Any) -> list[str]:
    """The keys, other than of tokens, that a type adds to those of all configs and that have no value: its class may
    count on one."""
    from transformers import PretrainedConfig

    usual = PretrainedConfig().to_dict()
    keys = [key for key, value in config.get_text_config().to_dict().items() if value is None and key not in usual]
    return [key for key in keys if not _names_token(key)]


def _ids(config: Config) -> dict[int, int]:
    """A small id for each special token of a config and its parts."""
    ids: dict[int, int] = {}

    def look(part: Config) -> None:
        for key, value in part.items():
            if isinstance(value, dict):
                look(value)
            elif _names_token(str(key)):
                for number in value if isinstance(value, list) else [value]:
                    if type(number) is int and number >= 0:
                        ids.setdefault(number, len(ids))

    look(config)
    return ids


def _names_token(key: str) -> bool:
    return bool(re.fullmatch(r".*_token_(id|index|ids)|(audio|image|video)_(token_)?(id|index)|.*_token_id_.*", key))


def _part(part: Config, ids: dict[int, int]) -> Config:
    small = {key: _value(str(key), value, ids) for key, value in part.items() if key not in DERIVED}
    layers = next((part[key] for key in KINDS if isinstance(part.get(key), list)), None)
    if layers:
        places = _one_of_each(part, len(layers))
        for key, value in part.items():
            if isinstance(value, list) and len(value) == len(layers):
                small[key] = [value[index] for index in places]
            elif key == "per_layer_config" and isinstance(value, dict):
                layer = {int(index): config for index, config in value.items()}
                small[key] = {to: _part(layer[index], ids) for to, index in enumerate(places) if index in layer}
        for key in ("num_hidden_layers", "num_layers", "n_layer"):
            if key in small:
                small[key] = len(places)
        if part.get("num_kv_shared_layers"):
            small["num_kv_shared_layers"] = sum(i >= len(layers) - part["num_kv_shared_layers"] for i in places)
    _heads(part, small)
    return small


def _one_of_each(part: Config, count: int) -> list[int]:
    """The indices of at least two layers that have every combination of kinds."""
    shared = count - (part.get("num_kv_shared_layers") or 0)  # from there on, layers use the keys of earlier ones
    kinds = [
        (i >= shared, *(str(part[key][i]) for key in KINDS if isinstance(part.get(key), list))) for i in range(count)
    ]
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    others = [index for index in range(count) if index not in firsts]
    return sorted(firsts + others[: max(0, 2 - len(firsts))])


def _value(key: str, value: Any, ids: dict[int, int]) -> Any:
    if key == "use_cache":
        return False
    if isinstance(value, dict):
        return _part(value, ids)
    if _names_token(key):
        if isinstance(value, list):
            return [ids.get(number, number) for number in value]
        return ids.get(value, value) if type(value) is int else value
    for name, pixels in (("patch_size", PATCH), ("image_size", IMAGE)):
        if key == name and value:
            return [pixels] * len(value) if isinstance(value, list | tuple) else pixels
    if isinstance(value, list) and value and all(type(each) is int for each in value):
        if STAGES.fullmatch(key):
            return [max(8, each * WIDEST // max(*value, WIDEST)) for each in value]
        if key in ("depths", "num_heads"):
            return [min(each, 2) for each in value]
    if key == "attention_types":  # kinds of layers, each with how often they follow each other
        return [[kinds, 1] for kinds, _ in value]
    if isinstance(value, float) and re.search(r"dropout|pdrop|drop_path|drop_rate|layerdrop|jitter|mask_\w+_prob", key):
        return 0.0  # random numbers that are drawn inside of functions can't be the same on ranks and in one process
    if key == "initializer_range" and isinstance(value, float):
        return 0.1  # so that small layers have gradients of a size that rounding doesn't hide
    most = next((most for pattern, most in MOST if pattern.fullmatch(key)), None)
    if most is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, most) if value > 0 else value
    return value


def _heads(part: Config, small: Config) -> None:
    """Widths that belong to each other: query heads per key, rotary parts of a head, all heads together."""
    wide, inner = part.get("hidden_size"), part.get("intermediate_size")
    if type(wide) is int and type(inner) is int and inner in (wide, 2 * wide, 4 * wide):
        small["intermediate_size"] = inner // wide * small["hidden_size"]  # some models count on it
    for heads in ("num_attention_heads", "num_heads", "n_head", "n_heads"):
        if type(part.get(heads)) is int:
            for few in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"):
                if part.get(few, 0) is None:
                    small[few] = small[heads]
                elif type(part.get(few)) is int and part[few] > 0:
                    small[few] = small[heads] if part[few] == part[heads] else min(part[few], small[heads] // 2)
    for heads, wide, expand in (("mamba_n_heads", "mamba_d_head", "mamba_expand"), ("num_heads", "head_dim", "expand")):
        if type(part.get(heads)) is int and expand in part:
            small[heads] = 4
            small[wide] = int(part[expand] * small["hidden_size"]) // 4
    if "mamba_d_ssm" in part:
        small["mamba_d_ssm"] = small["mamba_n_heads"] * small["mamba_d_head"]
    if part.get("head_dim", 0) is None:
        small["head_dim"] = HEAD
    for factors in ("short_factor", "long_factor"):
        if isinstance(part.get(factors), list):
            small[factors] = part[factors][: HEAD // 2]
    for rope in small.values():
        if isinstance(rope, dict) and "mrope_section" in rope:
            rope["mrope_section"] = list(SECTIONS)
