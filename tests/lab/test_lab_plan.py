"""What ``plan`` calculates, beside what vLLM itself says."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from lab.installation import ROOT, installed
from sidecar.sizes.caches import CachedLayers
from specdec_tools.planning.config import read_model
from specdec_tools.planning.memory import CacheOptions, cache_of
from specdec_tools.planning.serving import KV_CACHE_DTYPES
from specdec_tools.planning.shape import ModelShape
from tests.commands.commands_tools import command
from tests.commands.test_plan_layers import FALCON_H1_7B, JAMBA, NEMOTRON_9B, QWEN3_NEXT
from tests.lab.conftest import idle

pytestmark = pytest.mark.lab

CLOSE = 0.03
BLOCK = 128  # tokens, vLLM's on a CPU
CONTEXT = 2048  # of lab/serve

# By the method of lab/serve: target, draft, and the method that plan is told.
PLANNED = {
    "off": ("target", None, None),
    "draft_model": ("target", "draft", "draft_model"),
    "eagle": ("target", "eagle", "eagle"),
    "eagle3": ("target", "eagle3", "eagle3"),
    "mtp": ("target-mtp", None, "mtp"),
    "dflash": ("target", "dflash", "dflash"),
    "ngram": ("target", None, "ngram"),
}


def labels_of(metric, page):
    """The labels of the only series of a metric."""
    ((_, labels),) = [key for key in page if key[0] == metric]
    return dict(labels)


@pytest.mark.measured
@pytest.mark.parametrize("method", PLANNED)
async def test_the_cache_has_the_blocks_and_tokens_that_vllm_says_at_its_start(lab, capsys, method):
    """The lab gives the cache one GiB whatever the weights are, and so is plan told."""
    target, draft, named = PLANNED[method]
    models = installed().model(target).parent
    arguments = ["--target", str(models / target), "--gpu-memory", "2", "--available-kv-cache", "1"]
    if draft is not None:
        arguments += ["--draft", str(models / draft)]
    if named is not None:
        arguments += ["--method", named]
    assert command("plan", *arguments, "--block-size", str(BLOCK), "--json") == 0
    plan = json.loads(capsys.readouterr().out)

    vllm = lab(method)
    await vllm.start()
    info = labels_of("vllm:cache_config_info", await idle(vllm.url))

    # The draft's weights, up to 2 % of the GiB, are subtracted by plan only.
    assert plan["context"] == CONTEXT
    assert plan["room"]["blocks"] == pytest.approx(int(info["num_gpu_blocks"]), rel=CLOSE)
    assert plan["room"]["tokens"] == pytest.approx(int(info["kv_cache_size_tokens"]), rel=CLOSE)


BYTES = 50e9
CONTEXT_OF_CACHES = 32768
# The precision of the cache, batched tokens, and the layers.
CACHES = {
    "a 70B and an 8B draft of half the heads": (
        *("bf16", 2048),
        [CachedLayers(80, 8, 256), CachedLayers(32, 4, 256)],
    ),
    "the same with 8 bits": ("int8", 2048, [CachedLayers(80, 8, 256), CachedLayers(32, 4, 256)]),
    "the same with 4 bits": ("int4", 2048, [CachedLayers(80, 8, 256), CachedLayers(32, 4, 256)]),
    "Gemma 3": ("bf16", 2048, [CachedLayers(10, 16, 256), CachedLayers(52, 16, 256, 1024)]),
    "gpt-oss with an EAGLE head": (
        *("bf16", 2048),
        [CachedLayers(12, 8, 128), CachedLayers(12, 8, 128, 128), CachedLayers(1, 8, 128)],
    ),
    "DeepSeek V3": ("bf16", 8192, [CachedLayers(61, 1, 576, layout="latent")]),
    "DeepSeek V3 with 8 bits": ("fp8", 8192, [CachedLayers(61, 1, 576, layout="latent")]),
    "DeepSeek V3.2": (
        *("bf16", 8192),
        [
            CachedLayers(61, 1, 576, layout="sparse latent"),
            CachedLayers(61, 1, 132, layout="indexer"),
        ],
    ),
    "DeepSeek V3.2 with 8 bits": (
        *("fp8", 8192),
        [
            CachedLayers(61, 1, 576, layout="sparse latent"),
            CachedLayers(61, 1, 132, layout="indexer"),
        ],
    ),
    "Mistral 7B": ("bf16", 2048, [CachedLayers(32, 8, 256, 4096)]),
    "windows and a draft of other heads": (
        *("bf16", 2048),
        [CachedLayers(18, 8, 128), CachedLayers(18, 8, 128, 128), CachedLayers(1, 4, 256)],
    ),
    "MiMo-V2, whose windows have twice the heads": (
        *("bf16", 2048),
        [CachedLayers(9, 4, 320), CachedLayers(39, 8, 320, 128)],
    ),
    "windows and a draft of larger heads": (
        *("bf16", 2048),
        [CachedLayers(18, 8, 128), CachedLayers(18, 8, 128, 128), CachedLayers(1, 8, 192)],
    ),
}


def named_by_vllm(precision, layers):
    """As vLLM resolves a precision of the cache; the sparse MLA has a format of its own."""
    if precision == "fp8" and any(one.layout == "sparse latent" for one in layers):
        return "fp8_ds_mla"
    return KV_CACHE_DTYPES[precision] or "bfloat16"


def answers_of_vllm(asked):
    """What vLLM's own code says of these caches."""
    lab = installed()
    said = subprocess.run(
        [lab.venv / "bin/python", "-m", "lab.cache", lab.model("target")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ""},
        check=True,
    )
    return json.loads(said.stdout.splitlines()[-1])


