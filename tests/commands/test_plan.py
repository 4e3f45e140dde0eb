"""``plan``: memory of weights and caches, rules of thumb, and the line for vLLM."""

import json
from pathlib import Path

import pytest

from tests.commands.commands_tools import command

PAIR = ("--target", "70b", "--target-precision", "int8", "--draft", "8b", "--gpu", "h100")
PAIR = (*PAIR, "--gpus", "2", "--utilization", "0.9")
TWO_H100 = 2 * 79.11 * 1024**3 / 1e9  # as PyTorch finds them
SHAPES = ("--kv", "80x8x128", "--context", "8192")

# The dimensions of Llama 3.1 70B and 8B, of DeepSeek V3 and of Gemma 3 27B.
LARGE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}
SMALL = LARGE | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}
GEMMA = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "vocab_size": 262208,
        "tie_word_embeddings": True,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
}


@pytest.mark.parametrize(
    ("target", "draft", "gpu", "weights", "left"),
    [
        ("bf16", "bf16", "h200", 156, 126),
        ("bf16", "bf16", "h100", 156, 4),
        ("int8", "bf16", "h100", 86, 74),
        ("int8", "int8", "h100", 78, 82),
        ("int4", "bf16", "h100", 51, 109),
        ("int4", "int4", "h100", 39, 121),
    ],
)
def test_the_weights_of_a_70b_and_an_8b_on_two_gpus(planned, *, target, draft, gpu, weights, left):
    """The table of the decision framework: what the weights take, and what they leave."""
    precisions = ("--target-precision", target, "--draft-precision", draft)
    fits = left > 4
    plan = planned(
        *("--target", "70b", "--draft", "8b", "--gpu", gpu, "--gpus", 2, *precisions),
        code=0 if fits else 1,
    )

    assert plan["deployment"]["weights_gb"] == weights
    assert plan["deployment"]["left_gb"] == pytest.approx(left)
    assert (plan["verdict"] == "impossible") == (not fits)


def test_the_cache_gets_what_the_weights_leave_of_vllms_share(planned):
    """With and without a draft, in bytes, tokens and requests."""
    plan = planned(*PAIR, *SHAPES, "--draft-kv", "32x8x128")

    assert plan["room"]["gb"] == pytest.approx(0.9 * TWO_H100 - 86)
    assert plan["plain_room"]["gb"] == pytest.approx(0.9 * TWO_H100 - 70)
    # Each GPU has half of the heads.
    assert plan["plain_room"]["bytes_per_token"] == 80 * 4 * 256 * 2
    assert plan["room"]["bytes_per_token"] == (80 + 32) * 4 * 256 * 2
    plain_tokens = (0.9 * TWO_H100 - 70) / 2 * 1e9 / 163_840
    assert plan["plain_room"]["tokens"] == pytest.approx(plain_tokens, rel=0.001)
    assert (plan["room"]["requests"], plan["plain_room"]["requests"]) == (17, 30)


@pytest.mark.parametrize(
    ("gpu", "nominal", "usable"),
    [("h100", 80, 84.9), ("h200", 141, 150.1), ("rtx4090", 24, 25.3), ("mi300x", 192, 206.1)],
)
def test_the_cache_comes_out_of_what_pytorch_finds(planned, *, gpu, nominal, usable):
    """A gibibyte is 7 % more than a GB, which decides whether a 34B starts on an H100."""
    plan = planned("--target", "1b", "--gpu", gpu, "--utilization", 0.9)

    assert plan["deployment"]["memory_gb"] == nominal
    assert plan["deployment"]["left_gb"] == nominal - 2
    assert plan["room"]["gb"] == pytest.approx(0.9 * usable - 2, abs=0.05)
    assert f"({usable} GB) that PyTorch finds" in plan["notes"][0]


def test_a_34b_with_a_long_context_starts_on_an_h100(planned):
    """By the data sheet's 80 GB it would not."""
    arguments = ("--target", "34b", "--kv", "60x8x128", "--context", 32768)

    assert planned(*arguments, "--gpu", "h100")["room"]["gb"] == pytest.approx(10.1, abs=0.05)
    assert planned(*arguments, "--gpu-memory", 80, code=1)["verdict"] == "impossible"


def test_what_activations_take_is_no_room_for_a_cache_of_unknown_size(planned):
    """0.3 GB of two GPUs are left, of which vLLM makes no cache; an overhead replaces the guess."""
    arguments = ("--target", "70b", "--draft", "8b", "--gpu", "h100", "--gpus", 2)
    plan = planned(*arguments, code=1)

    assert 0 < plan["room"]["gb"] < 2
    assert plan["rules"][0]["wanted"] == "above 2 GB"
    assert "activations and CUDA graphs" in plan["rules"][0]["remedy"]
    assert planned(*arguments, "--overhead", 0.1)["room"]["least_gb"] == 0


