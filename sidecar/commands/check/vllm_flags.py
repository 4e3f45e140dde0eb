"""Flags, keys and methods of vLLM's speculation that never worked or were removed, and what replaces them.

Sources are vLLM's own: pull requests 15466 (the flags of V0 removed, 2025-03-31), 24322 (draft models in V1), 31982 and
32003 (sampling parameters), 35060 (disable_by_batch_size), issues 31883 and 34497, and the code of 0.32. Where a text
says "about", the exact version was not seen. What vLLM itself refuses when it starts, with a message that says what to
write, is left to vLLM.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Version = tuple[int, ...]

NEWEST: Final[Version] = (0, 33)
REJECTED: Final = "rejected with status 400"
PLUGIN: Final = "specdec"  # the name of our entry point
_CONFIG: Final = ("--speculative-config", "-sc")
_KEYS: Final = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}


@dataclass(frozen=True, slots=True)
class Fate:
    """Names with the same ``problem`` from version ``since`` on until before ``until``, each with its remedy.

    A name is a flag, ``the key …`` of ``--speculative-config`` or ``the method …``.
    """

    problem: str
    remedies: Mapping[str, str]
    since: Version = (0,)
    until: Version = (1_000,)


def _key(name: str) -> str:
    return f"write --speculative-config '{{\"{name}\": …}}'"


_LOADS: Final = "write num_speculative_tokens_per_batch_size (0.24 and later) to draft less under load"
_SAMPLING: Final = "leave it out; rejection_sample_method chooses among today's samplers"
_VERIFIED: Final = "leave it out: verification samples as the request asks"
_OF_A_REQUEST: Final = "temperature and top_p are parameters of a request"
_OF_ONE_MODEL: Final = ("deepseek", "ernie", "qwen3_next", "mimo", "longcat_flash")

FATES: Final = (
    Fate(
        "was removed in about 0.8.3",
        {
            "--speculative-model": _key("model"),
            "--num-speculative-tokens": _key("num_speculative_tokens"),
            "--speculative-draft-tensor-parallel-size": _key("draft_tensor_parallel_size"),
            "--speculative-max-model-len": _key("max_model_len"),
            "--speculative-model-quantization": _key("quantization"),
            "--speculative-disable-by-batch-size": _LOADS,
            "--ngram-prompt-lookup-max": _key("prompt_lookup_max"),
            "--ngram-prompt-lookup-min": _key("prompt_lookup_min"),
        },
        since=(0, 8, 3),
    ),
    Fate(
        "belonged to the V0 engine, which was removed in about 0.10",
        {
            "--speculative-disable-mqa-scorer": "leave it out",
            "--disable-logprobs-during-spec-decoding": "leave it out: logprobs are returned",
            "--spec-decoding-acceptance-method": _SAMPLING,
            "--typical-acceptance-sampler-posterior-threshold": _SAMPLING,
            "--typical-acceptance-sampler-posterior-alpha": _SAMPLING,
            "--use-v2-block-manager": "leave it out",
            "the key disable_mqa_scorer": "leave it out",
            "the key disable_logprobs": "leave it out: logprobs are returned",
            "the key acceptance_method": _SAMPLING,
            "the key posterior_threshold": _SAMPLING,
            "the key posterior_alpha": _SAMPLING,
        },
        since=(0, 10),
    ),
    Fate(
        "has never existed in vLLM",
        {
            "--speculative-sampling": _VERIFIED,
            "--enable-speculative-decoding": "leave it out: --speculative-config switches speculation on",
            "--draft-model": 'write --speculative-config \'{"method": "draft_model", "model": "…"}\'',
            "the key speculative_sampling": _VERIFIED,
            "the key speculative_model": "the key is model",
            "the key draft_model": "the key is model",
            "the key temperature": _OF_A_REQUEST,
            "the key top_p": _OF_A_REQUEST,
            "the method mlp": "the name was mlp_speculator, until 0.32",
        },
    ),
    Fate("is refused", {"the key tensor_parallel_size": "the key is draft_tensor_parallel_size: 1, or the target's"}),
    Fate(
        "has no effect since 0.10, and is refused since about 0.17",
        {"the key disable_by_batch_size": _LOADS},
        since=(0, 10),
    ),
    Fate(
        "is replaced in 0.32",
        {"the key synthetic_acceptance_rate": "write synthetic_acceptance_length or synthetic_acceptance_rates"},
        since=(0, 32),
    ),
    Fate(
        "is not supported from 0.10 to 0.13 (NotImplementedError at the start)",
        {"the method draft_model": "upgrade to 0.15 or later, or use eagle3, mtp or ngram"},
        since=(0, 10),
        until=(0, 14),
    ),
    Fate(
        "was removed in about 0.33",
        {"the method mlp_speculator": "use eagle3 or mtp", "the method medusa": "use eagle3 or mtp"},
        since=(0, 33),
    ),
    Fate(
        "is deprecated since about 0.12",
        dict.fromkeys((f"the method {name}_mtp" for name in _OF_ONE_MODEL), "the method is mtp, whatever the model"),
        since=(0, 12),
    ),
)


class Findings(NamedTuple):
    """``faults`` do not work; ``notes`` work, and are worth knowing."""

    faults: list[str]
    notes: list[str]


def findings(line: str, version: Version) -> Findings:
    """What is to be said of a command line in this version of vLLM.

    Raises:
        ValueError: it is empty, or cannot be split into words; the message says why.
    """
    words = shlex.split(line)
    if not words:
        raise ValueError("the command line is empty")
    command = _read(words)
    return Findings(list(_faults(command, version)), list(_notes(command, version)))


def unserved(version: Version) -> dict[str, tuple[str, ...]]:
    """What becomes of requests under speculation that use sampling parameters which it does not serve."""
    if version >= (0, 14):
        return {REJECTED: ("min_p", "logit_bias")}
    penalties = ("frequency_penalty", "presence_penalty", "repetition_penalty")
    return {"served without speculation": ("min_p", *penalties), "served without it": ("logit_bias",)}


def read_version(text: str) -> Version | None:
    """``0.32`` as (0, 32) and ``v0.8.5.post1`` as (0, 8, 5); None if it does not begin like a version."""
    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})", text, re.ASCII)
    return None if match is None else tuple(map(int, match[1].split(".")))


@dataclass(slots=True)
class _Command:
    """The names of its flags, ``--speculative-config``, which is None if it cannot be read, and ``VLLM_PLUGINS``."""

    flags: list[str] = field(default_factory=list)
    config: dict[str, Any] | None = field(default_factory=dict)
    plugins: str | None = None


def _read(words: list[str]) -> _Command:
    """As vLLM reads it, which takes underscores for hyphens in flags, and keys of a JSON value after a dot."""
    command = _Command()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else following
        flag, dot, key = name.partition(".")
        flag = flag.replace("_", "-")
        if name == "VLLM_PLUGINS":
            command.plugins = value
        elif flag in _CONFIG and not dot:
            command.config = _json_object(value)
        elif flag in _CONFIG or flag in _KEYS:
            command.config = (command.config or {}) | {_KEYS.get(flag, key.replace("-", "_")): value}
        elif flag.startswith("-"):
            command.flags.append(flag)
    return command


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {key.replace("-", "_"): value for key, value in found.items()} if isinstance(found, dict) else None


def _faults(command: _Command, version: Version) -> Iterator[str]:
    if command.plugins is not None and PLUGIN not in map(str.strip, command.plugins.split(",")):
        yield f"VLLM_PLUGINS={command.plugins} does not list {PLUGIN}, so vLLM does not load the plug-in; add it"
    if command.config is None:
        yield (
            "--speculative-config is not a JSON object; in a shell, put it into single quotes: "
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
        )
    config = command.config or {}
    names = [*command.flags, *(f"the key {key}" for key in config), f"the method {config.get('method')}"]
    yield from (fault for name in names for fault in _wrong(name, version))
    if "--disable-log-stats" in command.flags:
        yield "--disable-log-stats hides vLLM's metrics, so nothing can be monitored; leave it out"


def _wrong(name: str, version: Version) -> Iterator[str]:
    for fate in FATES:
        if name in fate.remedies and fate.since <= version < fate.until:
            yield f"{name} {fate.problem}; {fate.remedies[name]}"


def _notes(command: _Command, version: Version) -> Iterator[str]:
    if version[:2] > NEWEST:
        yield f"{'.'.join(map(str, NEWEST))} is the newest version known here: what later ones removed is not found"
    if command.config == {}:
        if not any(flag.startswith("--speculative-") for flag in command.flags):
            yield "speculation is off: there is no --speculative-config"
    elif version >= (0, 8):
        yield from (f"requests with {' or '.join(names)} are {fate}" for fate, names in unserved(version).items())
