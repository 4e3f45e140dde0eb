"""What is read from the files of two models, and the checks of the pair."""

import json

import pytest

from sidecar.commands.plan.model_files import read_model
from sidecar.errors import InputError
from tests.commands.commands_tools import command

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "torch_dtype": "bfloat16",
    "vocab_size": 4,
}


@pytest.fixture
def model(tmp_path):
    def write(name, vocabulary=("a", "b", "c", "d"), weights=0, **config):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA | config))
        if vocabulary is not None:
            tokens = {token: number for number, token in enumerate(vocabulary)}
            (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": tokens}}))
        if weights:
            with (folder / "model-1.safetensors").open("wb") as file:
                file.truncate(weights)  # sparse: it takes no room
        return folder

    return write


def test_size_shape_and_precision_come_from_the_files(model):
    found = read_model(model("target", weights=140_000_000_000))
    assert (found.family, found.precision, found.billions, found.vocab_size) == ("llama", "bf16", 70.0, 4)
    assert (found.kv.layers, found.kv.heads, found.kv.head_size) == (80, 8, 128)
    assert read_model(model("latent", kv_lora_rank=512)).kv is None


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, None),
        ({"torch_dtype": None, "dtype": "float16"}, None),
        ({"torch_dtype": "float16"}, "fp16"),
    ],
)
def test_precision_comes_from_the_quantization_else_the_type(model, config, precision):
    assert read_model(model("m", **config)).precision == precision


def pair(capsys, target, draft):
    asked = ("--target-dir", str(target), "--draft-dir", str(draft), "--gpu", "h200", "--gpus", "2", "--json")
    assert command("plan", *asked) == 0
    found = json.loads(capsys.readouterr().out)
    return found, {check["name"]: check["passed"] for check in found["checks"]}


def test_a_matching_pair(model, capsys):
    target = model("target", weights=140_000_000_000)
    draft = model("draft", weights=16_000_000_000, num_hidden_layers=32, hidden_size=4096, num_attention_heads=32)
    found, checks = pair(capsys, target, draft)
    assert found["verdict"] == "good"
    assert checks.keys() >= {"family", "vocabulary size", "tokenizer"}
    assert found["memory"]["weights_gb"] == 156.0
    assert found["memory"]["kv_tokens"] == pytest.approx((282 * 0.9 - 156) * 1e9 / (327_680 + 131_072))
    assert not any("Not checked" in remark for remark in found["remarks"])


def test_another_tokenizer_of_the_same_size_is_noticed(model, capsys):
    """vLLM compares the sizes only."""
    target = model("target", weights=140_000_000_000)
    draft = model("draft", vocabulary=("a", "b", "d", "c"), weights=16_000_000_000, model_type="qwen2")
    found, checks = pair(capsys, target, draft)
    assert (checks["vocabulary size"], checks["tokenizer"], checks["family"]) == (True, False, False)
    assert found["verdict"] == "doubtful"
    assert any(reason.startswith("the tokenizer differs") for reason in found["reasons"])


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), ("{", "not JSON"), ("[]", "not a JSON object")])
def test_folders_without_a_model_are_refused(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=said):
        read_model(tmp_path)
    assert command("plan", "--target-dir", str(tmp_path), "--gpu", "h100") == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_weights_needs_the_size(model, capsys):
    folder = model("m")
    assert command("plan", "--target-dir", str(folder), "--gpu", "h100") == 2
    assert capsys.readouterr().err.startswith("--target: no size and no weights found")
    assert command("plan", "--target-dir", str(folder), "--target", "8b", "--gpu", "h100", "--context", "4096") == 0
    assert "requests at once " in capsys.readouterr().out
