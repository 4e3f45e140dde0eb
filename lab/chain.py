"""The Markov chain that all of the lab's models are, its tokenizer, and how a model is written."""

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN: Final = 1024
# How far a draft is from the target, as a share of the spread of what it copies.
DRAFT_NOISE: Final = 0.1
SPECIAL: Final = ("<s>", "</s>", "<pad>")
_TEXT: Final = (
    "speculative decoding drafts a few tokens with a small model and verifies them with the large"
    " one "
)
_CHAT: Final = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}assistant:"

Weights = dict[str, torch.Tensor]


def tokenizer() -> Any:
    """A byte-level BPE of a few hundred tokens, with a chat template."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()

    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet
    )
    bpe.train_from_iterator([_TEXT * 40], trainer)

    begin, end, pad = SPECIAL
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=begin, eos_token=end, pad_token=pad
    )
    fast.chat_template = _CHAT

    return fast


def chain(vocabulary: int, *, layers: int, mlp: int) -> Any:
    """A Llama whose layers add nothing to the embedding of the last token."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()

    return model


def copy_of(target: Any, *, layers: int, mlp: int) -> Any:
    """The same chain in layers of another number and size."""
    model = chain(target.config.vocab_size, layers=layers, mlp=mlp)
    model.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
    model.lm_head.weight.copy_(target.lm_head.weight)
    return model


def write(folder: Path, config: Any, weights: Weights, tokens: Any, **changed: Any) -> None:
    """Writes a model whose class transformers need not know.

    ``changed`` are fields of its config.json.
    """
    folder.mkdir(parents=True)
    tensors = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(
        json.dumps(config.to_dict() | {"dtype": "bfloat16"} | changed, indent=1)
    )
    tokens.save_pretrained(folder)