def test_activations_on_each_gpu_are_subtracted_and_vllms_own_number_replaces_all_of_it(planned):
    """vLLM's log says the room of each GPU; weights and overhead are out of it already."""
    room = [
        planned(*PAIR, *more)["room"]["gb"]
        for more in ((), ("--overhead", 3), ("--available-kv-cache", 30))
    ]

    assert room[0] - room[1] == pytest.approx(6)
    assert room[2] == pytest.approx(2 * 30 * 1024**3 / 1e9 - 16)


def test_the_logits_of_a_draft_that_samples_are_counted_on_each_gpu(planned):
    """They are outside of what vLLM plans with, so its share has to shrink by them."""
    sampled = ("--sampled-drafts", "--vocabulary", 128256, "--tokens", 3, "--max-num-seqs", 256)
    without, plan = planned(*PAIR), planned(*PAIR, *sampled)

    logits = 256 * 3 * 128256 * 4 / 1e9
    assert plan["deployment"]["logits_gb"] == pytest.approx(logits)
    assert without["room"]["gb"] - plan["room"]["gb"] == pytest.approx(2 * logits)
    assert '"draft_sample_method": "probabilistic"' in plan["command"]
    assert any("lower --gpu-memory-utilization by 0.005" in note for note in plan["notes"])


def test_a_config_tells_the_parameters_the_cache_and_the_context(model, planned):
    target, draft = model("70b", LARGE), model("8b", SMALL)
    plan = planned(
        "--target", target, "--draft", f"{draft}/config.json", "--gpu", "h200", "--gpus", 2
    )

    models = [plan["deployment"][name] for name in ("target", "draft")]
    # The model cards say 70.6 and 8.03 billion.
    assert [one["parameters"] / 1e9 for one in models] == pytest.approx([70.6, 8.03], rel=0.002)
    assert (plan["method"], plan["context"]) == ("draft_model", 131072)
    assert plan["room"]["bytes_per_token"] == (80 + 32) * 4 * 256 * 2
    assert f'"model": "{draft}"' in plan["command"]


def test_a_quantization_leaves_embeddings_at_16_bits(model, planned):
    """They are an eighth of a small model, and would count a quarter of what they take."""
    target = model("8b", SMALL)
    arguments = ("--target", target, "--target-precision", "int4", "--gpu", "l4")
    plan = planned(*arguments, "--context", 8192)

    embedded = 2 * 128256 * 4096
    rest = plan["deployment"]["target"]["parameters"] - embedded
    assert plan["deployment"]["weights_gb"] == pytest.approx((embedded * 2 + rest / 2) / 1e9)


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "fp4"),
        ({"quant_algo": "NVFP4"}, "fp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
    ],
)
def test_the_quantization_is_the_one_that_the_config_names(model, planned, config, precision):
    """In the words of each tool that quantizes."""
    target = model("8b", SMALL | {"quantization_config": config})

    assert planned("--target", target, "--gpu", "h100")["deployment"]["target"]["precision"] == (
        precision
    )


def test_an_unknown_quantization_has_to_be_named(model, capsys):
    """A guess could be wrong by a factor of four."""
    target = model("8b", SMALL | {"quantization_config": {"quant_method": "new"}})

    assert command("plan", "--target", target, "--gpu", "h100") == 2
    assert "unknown quantization; set --target-precision" in capsys.readouterr().err


def test_weights_on_disk_count_as_they_are_unless_another_precision_is_asked_for(model, planned):
    """The size of the files is exact; a calculation is not."""
    target = model("8b", SMALL, weights=1_000_000)
    stored = planned("--target", target, "--gpu", "h100")
    quantized = planned("--target", target, "--target-precision", "int8", "--gpu", "h100")

    assert stored["deployment"]["weights_gb"] == 0.001
    assert quantized["deployment"]["weights_gb"] > 8


