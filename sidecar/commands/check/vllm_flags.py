"""Flags, keys and methods of vLLM's speculation that never worked or were removed, and what replaces them.

Sources are vLLM's own: pull requests 15466 (the flags of V0 removed, 2025-03-31), 24322 (draft models in V1), 31982 and
32003 (sampling parameters), 35060 (disable_by_batch_size), issues 31883 and 34497, and the code of 0.32. If the exact
version was not seen, ``is_verified`` is False.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Version = tuple[int, ...]
Kind = Literal["flag", "key", "method"]

NEWEST: Final[Version] = (0, 33)
_ALWAYS: Final[Version] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``name`` does not work from version ``since`` on until before ``until``; None: in no later version either."""

    kind: Kind
    name: str
    problem: str
    remedy: str
    since: Version = _ALWAYS
    until: Version | None = None
    is_verified: bool = True

    def applies(self, version: Version) -> bool:
        """Whether it does not work in that version."""
        return self.since <= version and (self.until is None or version < self.until)


def _moved(name: str, remedy: str) -> Entry:
    problem = "was removed in about 0.8.3"
    return Entry(kind="flag", name=name, problem=problem, remedy=remedy, since=(0, 8, 3), is_verified=False)


def _never(kind: Kind, name: str, remedy: str) -> Entry:
    return Entry(kind=kind, name=name, problem="has never existed in vLLM", remedy=remedy)


def _dropped(kind: Kind, name: str, remedy: str) -> Entry:
    problem = "belonged to the V0 engine, which was removed in 0.10"
    return Entry(kind=kind, name=name, problem=problem, remedy=remedy, since=(0, 10), is_verified=False)


_LOADS: Final = "write num_speculative_tokens_per_batch_size (0.24 and later) to draft less under load"
_SAMPLING: Final = "leave it out; rejection_sample_method chooses among today's samplers"

TABLE: Final = (
    *(
        _moved(flag, f"write --speculative-config '{{\"{key}\": …}}'")
        for flag, key in (
            ("--speculative-model", "model"),
            ("--num-speculative-tokens", "num_speculative_tokens"),
            ("--speculative-draft-tensor-parallel-size", "draft_tensor_parallel_size"),
            ("--speculative-max-model-len", "max_model_len"),
            ("--speculative-model-quantization", "quantization"),
            ("--ngram-prompt-lookup-max", "prompt_lookup_max"),
            ("--ngram-prompt-lookup-min", "prompt_lookup_min"),
        )
    ),
    _moved("--speculative-disable-by-batch-size", _LOADS),
    _dropped("flag", "--speculative-disable-mqa-scorer", "leave it out"),
    _dropped("flag", "--disable-logprobs-during-spec-decoding", "leave it out: logprobs are returned"),
    _dropped("flag", "--spec-decoding-acceptance-method", _SAMPLING),
    _dropped("flag", "--typical-acceptance-sampler-posterior-threshold", _SAMPLING),
    _dropped("flag", "--typical-acceptance-sampler-posterior-alpha", _SAMPLING),
    _dropped("flag", "--use-v2-block-manager", "leave it out"),
    _never("flag", "--speculative-sampling", "leave it out: verification samples as the request asks"),
    _never("flag", "--enable-speculative-decoding", "leave it out: --speculative-config switches speculation on"),
    _never("flag", "--draft-model", 'write --speculative-config \'{"method": "draft_model", "model": "…"}\''),
    _never("key", "speculative_sampling", "leave it out: verification samples as the request asks"),
    _never("key", "speculative_model", "the key is model"),
    _never("key", "draft_model", "the key is model"),
    _never("key", "temperature", "temperature and top_p are parameters of a request"),
    _never("key", "top_p", "temperature and top_p are parameters of a request"),
    Entry(
        kind="key",
        name="tensor_parallel_size",
        problem="is refused",
        remedy="the key is draft_tensor_parallel_size: 1, or the target's",
    ),
    Entry(
        kind="key",
        name="disable_by_batch_size",
        problem="has no effect since 0.10, and is refused since about 0.17",
        remedy=_LOADS,
        since=(0, 10),
        is_verified=False,
    ),
    _dropped("key", "disable_mqa_scorer", "leave it out"),
    _dropped("key", "disable_logprobs", "leave it out: logprobs are returned"),
    _dropped("key", "acceptance_method", _SAMPLING),
    _dropped("key", "posterior_threshold", _SAMPLING),
    _dropped("key", "posterior_alpha", _SAMPLING),
    Entry(
        kind="key",
        name="synthetic_acceptance_rate",
        problem="is replaced in 0.32",
        remedy="write synthetic_acceptance_length or synthetic_acceptance_rates",
        since=(0, 32),
    ),
    Entry(
        kind="method",
        name="draft_model",
        problem="is not supported from 0.10 to 0.13 (NotImplementedError at the start)",
        remedy="upgrade to 0.15 or later, or use eagle3, mtp or ngram",
        since=(0, 10),
        until=(0, 14),
    ),
    _never("method", "mlp", "the name was mlp_speculator, until 0.32"),
    *(
        Entry(
            kind="method",
            name=name,
            problem="was removed in 0.33",
            remedy="use eagle3 or mtp",
            since=(0, 33),
            is_verified=False,
        )
        for name in ("mlp_speculator", "medusa")
    ),
    *(
        Entry(
            kind="method",
            name=name,
            problem="is deprecated",
            remedy="the method is mtp, whatever the model",
            since=(0, 12),
            is_verified=False,
        )
        for name in ("deepseek_mtp", "ernie_mtp", "qwen3_next_mtp", "mimo_mtp", "longcat_flash_mtp")
    ),
)

KEYS: Final = frozenset(
    {
        *("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "quantization", "max_model_len"),
        *("revision", "code_revision", "enforce_eager", "moe_backend", "attention_backend", "kv_cache_dtype"),
        *("prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "num_speculative_tokens_per_batch_size"),
        *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
        *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "draft_load_config"),
        *("rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length"),
        *("draft_sample_method", "disable_padded_drafter_batch", "disable_eagle_block_drop"),
        *("use_local_argmax_reduction", "use_heterogeneous_vocab", "index_share_for_mtp_iteration"),
        *("enable_adaptive_verification", "dspark_draft_topk", "target_model_config", "target_parallel_config"),
    }
)
"""The keys of ``--speculative-config`` in 0.32."""

METHODS: Final = frozenset(
    {
        *("ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"),
        *("extract_hidden_states", "custom_class", "medusa", "mlp_speculator"),
    }
)
"""The methods of 0.32; the names of single models' MTP are accepted too."""


def read_version(text: str) -> Version | None:
    """``0.32`` as (0, 32) and ``v0.8.5.post1`` as (0, 8, 5); None if it does not begin like a version."""
    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})", text, re.ASCII)
    return None if match is None else tuple(map(int, match[1].split(".")))


def wrong(kind: Kind, name: str, version: Version) -> Entry | None:
    """The entry that applies to a name in a version; None if nothing is wrong with it."""
    return next((one for one in TABLE if (one.kind, one.name) == (kind, name) and one.applies(version)), None)
