"""``plan``: which layers cache, keep a state or have experts, in the words of each family."""

import pytest

from benchmarks.break_even import LLAMA_8B
from tests.commands.commands_tools import command

# The dimensions of released models, as their config.json has them.
MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 128,
        "vocab_size": 202048,
    },
}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
QWEN2_57B = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "decoder_sparse_step": 1,
    "vocab_size": 151936,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
ERNIE_21B = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 27,
    "moe_layer_interval": 1,
    "vocab_size": 103424,
    "tie_word_embeddings": True,
}
MIMO_V2_FLASH = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    "head_dim": 192,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "moe_layer_freq": [0, *[1] * 47],
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, *[0, 1, 1, 1, 1, 1] * 7, 0],
    "sliding_window": 128,
    "vocab_size": 152576,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "decoder_sparse_step": 1,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 151936,
}
NEMOTRON_9B = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "hidden_size": 4480,
    "intermediate_size": 15680,
    "num_hidden_layers": 56,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "mlp_hidden_act": "relu2",
    "vocab_size": 131072,
}
NEMOTRON_30B = NEMOTRON_9B | {
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
}
JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "num_experts": 16,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "vocab_size": 65536,
}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
    },
    "vocab_size": 163840,
}
FALCON_H1_7B = {
    "model_type": "falcon_h1",
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 44,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attn_layer_indices": None,
    "mamba_d_head": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_n_heads": 24,
    "vocab_size": 130048,
}
MINIMAX_01 = {
    "model_type": "minimax_text_01",
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 32,
    "vocab_size": 200064,
}
PLAIN = {"model_type": "llama", **LLAMA_8B}


@pytest.fixture
def target(model, planned):
    """What plan reads of a target's configuration."""

    def read(config):
        arguments = ("--target", model("model", config), "--gpu", "mi325x", "--gpus", 4)
        return planned(*arguments, "--context", 8192)["deployment"]["target"]

    return read


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        pytest.param(MAVERICK, 400.7, id="every second layer"),
        pytest.param(QWEN3_235B, 235.1, id="each layer"),
        pytest.param(QWEN2_57B, 57.4, id="a wide shared expert"),
        pytest.param(DEEPSEEK_V2_LITE, 15.7, id="all but the first"),
        pytest.param(ERNIE_21B, 21.8, id="from a layer to another one"),
        pytest.param(MIMO_V2_FLASH, 309, id="a list of layers"),
        pytest.param(JAMBA, 51.6, id="Mamba with experts"),
        pytest.param(QWEN3_NEXT, 79.7, id="gated delta nets with experts"),
        pytest.param(KIMI_LINEAR, 49.1, id="Kimi delta attention with experts"),
        pytest.param(NEMOTRON_9B, 8.89, id="Mamba 2 without experts"),
        pytest.param(NEMOTRON_30B, 31.6, id="Mamba 2 with layers of experts"),
        pytest.param(FALCON_H1_7B, 7.59, id="attention beside Mamba 2"),
        pytest.param(MINIMAX_01, 456, id="lightning attention"),
    ],
)
def test_the_parameters_are_those_of_the_published_model(target, config, billions):
    """From the configuration alone, without layers for multi-token prediction and images."""
    assert target(config)["parameters"] / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("fields", "with_experts"),
    [
        ({}, range(32)),
        ({"interleave_moe_layer_step": 2}, range(1, 32, 2)),
        ({"interleave_moe_layer_step": 0}, ()),
        ({"decoder_sparse_step": 4, "mlp_only_layers": [3]}, range(7, 32, 4)),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, range(4, 32, 2)),
        ({"moe_layer_freq": [0] * 30 + [1] * 2}, (30, 31)),
        ({"moe_layers": [1, 5]}, (1, 5)),
        ({"moe_layers_enum": "4,5,6"}, (4, 5, 6)),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 31}, range(1, 32)),
        ({"expert_layer_period": 8, "expert_layer_offset": 2}, range(2, 32, 8)),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 5}, range(2, 6)),
    ],
)
def test_which_layers_have_experts(target, fields, with_experts):
    """Each family says it in its own fields; the other layers have one network."""
    config = PLAIN | {"num_experts": 9, **fields}

    dense = 3 * 4096 * 14336
    experts = 9 * (dense + 4096)
    count = len(with_experts)
    attention = 32 * 4096 * (4096 + 2 * 1024 + 4096)
    expected = 2 * 128256 * 4096 + attention + count * experts + (32 - count) * dense
    assert target(config)["parameters"] == expected