def test_a_precision_that_the_files_do_not_have_gets_no_line_for_the_files(model, planned):
    """vLLM would load them as they are: twice or four times of what was counted."""
    target, draft = model("8b", SMALL), model("1b", SMALL | {"num_hidden_layers": 4})
    arguments = ("--target", target, "--draft", draft, "--gpu", "h100", "--context", 8192)
    plan = planned(*arguments, "--target-precision", "int4", "--draft-precision", "fp8")
    same = planned(*arguments, "--target-precision", "fp16", "--draft-precision", "bf16")

    assert plan["command"].startswith("vllm serve TARGET-INT4 ")
    assert '"model": "DRAFT-FP8"' in plan["command"]
    for part, precision, quantization in (
        ("target", "int4", "vLLM a --quantization"),
        ("draft", "fp8", 'vLLM\'s speculative config a "quantization"'),
    ):
        files = f"the {part}'s files are bf16: name a checkpoint at {precision}"
        assert f"{files}, or give {quantization} that makes it on load" in plan["notes"]
    # With --dtype vLLM makes one of these of the other.
    assert same["command"].startswith(f"vllm serve {target} ")
    assert not [note for note in same["notes"] if "files are" in note]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16", None),
        ("fp16", None),
        ("fp8", "fp8"),
        ("int8", "int8_per_token_head"),
        ("int4", "int4_per_token_head"),
        ("fp4", "nvfp4"),
    ],
)
def test_the_line_names_the_precision_of_the_cache_as_vllm_does(planned, precision, dtype):
    """As in vLLM 0.32's CacheDType; a note says where only one attention backend has it."""
    plan = planned(*PAIR, "--kv-precision", precision)

    words = plan["command"].split()
    named = words[words.index("--kv-cache-dtype") + 1] if "--kv-cache-dtype" in words else None
    assert named == dtype
    is_noted = any(f"`{dtype}` only in its" in note for note in plan["notes"])
    assert is_noted == (precision in {"int8", "int4", "fp4"})


@pytest.mark.parametrize(
    ("precision", "of_a_head"),
    [("bf16", 512), ("fp8", 256), ("int8", 256 + 8), ("int4", 128 + 8), ("fp4", 128 + 16)],
)
def test_the_scales_of_a_quantized_cache_are_counted(planned, precision, of_a_head):
    """Of a head with 128 values: a float for key and value each, or a byte for 16 values."""
    plan = planned(*PAIR, *SHAPES, "--draft-kv", "32x8x128", "--kv-precision", precision)

    assert plan["room"]["bytes_per_token"] == (80 + 32) * 4 * of_a_head


