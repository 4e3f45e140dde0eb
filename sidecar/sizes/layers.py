"""What each layer of a model is, by its ``config.json``: attention or a state, dense or experts."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.sizes.fields import ModelFields

Mixer = Literal["attention", "state", "both", "none"]
"""What mixes tokens: attention, which caches keys and values, or a state of fixed size."""
FeedForward = Literal["dense", "experts", "none"]

_ATTENTION: Final = frozenset(
    {
        "attention",
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "indexed_attention",
        "deepseek_sparse_attention",
        "qwen_sparse_attention",
    }
)
"""Kinds of layers that cache every token, as transformers names them; not the compressed ones."""
_STATES: Final = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv"})
_FEED_FORWARD: Final[dict[str, FeedForward]] = {"mlp": "dense", "moe": "experts"}
"""Kinds of layers that mix nothing. Beside them, the other layers have no feed-forward network."""
_BY_LETTER: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The letters of Nemotron-H's ``hybrid_override_pattern``."""
_WINDOWS_OF_MIMO: Final = {0: "full_attention", 1: "sliding_attention"}
_EVERY_FOURTH: Final = ("qwen3_next", "qwen3_5")
"""Families of which every fourth layer has attention if no field says it, as in transformers."""
_ATTENTION_AND_STATE: Final = frozenset({"falcon_h1"})
"""Families of which each layer has both."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; ``window`` is that of its attention in tokens, None for full attention."""

    mixer: Mixer
    feed_forward: FeedForward
    window: int | None = None

    @property
    def has_attention(self) -> bool:
        """Whether it caches keys and values."""
        return self.mixer in {"attention", "both"}

    @property
    def has_state(self) -> bool:
        """Whether it keeps a state of fixed size for each request."""
        return self.mixer in {"state", "both"}


def layers_of(fields: ModelFields) -> tuple[Layer, ...] | None:
    """The layers in their order; None if no known field says which of them have attention."""
    if fields.model_type in _ATTENTION_AND_STATE:
        return tuple(_uniform(fields, "both"))

    kinds = _kinds(fields)
    if kinds is not None:
        return tuple(_named(fields, kinds)) if all(map(_is_known, kinds)) else None
    if fields.has_other_caches:
        return None
    return plain_layers(fields)


def plain_layers(fields: ModelFields) -> tuple[Layer, ...]:
    """The layers of a decoder in which each has attention."""
    return tuple(_uniform(fields, "attention"))


def _uniform(fields: ModelFields, mixer: Mixer) -> Iterator[Layer]:
    """Layers that mix alike, but for the windows that follow from the family."""
    for place in range(fields.layers):
        yield Layer(mixer, _feed_forward(fields, place), _window(fields, place))


def _window(fields: ModelFields, place: int) -> int | None:
    sliding = fields.sliding_window if fields.use_sliding_window else None
    pattern = fields.sliding_window_pattern
    if fields.model_type == "gemma2":
        pattern = pattern or 2

    is_full = pattern is not None and (place + 1) % pattern == 0
    return None if is_full else sliding


def _named(fields: ModelFields, kinds: Sequence[str]) -> Iterator[Layer]:
    """Layers by the names of their kinds."""
    sliding = fields.sliding_window if fields.use_sliding_window else None
    are_apart = not _FEED_FORWARD.keys().isdisjoint(kinds)

    for place, kind in enumerate(kinds):
        if kind in _FEED_FORWARD:
            yield Layer("none", _FEED_FORWARD[kind])
            continue

        feed_forward = "none" if are_apart else _feed_forward(fields, place)
        if kind in _STATES:
            yield Layer("state", feed_forward)
        else:
            yield Layer("attention", feed_forward, sliding if "sliding" in kind else None)


def _is_known(kind: str) -> bool:
    return kind in _ATTENTION or kind in _STATES or kind in _FEED_FORWARD


def _kinds(fields: ModelFields) -> Sequence[str] | None:
    """The kind of each layer in the words of ``layer_types``; None if no field tells them apart.

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
        return [_WINDOWS_OF_MIMO.get(kind, str(kind)) for kind in fields.hybrid_layer_pattern]

    with_attention = _attention_places(fields)
    if with_attention is None:
        return None
    return [
        "full_attention" if place in with_attention else "linear_attention"
        for place in range(fields.layers)
    ]


def _attention_places(fields: ModelFields) -> Collection[int] | None:
    """The places of the layers with attention, counted from 0; None if no field says them."""
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

    interval = fields.attention_interval
    if not interval and (fields.model_type or "").startswith(_EVERY_FOURTH):
        interval = 4
    return range(interval - 1, fields.layers, interval) if interval else None


def _feed_forward(fields: ModelFields, place: int) -> FeedForward:
    return "experts" if fields.experts and _has_experts(fields, place) else "dense"


def _has_experts(fields: ModelFields, place: int) -> bool:
    """Whether the layer at this place has experts.

    Each family has one or two of these conditions, and leaves out the others. Sources, of vLLM
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
    """Whether the fields that list layers with experts, if there are any, have this one."""
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