MAMBA_2 = {"mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128}


@pytest.mark.parametrize(
    ("config", "caching", "states"),
    [
        (QWEN3_NEXT, 12, 36),
        (QWEN3_NEXT | {"full_attention_interval": None}, 12, 36),
        (QWEN3_NEXT | {"full_attention_interval": None, "model_type": "qwen3_5_moe"}, 12, 36),
        (NEMOTRON_9B, 4, 27),
        (NEMOTRON_30B, 6, 23),
        (JAMBA, 4, 28),
        (KIMI_LINEAR, 7, 20),
        (FALCON_H1_7B, 44, 44),
        (PLAIN | {"attn_type_list": [0, 0, 0, 1] * 8}, 8, 24),
        (PLAIN | {"attn_layer_indices": [9, 18, 27], **MAMBA_2}, 3, 29),
        (
            PLAIN | MAMBA_2 | {"layers_block_type": ["mamba", "mamba", "mlp", "attention"] * 8},
            8,
            16,
        ),
        (PLAIN | {"layer_group_size": 8}, 4, 28),
        (PLAIN | {"layer_group_size": 0}, 32, 0),
        (PLAIN | {"num_kv_shared_layers": 12}, 20, 0),
        (PLAIN, 32, 0),
    ],
)
def test_which_layers_cache_and_which_keep_a_state(target, config, caching, states):
    """A layer may do both."""
    read = target(config)

    assert sum(layers["count"] for layers in read["layers"]) == caching
    assert sum(layers["count"] for layers in read["states"]) == states


# Blocks and tokens of 50 GB for requests of 32,768 tokens, as vLLM 0.32's own code has them
# (tests/lab/test_lab_plan.py): with no draft tokens, with 3, and with 3 and a layer that drafts, as
# the target's or of another size.
OTHER = (8, 128)  # KV heads, and the values of a key
DIVIDED = [
    (QWEN3_NEXT, 0, None, 3739, 1828650),
    (QWEN3_NEXT, 3, None, 3633, 1608731),
    (QWEN3_NEXT, 3, (2, 256), 3353, 1484744),
    (QWEN3_NEXT, 3, OTHER, 21798, 1192448),
    (NEMOTRON_9B, 0, None, 2326, 1954317),
    (NEMOTRON_9B, 3, None, 2298, 1255014),
    (NEMOTRON_9B, 3, OTHER, 1838, 1095046),
    (FALCON_H1_7B, 0, None, 707, 1007259),
    (FALCON_H1_7B, 3, None, 700, 882215),
    (FALCON_H1_7B, 3, (2, 128), 685, 863310),
    (FALCON_H1_7B, 3, OTHER, 7706, 500020),
    (JAMBA, 0, None, 38146, 2948038),
    (JAMBA, 3, None, 38146, 2808917),
    (JAMBA, 3, OTHER, 30517, 2272684),
]


@pytest.mark.parametrize(("config", "drafted", "draft", "blocks", "tokens"), DIVIDED)
def test_states_take_what_vllms_own_code_gives_them(
    model, planned, *, config, drafted, draft, blocks, tokens
):
    """One for the request, one for prefixes, one for each draft token: all as large as a block."""
    arguments = ["--target", model("target", config), "--gpu-memory", 400, "--context", 32768]
    arguments += ["--available-kv-cache", 50e9 / 2**30]
    if draft is not None:
        heads, size = draft
        arguments += ["--draft", "0.0001m", "--draft-kv", f"1x{heads}x{size}", "--method", "eagle"]
    elif drafted:
        arguments += ["--method", "ngram"]
    room = planned(*arguments)["room"]

    assert (room["blocks"], room["tokens"]) == (blocks, tokens)


def test_the_states_of_a_request_are_shown_and_grow_with_the_draft_tokens(model, planned, capsys):
    """Qwen3-Next: three tables of states, of 2 + K blocks each; plain decoding has two."""
    arguments = ["--target", model("target", QWEN3_NEXT), "--gpu", "b200", "--method", "ngram"]
    plan = planned(*arguments, "--tokens", 3, "--context", 8192)
    block = 12 * 560 * 2 * 512 * 2  # layers, tokens, KV heads, values of a head, bytes

    assert plan["room"]["bytes_per_sequence"] == 3 * (2 + 3) * block
    assert plan["plain_room"]["bytes_per_sequence"] == pytest.approx(3 * 2 * block, rel=0.03)
    assert any("prefix caching, 2 + K for each request" in note for note in plan["notes"])

    command("plan", *map(str, arguments), "--tokens", "3", "--context", "8192")
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "states of a request" in one]
    assert line.split()[4:] == ["0.206", "GB", "0.080", "GB"]