def test_the_cache_of_other_models_is_as_vllms_own_code_divides_it():
    """With the scales of a quantization, and with what sparse MLA stores to select tokens."""
    asked = [
        {
            "bytes": int(BYTES),
            "context": CONTEXT_OF_CACHES,
            "batched_tokens": batched,
            "block_size": 16,
            "precision": named_by_vllm(precision, layers),
            "layers": [asdict(one) for one in layers],
        }
        for precision, batched, layers in CACHES.values()
    ]
    answers = answers_of_vllm(asked)

    for (name, given), (_, tokens) in zip(CACHES.items(), answers, strict=True):
        precision, batched, layers = given
        shape = ModelShape(name=name, parameters=1, active_parameters=1, layers=tuple(layers))
        options = CacheOptions(precision=precision, block_size=16, in_flight=batched)
        cache = cache_of([(shape, 1)], options)
        assert cache.tokens(BYTES, CONTEXT_OF_CACHES) == pytest.approx(tokens, rel=0.005), name


# What vLLM also needs to read of a configuration.
HYBRIDS = {
    "Qwen3NextForCausalLM": QWEN3_NEXT | {"num_experts_per_tok": 10},
    "NemotronHForCausalLM": NEMOTRON_9B | {"conv_kernel": 4},
    "FalconH1ForCausalLM": FALCON_H1_7B | {"mamba_d_ssm": 3072, "mamba_d_conv": 4},
    "JambaForCausalLM": JAMBA | {"mamba_d_conv": 4, "num_experts_per_tok": 2},
}


def test_the_cache_of_models_with_states_is_as_vllms_own_code_divides_it(tmp_path):
    """To the block and to the token, without speculation and with three draft tokens."""
    asked = []
    models = {}
    for architecture, config in HYBRIDS.items():
        folder = tmp_path / architecture
        folder.mkdir()
        added = {"architectures": [architecture], "max_position_embeddings": 2**20}
        (folder / "config.json").write_text(json.dumps({"dtype": "bfloat16"} | config | added))
        models[architecture] = shape = read_model(folder, None, None)
        (attention,), (state,) = shape.layers, shape.states
        asked += [
            {
                "hybrid": str(folder),
                "bytes": int(BYTES),
                "context": CONTEXT_OF_CACHES,
                "block_size": 16,
                "draft_tokens": tokens,
                "with_attention": attention.count,
                "with_state": state.count,
            }
            for tokens in (0, 3)
        ]

    for one, (blocks, tokens) in zip(asked, answers_of_vllm(asked), strict=True):
        name = Path(one["hybrid"]).name
        cache = cache_of([(models[name], 1)], CacheOptions(draft_tokens=one["draft_tokens"]))
        assert cache.blocks(BYTES) == blocks, name
        assert cache.tokens(BYTES, CONTEXT_OF_CACHES) == tokens, name


def test_a_configuration_tells_the_size_of_the_weights():
    """Within half a percent of the files."""
    for name in ("target", "target-large", "draft"):
        folder = installed().model(name)
        on_disk = read_model(folder, None, None)
        assert on_disk.file_bytes == pytest.approx(2 * on_disk.parameters, rel=0.005), name