@pytest.mark.parametrize(("precision", "of_a_layer"), [("bf16", 576 * 2 + 132), ("fp8", 656 + 132)])
def test_a_sparse_mla_also_caches_the_keys_that_select_its_tokens(
    model, planned, precision, of_a_layer
):
    """DeepSeek V3.2: vLLM's fp8_ds_mla, and an indexer that is at 8 bits whatever the rest is."""
    sparse = DEEPSEEK | {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    arguments = ("--target", model("v32", sparse), "--gpu", "b200", "--gpus", 8)
    arguments = (*arguments, "--kv-precision", precision, "--context", 8192)
    plan, with_mtp = planned(*arguments), planned(*arguments, "--method", "mtp")

    assert plan["room"]["bytes_per_token"] == 61 * of_a_layer
    assert with_mtp["room"]["bytes_per_token"] == 62 * of_a_layer
    assert any("fp8_ds_mla" in note for note in plan["notes"]) == (precision == "fp8")


@pytest.mark.parametrize("precision", ["int8", "int4", "fp4"])
def test_mla_has_no_cache_of_integers_or_of_4_bits(model, planned, precision):
    """No backend of vLLM 0.32 for MLA takes one, so there is no line."""
    arguments = ("--target", model("v3", DEEPSEEK), "--gpu", "b200", "--gpus", 8)
    plan = planned(*arguments, "--kv-precision", precision, code=1)

    (refused,) = [rule for rule in plan["rules"] if not rule["met"]]
    assert refused["name"] == "precision of MLA's cache"
    assert "use --kv-precision fp8 or bf16" in refused["remedy"]
    assert plan["command"] is None
    assert planned(*arguments, "--kv-precision", "fp8")["command"]


@pytest.mark.parametrize(
    ("lengths", "longest"),
    [
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"max_position_embeddings": None, "max_seq_len": 4096}, 4096),
        (
            {
                "max_position_embeddings": 8192,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}},
            },
            32768,
        ),
        ({"max_position_embeddings": 8192, "rope_scaling": {"type": "linear"}}, 8192),
    ],
)
def test_without_a_context_it_is_the_longest_that_vllm_derives(model, planned, lengths, longest):
    """The shortest that the configuration names, unless it has a model_max_length.

    A tokenizer's own limit does not count: vLLM reads it only for models that pool.
    """
    target = model("8b", SMALL | lengths)
    tokenizer = {"model_max_length": 1024}
    (Path(target) / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    plan = planned("--target", target, "--gpu", "b200")

    assert plan["context"] == longest
    assert f"--max-model-len {longest}" in plan["command"]


def test_a_draft_that_is_made_for_shorter_requests_is_doubtful(model, planned):
    """EAGLE heads often name 2,048 positions; model runner V1 does not draft beyond them."""
    head = SMALL | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    draft = model("head", head | {"max_position_embeddings": 2048})
    arguments = ("--target", model("8b", SMALL), "--draft", draft, "--gpu", "h100")

    for context, verdict in ((2048, "good"), (2049, "doubtful")):
        plan = planned(*arguments, "--context", context)
        (rule,) = [one for one in plan["rules"] if one["name"] == "draft's longest context"]
        assert rule["met"] == (verdict == "good")
        assert plan["verdict"] == verdict

    assert "2,048 tokens: while one request of a batch is longer" in rule["remedy"]


@pytest.mark.parametrize(
    ("changed", "arguments", "rule", "remedy"),
    [
        ({}, ("--context", 131073), "context", "use --context 131072 or less"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            ("--context", 262145),
            "context",
            "use --context 262144 or less",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            ("--context", 131073),
            "context",
            "use --context 131072 or less",
        ),
        ({}, ("--gpus", 3), "target's attention heads", "a number of GPUs that divides 32"),
        (
            {"num_attention_heads": 24},
            ("--gpus", 8, "--draft", "DRAFT"),
            "draft's attention heads",
            "a number of GPUs that divides 20",
        ),
        ({}, ("--draft", "OTHER"), "vocabulary", "use one with that of the target"),
    ],
)
def test_what_vllm_refuses_has_no_line(model, planned, *, changed, arguments, rule, remedy):
    """However much memory there is; no alternative is named, as all of them change memory."""
    drafts = {
        "DRAFT": model("draft", SMALL | {"num_attention_heads": 20}),
        "OTHER": model("other", SMALL | {"num_hidden_layers": 4, "vocab_size": 1000}),
    }
    given = [drafts.get(argument, argument) for argument in arguments]
    plan = planned("--target", model("8b", SMALL | changed), "--gpu", "mi325x", *given, code=1)

    (refused,) = [one for one in plan["rules"] if one["name"] == rule]
    assert not refused["met"]
    assert remedy in refused["remedy"]
    assert (plan["verdict"], plan["command"], plan["alternatives"]) == ("impossible", None, [])


def test_a_head_may_have_another_vocabulary(model, planned):
    """vLLM compares those of draft models only; a head's own is often smaller."""
    head = SMALL | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    draft = model("head", head | {"vocab_size": 32000})

    assert planned("--target", model("8b", SMALL), "--draft", draft, "--gpu", "b200")["command"]


def test_mla_caches_one_latent_vector_on_each_gpu_and_mtp_layers_are_the_targets_own(
    model, planned
):
    """Tensor parallelism does not divide it, and no other model has to be loaded."""
    target = model("v3", DEEPSEEK, weights=None)
    plan = planned("--target", target, "--method", "mtp", "--gpu", "h200", "--gpus", 8)

    assert plan["deployment"]["target"]["parameters"] / 1e9 == pytest.approx(671, rel=0.002)
    assert plan["plain_room"]["bytes_per_token"] == 61 * 576 * 2
    assert plan["room"]["bytes_per_token"] == 62 * 576 * 2
    # DeepSeek's report says that the module has 11.5 billion besides the shared embedding.
    assert plan["deployment"]["draft"]["parameters"] / 1e9 == pytest.approx(11.5, rel=0.02)
    assert '{"method": "mtp", "num_speculative_tokens": 3}' in plan["command"]


def test_layers_with_a_sliding_window_hold_no_more_than_it(model, planned):
    """Of 62 layers 10 see everything; vLLM puts them into groups of ten with a table each."""
    target = model("gemma", GEMMA)
    arguments = ("--target", target, "--gpu", "h200", "--batched-tokens", 2048)
    short, long = (planned(*arguments, "--context", context)["room"] for context in (1000, 100_000))

    assert short["bytes_per_token"] == 7 * 10 * 16 * 256 * 2
    assert long["tokens"] / short["tokens"] > 4


GATED = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}