def test_gpus_share_a_state_and_copy_groups_that_they_cannot_share(model, planned):
    """Falcon-H1 has one group of Mamba 2, which each of four GPUs has then."""
    target = model("target", FALCON_H1_7B | {"num_attention_heads": 16, "num_key_value_heads": 4})
    arguments = ("--target", target, "--gpu", "h200", "--context", 8192, "--gpus")
    one, four = (planned(*arguments, gpus)["room"] for gpus in (1, 4))
    recurrence = 3072 * 256 * 2

    assert one["bytes_per_sequence"] >= 2 * 44 * (recurrence + (3072 + 512) * 3 * 2)
    assert four["bytes_per_sequence"] >= 2 * 44 * (recurrence + (3072 + 4 * 512) * 3 * 2) / 4


@pytest.mark.parametrize(
    ("fields", "precision"),
    [
        ({"model_type": "nemotron_h"}, "fp32"),
        ({"model_type": "nemotron_h", "mamba_ssm_cache_dtype": "bfloat16"}, "bf16"),
        ({"model_type": "qwen3_5", "mamba_ssm_dtype": "float32"}, "fp32"),
        ({"model_type": "qwen3_5"}, "bf16"),
        ({"model_type": "bamba", "mamba_ssm_dtype": "float32"}, "bf16"),
    ],
)
def test_a_state_is_as_precise_as_vllm_makes_it_for_the_family(target, fields, precision):
    """Which reads the configuration's field only for two of them."""
    config = PLAIN | MAMBA_2 | {"attn_layer_indices": [9, 18, 27], **fields}
    (state,) = target(config)["states"]

    assert state["precision"] == precision


@pytest.mark.parametrize("kind", ["full_attention", "linear_attention", "unheard_of"])
def test_kinds_beyond_the_last_layer_are_no_layers(target, kind):
    """Step 3.5 has them; vLLM leaves them out."""
    kinds = ["full_attention", *["sliding_attention"] * 3] * 8
    config = PLAIN | {"layer_types": [*kinds, *[kind] * 3], "sliding_window": 512}
    layers = target(config)["layers"]

    assert {group["window"]: group["count"] for group in layers} == {None: 8, 512: 24}


def test_layers_with_a_window_may_have_more_heads(target):
    """MiMo-V2-Flash has 9 layers that see everything, and 39 with a window of 128 tokens."""
    layers = target(MIMO_V2_FLASH)["layers"]

    assert [(one["count"], one["window"], one["kv_heads"]) for one in layers] == [
        (9, None, 4),
        (39, 128, 8),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"mamba_d_state": 64},
        {"layers_block_type": ["mamba", "hybrid"] * 16},
        {"layer_types": ["sliding_attention", "compressed_sparse_attention"] * 16},
        {"hybrid_override_pattern": "M-X*" * 8},
        {"block_configs": [{"attention": {"no_op": True}}]},
        {"linear_attn_config": {"num_heads": 32, "head_dim": 128}},
        {"layer_types": ["conv", "full_attention"] * 16, **MAMBA_2},
        {"layer_types": ["linear_attention", "full_attention"] * 16},
        {"kv_lora_rank": 512, "sliding_window": 4096},
    ],
)
def test_a_model_with_unknown_layers_is_unknown(model, planned, capsys, fields):
    """Absent tokens are better than four times too many of them; a shape by hand counts."""
    gpu = ("--gpu", "h100", "--context", 8192)
    arguments = ("--target", model("model", PLAIN | fields, weights=10**6), *gpu)
    plan = planned(*arguments)
    by_hand = planned(*arguments, "--kv", "8x8x128")

    assert plan["room"]["tokens"] is None
    assert plan["deployment"]["target"]["parameters"] is None
    assert any("unknown: plan does not know" in one for one in plan["notes"])
    assert by_hand["room"]["bytes_per_token"] == 8 * 8 * 256 * 2

    without = model("without", PLAIN | fields)
    assert command("plan", "--target", without, *map(str, gpu)) == 2
    assert "Give --available-kv-cache what vLLM logged" in capsys.readouterr().err


def test_one_mtp_layer_is_assumed_where_vllm_assumes_it(model, planned):
    """Qwen3-Next's config.json names none, and vLLM drafts with one."""
    arguments = ("--gpu", "h200", "--gpus", 4, "--context", 8192, "--method", "mtp")
    plan = planned("--target", model("next", QWEN3_NEXT), *arguments)

    draft = plan["deployment"]["draft"]
    assert draft["parameters"] / 1e9 == pytest.approx(1.65, abs=0.05)
    assert sum(layers["count"] for layers in draft["layers"]) == 1
    assert any("names no MTP layers, so one is counted" in note for note in plan["notes"])
    assert '"method": "mtp"' in plan["command"]
