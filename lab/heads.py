"""What drafts without a model of its own, and an adapter.

Heads for EAGLE, EAGLE-3 and DFlash, and MiMo's layer for MTP.

The chain's next token depends on the last one alone, so each head passes the embedding of the last
token on, with noise on it, and ignores what else the target gives it.
"""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, Qwen2Config, Qwen2ForCausalLM

from lab.chain import DRAFT_NOISE, HIDDEN, SPECIAL, Weights, write

_ZERO: Final = torch.zeros(HIDDEN, HIDDEN)
_PAD: Final = SPECIAL.index("<pad>")
_RANK: Final = 8  # of the adapter


def write_all(folder: Path, target: Any, tokens: Any) -> None:
    """Writes all of them, in an order that their random numbers depend on."""
    torch.manual_seed(2)
    shape = {"num_hidden_layers": 1, "intermediate_size": 256, "num_key_value_heads": 4}
    config = LlamaConfig(**target.config.to_dict() | shape)
    write(
        folder / "eagle", config, eagle(config, target), tokens, architectures=["LlamaForCausalLM"]
    )

    mimo, weights = mtp(target)
    name = ["MiMoForCausalLM"]
    write(
        folder / "target-mtp", mimo, weights, tokens, architectures=name, num_nextn_predict_layers=1
    )

    config.num_key_value_heads = config.num_attention_heads
    eagle3_settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(tokens),
        "norm_before_residual": True,
    }
    write(folder / "eagle3", config, eagle3(config, target), tokens, **eagle3_settings)

    dflash_settings = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dflash_config": {"mask_token_id": _PAD, "target_layer_ids": [1]},
    }
    embedding = target.model.embed_tokens.weight
    write(folder / "dflash", config, dflash(config, embedding), tokens, **dflash_settings)
    torch.save(0.01 * embedding[_PAD], folder / "dflash/mask_embedding.pt")

    write_adapter(folder / "lora", target.config)


def eagle(config: Any, target: Any) -> Weights:
    """``fc`` joins the last token's embedding and the target's hidden state.

    It takes the first.

    The output weights are the target's. So is the embedding, but for <pad>: vLLM would share an
    equal one, and with ``--enable-lora`` its CPU build then ends at the first request.
    """
    embedding = target.model.embed_tokens.weight.clone()
    embedding[_PAD] *= -1

    weights = layer(config, "layers.0.")
    del weights["layers.0.input_layernorm.weight"]
    return weights | {
        "fc.weight": torch.cat([noisy_identity(), _ZERO], 1),
        "embed_tokens.weight": embedding,
    }


def mtp(target: Any) -> tuple[Any, Weights]:
    """The target as a MiMo model.

    Its own layer joins the hidden state and the embedding, and takes the second.
    """
    own = {
        key: value
        for key, value in target.config.to_dict().items()
        if key not in ("model_type", "architectures")
    }
    mimo = Qwen2ForCausalLM(Qwen2Config(**own))
    mimo.load_state_dict(target.state_dict(), strict=False)

    weights = mimo.state_dict()
    weights |= {
        name: torch.zeros_like(weight) for name, weight in weights.items() if name.endswith(".bias")
    }

    prefix = "model.mtp_layers.0."
    weights |= layer(target.config, prefix)
    keys = target.config.num_key_value_heads * target.config.head_dim
    for projection, size in (("q", HIDDEN), ("k", keys), ("v", keys)):
        weights[f"{prefix}self_attn.{projection}_proj.bias"] = torch.zeros(size)

    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"{prefix}{norm}.weight"] = torch.ones(HIDDEN)

    weights[f"{prefix}input_proj.weight"] = torch.cat([_ZERO, noisy_identity()], 1)
    return mimo.config, weights


