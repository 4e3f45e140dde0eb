"""Flags, keys and methods of vLLM's speculation that never worked or were removed, and what replaces them.

The sources are vLLM's own: pull requests 15466 (the flags of V0 removed, 2025-03-31), 31982 and 32003 (sampling
parameters), 35060 (disable_by_batch_size), issue 52258 (max_model_len), and the code of 0.32. Where a text says
"about", the exact version is unknown. What vLLM itself rejects when it starts, with a message that says what to write,
is left to vLLM.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sidecar.engine.methods import ENDED_BY_A_SCHEDULE, IGNORE_A_SCHEDULE, given_up, honours_draft_sampling

Version = tuple[int, ...]

NEWEST: Final[Version] = (0, 33)
REJECTED: Final = ("min_p", "logit_bias")
"""Sampling parameters for which vLLM answers 400 under speculation, from 0.14 on."""
_Config = dict[str, Any] | None  # `--speculative-config`; None if it cannot be read
_CONFIG: Final = ("--speculative-config", "-sc")
_DATA_PARALLEL: Final = ("--data-parallel-size", "-dp")
_KEYS: Final = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}


@dataclass(frozen=True, slots=True)
class Fate:
    """Names that have the same ``problem`` from version ``since`` on, each with its remedy.

    A name is a flag, ``the key …`` of ``--speculative-config`` or ``the method …``.
    """

    problem: str
    remedies: Mapping[str, str]
    since: Version = (0,)


def _key(name: str) -> str:
    return f"use --speculative-config '{{\"{name}\": …}}'"


_LOADS: Final = "to draft less under load, use num_speculative_tokens_per_batch_size (0.24 and later)"

FATES: Final = (
    Fate(
        "was removed in about 0.8.3",
        {
            "--speculative-model": _key("model"),
            "--num-speculative-tokens": _key("num_speculative_tokens"),
            "--speculative-draft-tensor-parallel-size": _key("draft_tensor_parallel_size"),
            "--speculative-max-model-len": "remove it: the key max_model_len no longer limits drafts by length",
            "--speculative-model-quantization": _key("quantization"),
            "--speculative-disable-by-batch-size": _LOADS,
            "--ngram-prompt-lookup-max": _key("prompt_lookup_max"),
            "--ngram-prompt-lookup-min": _key("prompt_lookup_min"),
        },
        since=(0, 8, 3),
    ),
    Fate(
        "belonged to the V0 engine, which was removed in about 0.10",
        dict.fromkeys(("--use-v2-block-manager", "--spec-decoding-acceptance-method"), "remove it"),
        since=(0, 10),
    ),
    Fate(
        "has never existed in vLLM",
        {
            "--enable-speculative-decoding": "remove it: --speculative-config turns speculation on",
            "--draft-model": 'use --speculative-config \'{"method": "draft_model", "model": "…"}\'',
            "the key speculative_model": "use model instead",
            "the key draft_model": "use model instead",
        },
    ),
    Fate(
        "has had no effect since 0.10, and vLLM has rejected it since about 0.17",
        {"the key disable_by_batch_size": _LOADS},
        since=(0, 10),
    ),
    Fate(
        "is ignored by model runner V2, and with V1 no request of a batch gets real drafts while one is longer",
        {"the key max_model_len": "remove it"},
        since=(0, 9),
    ),
    Fate(
        "was removed in about 0.33",
        {"the method mlp_speculator": "use eagle3 or mtp", "the method medusa": "use eagle3 or mtp"},
        since=(0, 33),
    ),
)


_DRAFT_SAMPLING: Final = {
    "greedy": (
        "the draft picks its likeliest token at every temperature (draft_sample_method greedy, the default), so hot "
        "requests accept less; docs/why.md says when probabilistic helps"
    ),
    "probabilistic": (
        "draft_sample_method probabilistic needs GPU memory for the draft's logits (max_num_seqs x K x vocabulary x 4 "
        "bytes); on model runner V1 vLLM does not profile it, and seeds no longer make outputs reproducible"
    ),
}


class Findings(NamedTuple):
    """``faults`` are what does not work, ``notes`` what works but is worth knowing."""

    faults: list[str]
    notes: list[str]


def findings(line: str, version: Version) -> Findings:
    """Checks a command line for this version of vLLM.

    Raises:
        ValueError: it is empty, or cannot be split into words; the message says why.
    """
    words = shlex.split(line)
    if not words:
        raise ValueError("the command line is empty")
    flags, config = _read(words)
    return Findings(list(_faults(flags, config, version)), list(_notes(flags, config, version)))


def vllm_version(text: str) -> Version:
    """``0.32`` as (0, 32) and ``v0.8.5.post1`` as (0, 8, 5).

    Raises:
        ArgumentTypeError: it does not start like a version.
    """
    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError("expected a version such as 0.32")
    return tuple(map(int, match[1].split(".")))


def _read(words: list[str]) -> tuple[dict[str, str], _Config]:
    """Reads flags, each with what follows it, and the keys of ``--speculative-config``.

    Like vLLM, it accepts underscores for hyphens in flags, and keys of the JSON value after a dot.
    """
    flags: dict[str, str] = {}
    config: _Config = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else following
        flag, dot, key = name.partition(".")
        flag = flag.replace("_", "-")
        if flag in _CONFIG and not dot:
            config = _json_object(value)
        elif flag in _CONFIG or flag in _KEYS:
            config = (config or {}) | {_KEYS.get(flag, key.replace("-", "_")): value}
        elif flag.startswith("-"):
            flags[flag] = value
    return flags, config


def _json_object(text: str) -> _Config:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {key.replace("-", "_"): value for key, value in config.items()} if isinstance(config, dict) else None


def _faults(flags: Mapping[str, str], config: _Config, version: Version) -> Iterator[str]:
    if config is None:
        yield (
            "--speculative-config is not a JSON object; in a shell, put it in single quotes: "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
        )
    keys = config or {}
    for name in (*flags, *(f"the key {key}" for key in keys), f"the method {keys.get('method')}"):
        for fate in FATES:
            if name in fate.remedies and version >= fate.since:
                yield f"{name} {fate.problem}; {fate.remedies[name]}"
    yield from _contradictions(flags, keys)
    if "--disable-log-stats" in flags:
        yield "--disable-log-stats hides vLLM's metrics, so nothing can be monitored; remove it"


def _contradictions(flags: Mapping[str, str], keys: Mapping[str, Any]) -> Iterator[str]:
    """What does not work together."""
    schedule, method = "num_speculative_tokens_per_batch_size", keys.get("method")
    if schedule in keys:
        if method in ENDED_BY_A_SCHEDULE:
            yield f"with method {method}, {schedule} ends the engine (AssertionError) when it changes K; remove it"
        elif method in IGNORE_A_SCHEDULE:
            yield f"{schedule} has no effect with method {method}; remove it"
        elif not {flags.get(name, "1") for name in _DATA_PARALLEL} <= {"1"}:
            yield f"{schedule} has no effect with data parallelism; remove one of the two"
    if keys.get("draft_sample_method") == "probabilistic":
        for key in ("use_local_argmax_reduction", "use_heterogeneous_vocab"):
            if str(keys.get(key, False)).lower() not in {"false", "0"}:
                yield f"{key} with draft_sample_method probabilistic stops vLLM from starting; remove one of the two"


def _notes(flags: Mapping[str, str], config: _Config, version: Version) -> Iterator[str]:
    if version[:2] > NEWEST:
        yield f"this check knows vLLM up to {'.'.join(map(str, NEWEST))}, and does not find what later versions removed"
    if config == {}:
        if not any(flag.startswith("--speculative-") for flag in flags):
            yield "speculation is off: --speculative-config is not set"
    elif version >= (0, 14):
        yield f"vLLM rejects requests with {' or '.join(REJECTED)} (status 400) while it speculates"
        method = (config or {}).get("method")
        if lost := given_up(method):
            features = " and ".join(lost)
            yield f"with method {method}, vLLM does not use {features}, which it uses by default without speculation"
        sampling = _DRAFT_SAMPLING.get(str((config or {}).get("draft_sample_method", "greedy")))
        if sampling is not None and version >= (0, 22) and honours_draft_sampling(method):
            yield sampling
