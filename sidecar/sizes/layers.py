"""What kinds of layers a model is made of, by its ``config.json``."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from sidecar.sizes.fields import ModelFields
from sidecar.sizes.kinds import KindName, attention_kind, state_kind

Layer = tuple[KindName, ...]
"""The kinds that one layer consists of, such as attention and then experts."""

_ATTENTION: Final = frozenset(
    {
        "attention",
        "full_attention",
        "chunked_attention",
        "indexed_attention",
        "deepseek_sparse_attention",
        "qwen_sparse_attention",
    }
)
"""Kinds of layers that cache every token, as transformers names them; not the compressed ones."""
_WINDOW: Final = "sliding_attention"
_STATES: Final = frozenset({"linear_attention", "mamba", "mamba2"})
_FEED_FORWARD: Final[dict[str, KindName]] = {"mlp": "MLP", "moe": "experts"}
"""Layers that are only a feed-forward network. In such models the other layers have none."""
_BY_LETTER: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's ``hybrid_override_pattern``."""
_BY_NUMBER: Final = {0: "full_attention", 1: _WINDOW}
"""The numbers of MiMo's ``hybrid_layer_pattern``."""


def layers_of(fields: ModelFields) -> tuple[Layer, ...] | None:
    """The layers in their order; None if one of them is of an unknown kind."""
    if fields.family.has_attention_and_state:
        state = state_kind(fields)
        if state is None:
            return None
        return tuple(
            (attention_kind(fields), state, _feed_forward(fields, place))
            for place in range(fields.layers)
        )

    names = _names(fields)
    if names is not None:
        layers = _named(fields, names)
    elif fields.has_other_caches:
        return None
    else:
        layers = [_plain(fields, place) for place in range(fields.layers)]
    known = [layer for layer in layers if layer is not None]
    return tuple(known) if len(known) == len(layers) else None


def full_layers(fields: ModelFields) -> tuple[Layer, ...]:
    """The layers of a decoder, all of which attend to all tokens."""
    return tuple(
        (attention_kind(fields), _feed_forward(fields, place)) for place in range(fields.layers)
    )


def _plain(fields: ModelFields, place: int) -> Layer | None:
    """A layer of a decoder whose configuration names no kinds: it may have a window."""
    interval = fields.sliding_window_pattern or fields.family.full_interval
    is_full = interval is not None and (place + 1) % interval == 0
    kind = attention_kind(fields) if is_full else _window_kind(fields)
    return None if kind is None else (kind, _feed_forward(fields, place))


def _window_kind(fields: ModelFields) -> KindName | None:
    """The kind of a layer with a window, if windows are in use; None for MLA with a window."""
    full = attention_kind(fields)
    if not fields.use_sliding_window or not fields.sliding_window:
        return full
    return "window" if full == "attention" else None


def _named(fields: ModelFields, names: Sequence[str]) -> list[Layer | None]:
    """Layers by the names of their kinds."""
    are_apart = not _FEED_FORWARD.keys().isdisjoint(names)
    layers: list[Layer | None] = []
    for place, name in enumerate(names):
        if name in _FEED_FORWARD:
            layers.append((_FEED_FORWARD[name],))
            continue

        mixer = _mixer(fields, name)
        if mixer is None:
            layers.append(None)
        else:
            layers.append((mixer,) if are_apart else (mixer, _feed_forward(fields, place)))
    return layers


def _mixer(fields: ModelFields, name: str) -> KindName | None:
    """The kind that mixes tokens in a layer with this name; None if it is unknown."""
    if name in _ATTENTION:
        return attention_kind(fields)
    if name == _WINDOW:
        return _window_kind(fields)
    return state_kind(fields) if name in _STATES else None


def _names(fields: ModelFields) -> Sequence[str] | None:
    """The kind of each layer in the words of ``layer_types``; None if no field names them.

    Step 3.5 names more kinds than it has layers: vLLM 0.32 leaves out the last ones
    (transformers_utils/configs/step3p5.py).
    """
    if fields.layer_types is not None:
        named = fields.layer_types[: fields.layers]
        missing = fields.layers - len(named)
        return [*named, *["full_attention"] * missing]
    if fields.hybrid_override_pattern is not None:
        return [_BY_LETTER.get(letter, letter) for letter in fields.hybrid_override_pattern]
    if fields.hybrid_layer_pattern is not None:
        return [_BY_NUMBER.get(kind, str(kind)) for kind in fields.hybrid_layer_pattern]

    with_attention = _attention_places(fields)
    if with_attention is None:
        return None
    return [
        "full_attention" if place in with_attention else "linear_attention"
        for place in range(fields.layers)
    ]


def _attention_places(fields: ModelFields) -> Collection[int] | None:
    """The places of the layers with attention, from 0; None if no field names them."""
    if fields.attn_type_list is not None:
        return [place for place, kind in enumerate(fields.attn_type_list) if kind == 1]
    if fields.attention_places is not None:
        return fields.attention_places
    if fields.linear_attn_config is not None:
        numbers = fields.linear_attn_config.full_attn_layers
        return None if numbers is None else [number - 1 for number in numbers]

    period = fields.attn_layer_period
    if period is not None:
        return range(fields.attn_layer_offset, fields.layers, period)

    interval = fields.attention_interval or fields.layer_group_size
    interval = interval or fields.family.attention_interval
    return range(interval - 1, fields.layers, interval) if interval else None


def _feed_forward(fields: ModelFields, place: int) -> KindName:
    return "experts" if fields.experts and _has_experts(fields, place) else "MLP"


def _has_experts(fields: ModelFields, place: int) -> bool:
    """Whether the layer at this place has experts.

    Each family has one or two of these conditions, and leaves out the others. Sources, in vLLM
    0.32: the decoder layers in model_executor/models of deepseek_v2, ernie45_moe, glm4_moe, jamba,
    llama4, mimo_v2, qwen2_moe and step3_text.
    """
    last = fields.moe_layer_end_index
    conditions = (
        place >= fields.first_k_dense_replace,
        place >= fields.moe_layer_start_index,
        last < 0 or place <= last,
        place not in (fields.mlp_only_layers or ()),
        place % fields.expert_layer_period == fields.expert_layer_offset,
        fields.sparse_step > 0 and (place + 1) % fields.sparse_step == 0,
        _is_listed(fields, place),
    )
    return all(conditions)


def _is_listed(fields: ModelFields, place: int) -> bool:
    """Whether the field that lists the layers with experts, if there is one, has this layer."""
    frequency = fields.moe_layer_freq
    if isinstance(frequency, list):
        return place < len(frequency) and frequency[place] == 1

    listed: Collection[int] = range(0, fields.layers, max(1, frequency))
    if fields.moe_layers is not None:
        listed = fields.moe_layers
    elif fields.moe_layers_enum is not None:
        listed = [int(number) for number in re.findall(r"\d+", fields.moe_layers_enum)]
    elif fields.mlp_layer_types is not None:
        listed = [at for at, kind in enumerate(fields.mlp_layer_types) if kind == "sparse"]
    return place in listed