def eagle3(config: Any, target: Any) -> Weights:
    """The embedding enters by the attention alone.

    Queries and keys are the same random code of the token, so that each token sees itself (or the
    same token elsewhere) and takes its embedding along. The hidden state, from the second draft
    token on the last step's result, is subtracted.
    """
    code = torch.cat([torch.randn(HIDDEN, HIDDEN) * (8 / HIDDEN) ** 0.5, _ZERO], 1)
    value = torch.cat([noisy_identity(), -torch.eye(HIDDEN)], 1)
    weights = layer(
        config, "midlayer.", q_proj=code, k_proj=code, v_proj=value, o_proj=torch.eye(HIDDEN)
    )

    weights |= {
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    return weights | {
        "fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN),
        "lm_head.weight": target.lm_head.weight,
    }


def dflash(config: Any, embedding: torch.Tensor) -> Weights:
    """Each mask token sees the last token alone, so that only the first position predicts anything.

    Every token's key is the same direction, the mask token's is its opposite, and what comes from
    the target is 0.
    """
    normed = embedding / embedding.pow(2).mean(1, keepdim=True).sqrt()
    sign = torch.ones(len(embedding), 1)
    sign[_PAD] = -1

    direction = torch.zeros(config.head_dim)
    direction[[30, 31, 62, 63]] = 1  # where the rotary embedding turns too slowly to matter
    key = ((torch.linalg.pinv(normed) @ sign) @ direction[None]).T.repeat(
        config.num_attention_heads, 1
    )

    weights = layer(
        config,
        "layers.0.",
        q_proj=-key,
        k_proj=key,
        v_proj=noisy_identity(),
        o_proj=torch.eye(HIDDEN),
    )

    weights["layers.0.self_attn.q_norm.weight"] = torch.full((config.head_dim,), 4.0)
    weights["layers.0.self_attn.k_norm.weight"] = torch.ones(config.head_dim)
    weights |= {"hidden_norm.weight": torch.ones(HIDDEN), "norm.weight": torch.ones(HIDDEN)}
    return weights | {"fc.weight": torch.zeros(HIDDEN, HIDDEN)}


def noisy_identity() -> torch.Tensor:
    """An identity that adds noise of DRAFT_NOISE times the input's own spread."""
    return torch.eye(HIDDEN) + torch.randn(HIDDEN, HIDDEN) * DRAFT_NOISE / HIDDEN**0.5


def layer(config: Any, prefix: str, **given: torch.Tensor) -> Weights:
    """The weights of one transformer layer: zeros, but for the norms and those given."""
    heads = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    size = config.hidden_size
    mlp = config.intermediate_size
    shapes = {
        "self_attn.q_proj": (heads, size),
        "self_attn.k_proj": (keys, size),
        "self_attn.v_proj": (keys, size),
        "self_attn.o_proj": (size, heads),
        "mlp.gate_proj": (mlp, size),
        "mlp.up_proj": (mlp, size),
        "mlp.down_proj": (size, mlp),
    }
    weights = {}
    for name, shape in shapes.items():
        _, _, projection = name.partition(".")
        weights[name] = given.get(projection, torch.zeros(shape))

    weights |= {name: torch.ones(size) for name in ("input_layernorm", "post_attention_layernorm")}
    return {f"{prefix}{name}.weight": weight for name, weight in weights.items()}


def write_adapter(folder: Path, config: Any) -> None:
    """A LoRA adapter that makes the MLPs put something out.

    The target is then no Markov chain, and no head fits it.
    """
    folder.mkdir()
    sizes = {"A": (_RANK, config.intermediate_size), "B": (config.hidden_size, _RANK)}
    weights = {
        f"base_model.model.model.layers.{number}.mlp.down_proj.lora_{part}.weight": (
            torch.randn(size) * 0.1
        )
        for number in range(config.num_hidden_layers)
        for part, size in sizes.items()
    }
    save_file(weights, folder / "adapter_model.safetensors")

    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "lab",
        "r": _RANK,
        "lora_alpha": _RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