@pytest.mark.parametrize(
    ("config", "full", "window"),
    [
        ({"sliding_window": 4096}, 0, 32),
        ({"sliding_window": 4096, "use_sliding_window": False}, 32, 0),
        (
            {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16},
            16,
            16,
        ),
        ({"model_type": "gemma2", "sliding_window": 4096}, 16, 16),
        ({**GATED, "layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, 8, 0),
    ],
)
def test_which_layers_have_a_window(model, planned, config, full, window):
    """By the configuration, or by what vLLM assumes of this architecture."""
    plan = planned("--target", model("8b", SMALL | config), "--gpu", "h100")

    layers = plan["deployment"]["target"]["layers"]
    counts = {one["window"] is None: one["count"] for one in layers}
    assert (counts.get(True, 0), counts.get(False, 0)) == (full, window)


def test_a_head_shares_the_targets_embedding(model, planned):
    """SpecForge's EAGLE-3 head for Llama 3.1 8B has 0.4 billion parameters."""
    head = SMALL | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
    }
    plan = planned("--target", model("8b", SMALL), "--draft", model("head", head), "--gpu", "h100")

    assert plan["method"] == "eagle3"
    assert plan["deployment"]["draft"]["parameters"] / 1e9 == pytest.approx(0.425, abs=0.01)
    assert plan["room"]["bytes_per_token"] == 33 * 8 * 256 * 2
    assert [rule["name"] for rule in plan["rules"]] == [
        "room for a KV cache",
        "context",
        "target's share of memory",
        "draft's longest context",
        "draft's share of memory",
        "KV tokens lost to speculation",
    ]


def test_a_head_on_each_gpu_is_copied_and_caches_all_heads(model, planned):
    """Weights and cache of the copies are counted on each of the GPUs."""
    head = SMALL | {"num_hidden_layers": 1}
    arguments = ("--target", model("8b", SMALL), "--draft", model("head", head), "--gpu", "h100")
    arguments = (*arguments, "--method", "eagle", "--gpus", 4)
    split, copied = planned(*arguments), planned(*arguments, "--draft-gpus", 1)

    weights = [plan["deployment"]["draft_gb"] for plan in (split, copied)]
    assert weights[1] == pytest.approx(4 * weights[0])
    assert split["room"]["bytes_per_token"] == 33 * 2 * 256 * 2
    assert copied["room"]["bytes_per_token"] == (32 * 2 + 8) * 256 * 2
    assert '"draft_tensor_parallel_size": 1' in copied["command"]


@pytest.mark.parametrize(
    ("arguments", "broken"),
    [
        (("--draft", "8.75b", "--gpu-memory", 160), []),
        (("--draft", "5.84b", "--gpu-memory", 160), []),
        (("--draft", "9b", "--gpu-memory", 160), ["draft to target"]),
        (("--draft", "5b", "--gpu-memory", 160), ["draft to target"]),
        (("--draft", "7b", "--gpu-memory", 50), []),
        (("--draft", "7b", "--gpu-memory", 49.9), ["target's share of memory"]),
        (("--draft", "7.5b", "--draft-precision", "bf16", "--gpu-memory", 100), []),
        (
            ("--draft", "7.5b", "--draft-precision", "bf16", "--gpu-memory", 99),
            ["draft's share of memory"],
        ),
    ],
)
def test_each_rule_of_thumb_holds_up_to_its_bounds(planned, arguments, broken):
    """Just past a bound it is broken, and the verdict is doubtful."""
    quantized = ("--target", "70b", "--target-precision", "int4", "--draft-precision", "int4")
    plan = planned(*quantized, *arguments)

    assert [rule["name"] for rule in plan["rules"] if not rule["met"]] == broken
    assert plan["verdict"] == ("doubtful" if broken else "good")
    assert all(rule["source"] for rule in plan["rules"])


def test_a_pair_that_differs_in_family_vocabulary_and_tokenizer(model, planned):
    """Each of the three has a rule of its own."""
    target = model("70b", LARGE, tokenizer=1)
    same = model("same", SMALL, tokenizer=1)
    other = SMALL | {"model_type": "qwen2", "vocab_size": 151936}
    different = model("different", other, tokenizer=2)
    names = ["family", "vocabulary", "tokenizer"]

    for draft, met, code in ((same, True, 0), (different, False, 1)):
        arguments = ("--target", target, "--draft", draft, "--gpu", "b200", "--gpus", 2)
        plan = planned(*arguments, code=code)
        rules = {rule["name"]: rule["met"] for rule in plan["rules"]}
        assert [rules[name] for name in names] == [met] * 3


def test_the_text_has_the_memory_the_cache_the_rules_and_the_verdict(capsys):
    assert command("plan", *PAIR, *SHAPES, "--draft-kv", "32x8x128") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert [line[:2] for line in lines[3:5]] == [["weights", "86.0"], ["left", "74.0"]]
    assert lines[0][3:] == [
        "2",
        "x",
        "80",
        "GB,",
        "nominal",
        "(84.9",
        "GB",
        "each",
        "for",
        "PyTorch)",
    ]
    assert lines[6][:8] == ["at", "a", "utilization", "of", "0.9", "of", "169.9", "GB"]
    assert lines[7] == ["KV", "cache", "66.9", "GB", "82.9", "GB", "16.0", "GB"]
    assert lines[9] == ["requests", "of", "8,192", "tokens", "17", "30", "13"]
    assert any(line[:6] == ["draft", "to", "target", "1:8.8", "1:8", "to"] for line in lines)
    assert any("an acceptance rate of 23%." in " ".join(line) for line in lines)
    assert any("quantize the draft first" in " ".join(line) for line in lines)
    assert lines[-2] == ["verdict:", "doubtful"]
    assert " ".join(lines[-1]).startswith("speculation costs 42% of the KV tokens (30 requests of")


def test_the_verdict_says_how_much_of_the_kv_cache_the_draft_takes(planned):
    """Up to a third, which is our own threshold; a head takes a fraction of it."""
    pair = ("--target", "70b", "--target-precision", "int8", *SHAPES, "--gpu", "h200", "--gpus", 2)
    head = planned(*pair, "--draft", "1b", "--draft-kv", "1x8x128", "--method", "eagle3")
    draft = planned(*pair, "--draft", "8b", "--draft-kv", "32x8x128")

    for plan, is_met, verdict in ((head, True, "good"), (draft, False, "doubtful")):
        (loss,) = [
            rule for rule in plan["rules"] if rule["name"] == "KV tokens lost to speculation"
        ]
        tokens = [plan[room]["tokens"] for room in ("room", "plain_room")]
        assert loss["found"] == f"{1 - tokens[0] / tokens[1]:.1%}"
        assert loss["source"] == "our own threshold, not measured"
        assert (loss["met"], plan["verdict"]) == (is_met, verdict)
    assert "once the cache is full, only a speedup of 1.5 serves as many" in loss["remedy"]


QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
QWEN3_SMALL = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


def test_a_mixture_of_experts_is_compared_by_what_a_token_passes(model, planned):
    """Its card says 30.5 billion parameters, of which 3.3 are active."""
    draft = model("small", QWEN3_SMALL)
    arguments = ("--draft", draft, "--gpu", "h200", "--context", 8192)
    plan = planned("--target", model("moe", QWEN3_30B), *arguments)
    (ratio,) = [rule for rule in plan["rules"] if rule["name"] == "draft to target"]
    target = plan["deployment"]["target"]

    assert target["parameters"] / 1e9 == pytest.approx(30.5, abs=0.1)
    assert target["active_parameters"] / 1e9 == pytest.approx(3.35, abs=0.05)
    assert ratio["found"] == "1:5.6"
    assert "(1:5.6 of active parameters) is large" in ratio["remedy"]
    assert [rule["met"] for rule in plan["rules"] if rule["name"] == "family"] == [True]
    (cost,) = [note for note in plan["notes"] if note.startswith("at light load")]
    assert "about 0.18 of a target step" in cost
    assert "the experts that verification adds to a step" in cost


@pytest.mark.parametrize("chosen", [None, 0, 129, [8, 8]])
def test_a_mixture_of_unknown_experts_per_token_has_no_ratio_and_no_cost(model, planned, chosen):
    target = model("moe", QWEN3_30B | {"num_experts_per_tok": chosen})
    draft = model("small", QWEN3_SMALL)
    plan = planned("--target", target, "--draft", draft, "--gpu", "h200", "--context", 8192)

    assert plan["deployment"]["target"]["active_parameters"] is None
    assert "draft to target" not in [rule["name"] for rule in plan["rules"]]
    assert not [note for note in plan["notes"] if note.startswith("at light load")]
    assert any(note.startswith("what a draft token costs is not known") for note in plan["notes"])


def test_without_the_shape_of_a_cache_there_are_no_tokens(capsys):
    """Neither where the target's is unknown nor where the draft's is, and the line may fail."""
    unchecked = (
        "whether one request of 8,192 tokens fits is not checked, and the line may not start"
    )
    assert command("plan", *PAIR) == 0
    out = capsys.readouterr().out
    assert f"note: {unchecked}: set --kv, or name the target's config.json" in out
    assert "requests of" not in out

    assert command("plan", *PAIR, *SHAPES) == 0
    out = capsys.readouterr().out
    assert f"are unknown, so no tokens are counted: {unchecked}: set --draft-kv" in out
    assert "requests of" not in out


def test_without_a_draft_the_methods_that_need_none_are_listed(capsys):
    """With no row about a draft that nobody named."""
    assert command("plan", "--target", "70b", "--gpu-memory", "80", "--gpus", "4", *SHAPES) == 0
    lines = capsys.readouterr().out.splitlines()
    methods = [line.split()[0] for line in lines if line.startswith("  ")]

    assert methods == ["method", "eagle3", "mtp", "ngram", "suffix"]
    assert not [line for line in lines if line.startswith("draft ") or "without it" in line]
    assert lines[-1] == "verdict: good"


def test_what_does_not_fit_has_no_line_for_vllm_but_what_would_fit(planned, capsys):
    """A 70B and an 8B at 16 bits take 156 of 170 GB; vLLM may use 153 of them."""
    arguments = ("--target", "70b", "--draft", "8b", "--gpu", "h100", "--gpus", "2", *SHAPES)
    arguments = (*arguments, "--draft-kv", "32x8x128", "--utilization", "0.9")
    plan = planned(*arguments, code=1)

    assert (plan["verdict"], plan["command"]) == ("impossible", None)
    assert [one["option"] for one in plan["alternatives"]] == [
        "--draft-precision int8",
        "--target-precision int8",
        "without --draft, --draft-kv",
        "--gpus 4 --draft-gpus 4",
    ]
    assert command("plan", *arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("vllm serve")]
    (quantized,) = [line for line in lines if "--target-precision int8" in line]
    assert quantized.split()[-6:] == ["66.9", "GB", "17", "of", "8,192", "tokens"]


@pytest.mark.parametrize(
    ("overhead", "condition"),
    [
        ((), "Not counting activations (set --overhead), each of these changes would fit; "),
        (("--overhead", "3"), "Each of these changes would fit; "),
    ],
)
def test_what_would_fit_says_whether_activations_count(capsys, overhead, condition):
    """With them less may fit."""
    arguments = ("--target", "70b", "--draft", "8b", "--gpu", "h100", "--gpus", "2")

    assert command("plan", *arguments, *overhead) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{condition}run `plan` again with one of them for vLLM's line:" in lines


def test_only_a_rule_that_is_broken_has_a_remedy_in_the_json(planned):
    """A tool that shows remedies would advise to change what is right."""
    arguments = ("--target", "8b", "--draft", "4b", "--gpu", "h100")
    rules = planned(*arguments)["rules"]

    assert {rule["met"] for rule in rules} == {True, False}
    assert all((rule["remedy"] is None) == rule["met"] for rule in rules)


SAMPLED = ("--sampled-drafts", "--vocabulary", "128256")


@pytest.mark.parametrize(
    "more",
    [
        ("--gpus", "2"),
        ("--gpus", "2", "--draft-gpus", "2"),
        ("--gpus", "2", "--method", "draft_model"),
        ("--gpus", "2", "--method", "eagle3", "--draft-gpus", "1"),
        ("--gpus", "1", "--method", "eagle3", "--draft-gpus", "1"),
        ("--gpus", "2", *SAMPLED),
        ("--gpus", "2", "--method", "eagle3", *SAMPLED, "--draft-precision", "bf16"),
    ],
)
def test_each_alternative_gives_a_line_for_vllm_with_the_room_that_was_said(planned, more):
    arguments = ["--target", "70b", "--draft", "8b", "--gpu", "h100", *SHAPES]
    arguments += ["--draft-kv", "32x8x128", *more]
    alternatives = planned(*arguments, code=1)["alternatives"]

    assert "more GPUs" in {one["change"] for one in alternatives}
    for alternative in alternatives:
        tried = with_option(arguments, alternative["option"])
        plan = planned(*tried)

        assert plan["room"] == alternative["room"]
        assert plan["command"].startswith("vllm serve")
        assert plan["alternatives"] == []


def with_option(arguments, option):
    """The arguments of ``plan`` with what an alternative says."""
    without = option.removeprefix("without ")
    if without == option:
        return [*arguments, *option.split()]  # the last one counts

    left = list(arguments)
    for name in without.split(", "):
        start = left.index(name)
        del left[start]
        if start < len(left) and not left[start].startswith("--"):
            del left[start]
    return left


def test_only_numbers_of_gpus_that_divide_the_attention_heads_are_alternatives(model, planned):
    """40 heads are split over eight GPUs, not over sixteen."""
    target = model("large", LARGE | {"hidden_size": 5120, "num_attention_heads": 40})
    arguments = ("--target", target, "--context", 8192, "--gpus", 2)

    for gigabytes, options in ((16, ["--gpus 8"]), (8, [])):
        plan = planned(*arguments, "--gpu-memory", gigabytes, code=1)
        more = [one["option"] for one in plan["alternatives"] if one["change"] == "more GPUs"]
        assert more == options


def test_vllm_does_not_start_without_room_for_one_request_of_the_whole_context(model, planned):
    """Llama 3.1 8B at 4 bits leaves 17 GB of an L4; 131,072 tokens take 17.2 GB."""
    arguments = ("--target", model("8b", SMALL), "--target-precision", "int4", "--gpu", "l4")
    plan = planned(*arguments, code=1)

    assert plan["room"]["gb"] > 0
    assert plan["room"]["request_gb"] == pytest.approx(131_072 * 131_072 / 1e9)
    assert plan["rules"][0]["remedy"] == (
        "one request of the whole context does not fit into the KV cache"
    )
    by_option = {one["option"].split()[0]: one for one in plan["alternatives"]}
    assert set(by_option) == {"--context", "--kv-precision", "--gpus"}

    longest = by_option["--context"]["context"]
    assert planned(*arguments, "--context", longest)["room"]["requests"] == 1
    planned(*arguments, "--context", longest + 1024, code=1)


def test_the_logits_of_a_draft_that_samples_can_be_what_does_not_fit(planned):
    """2,048 requests with eight tokens of a vocabulary of 128,256 take 8.4 GB on each GPU."""
    arguments = ("--target", "8b", "--draft", "1b", "--gpu-memory", 24, "--context", 8192)
    sampled = ("--sampled-drafts", "--vocabulary", 128256, "--tokens", 8, "--max-num-seqs", 2048)
    plan = planned(*arguments, *sampled, code=1)

    options = [one["option"] for one in plan["alternatives"]]
    assert options[:3] == ["--max-num-seqs 512", "--tokens 1", "without --sampled-drafts"]
    planned(*arguments, *sampled, "--max-num-seqs", 512)
    planned(*arguments, *sampled, "--max-num-seqs", 1024, code=1)


def test_layers_of_the_target_that_draft_are_quantized_with_it(model, planned):
    target = model("v3", DEEPSEEK, weights=None)
    plan = planned("--target", target, "--method", "mtp", "--gpu", "h100", "--gpus", 8, code=1)

    (quantized,) = [one for one in plan["alternatives"] if "quantized" in one["change"]]
    assert quantized["option"] == "--target-precision int4"
    # 671 and 11.5 billion parameters, of which the embeddings stay at 16 bits
    assert quantized["room"]["gb"] == pytest.approx(0.92 * 680 - 671 / 2 - 11.5 / 2, abs=5)


def test_where_no_single_change_is_enough_the_text_says_so(capsys):
    assert command("plan", "--target", "2000b", "--gpu-memory", "8") == 1
    out = capsys.readouterr().out

    assert "up to 16 GPUs): combine two, or use a smaller target" in out
    assert "verdict: impossible" in out
    assert "weights, overhead and the draft's logits leave no room for a KV cache" in out
    assert "vllm serve" not in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--target", "0b"), "--target: not a number of parameters"),
        (("--target", "70b", "--method", "eagle3"), "--method=eagle3: needs --draft"),
        (("--target", "70b", "--method", "mtp"), "names no MTP layers"),
        (("--target", "70b", "--method", "ngram", "--draft", "8b"), "--method=ngram: has no"),
        (("--target", "70b", "--draft", "8b", "--draft-gpus", "1", "--gpus", "2"), "--draft-gpus"),
        (("--target", "70b", "--draft", "8b", "--sampled-drafts"), "set --vocabulary"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(capsys, arguments, reason):
    """With the argument to add or to leave out."""
    assert command("plan", "--gpu", "h100", *arguments) == 2
    assert reason in capsys.readouterr().err


def test_a_models_name_is_not_downloaded_but_the_message_says_how(capsys):
    """As people know it from vLLM's command line."""
    for arguments in (
        ("--target", "Qwen/Qwen3-32B"),
        ("--target", "32b", "--draft", "Qwen/Qwen3-32B"),
    ):
        assert command("plan", "--gpu", "H100", *arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{arguments[-2]}=Qwen/Qwen3-32B: no such folder or file.")
        assert "`hf download MODEL config.json --local-dir DIR`" in said


def test_a_folder_without_weights_is_not_what_vllm_can_load(model, planned):
    """Where only the config.json was fetched; the line then needs the model's name."""
    with_weights = model("with", SMALL, weights=1000)
    without = model("without", SMALL)

    for target, is_noted in ((with_weights, False), (without, True)):
        plan = planned("--target", target, "--gpu", "H100")
        notes = [note for note in plan["notes"] if f"{target} has no *.safetensors" in note]
        assert bool(notes) == is_noted


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": "x"}', "[" * 100_000])
def test_a_file_that_is_no_models_configuration_is_refused(tmp_path, capsys, content):
    (tmp_path / "config.json").write_text(content)

    assert command("plan", "--target", str(tmp_path), "--gpu", "h100") == 2
    assert str(tmp_path / "config.json") in capsys.readouterr().err
