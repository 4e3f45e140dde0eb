"""Flags, keys and methods of speculation that vLLM no longer has or never had, and what to write.

The sources are vLLM's own: pull requests 15466 (the flags of V0, removed on 2025-03-31) and 35060
(disable_by_batch_size), 22138 (multi-step scheduling), issue 52258 (max_model_len), and the code of
0.12.0, which has none of V0's flags, and of 0.32. Where a text says
"about", the exact version is not known.
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.engine.methods import is_untagged
from specdec_tools.serve_line.reading import ServeLine

Version = tuple[int, ...]

NEWEST: Final[Version] = (0, 33)
"""The newest version of vLLM that the table is for."""
_BY_LOAD: Final = (
    "to draft less under load, use num_speculative_tokens_per_batch_size (0.24 and later)"
)


@dataclass(frozen=True, slots=True)
class Obsolete:
    """Names that have the same ``problem`` from the version ``since`` on, each with its remedy.

    A name is a flag, ``the key …`` of ``--speculative-config`` or ``the method …``.
    """

    problem: str
    remedies: Mapping[str, str]
    since: Version = (0,)


def _key(name: str) -> str:
    return f"use --speculative-config '{{\"{name}\": …}}'"


OBSOLETE: Final = (
    Obsolete(
        "was removed in about 0.8.3",
        {
            "--speculative-model": _key("model"),
            "--num-speculative-tokens": _key("num_speculative_tokens"),
            "--speculative-draft-tensor-parallel-size": _key("draft_tensor_parallel_size"),
            "--speculative-max-model-len": "remove it",
            "--speculative-model-quantization": _key("quantization"),
            "--speculative-disable-by-batch-size": _BY_LOAD,
            "--ngram-prompt-lookup-max": _key("prompt_lookup_max"),
            "--ngram-prompt-lookup-min": _key("prompt_lookup_min"),
        },
        since=(0, 8, 3),
    ),
    Obsolete(
        "belonged to the V0 engine, which was removed in about 0.10",
        dict.fromkeys(
            (
                "--use-v2-block-manager",
                "--spec-decoding-acceptance-method",
                "--typical-acceptance-sampler-posterior-threshold",
                "--typical-acceptance-sampler-posterior-alpha",
                "--disable-logprobs-during-spec-decoding",
                "--num-lookahead-slots",
                "--num-scheduler-steps",
                "--multi-step-stream-outputs",
                "--scheduler-delay-factor",
                "--preemption-mode",
            ),
            "remove it",
        ),
        since=(0, 10),
    ),
    Obsolete(
        "has never existed in vLLM",
        {
            "--enable-speculative-decoding": (
                "remove it: --speculative-config turns speculation on"
            ),
            "--draft-model": (
                'use --speculative-config \'{"method": "draft_model", "model": "…"}\''
            ),
            "the key speculative_model": "use model instead",
            "the key draft_model": "use model instead",
        },
    ),
    Obsolete(
        "has had no effect since 0.10, and vLLM has rejected it since about 0.17",
        {"the key disable_by_batch_size": _BY_LOAD},
        since=(0, 10),
    ),
    Obsolete(
        "is ignored by model runner V2, and with V1 no request of a batch gets real drafts while "
        "one is longer",
        {"the key max_model_len": "remove it"},
        since=(0, 9),
    ),
    Obsolete(
        "was removed in about 0.33",
        dict.fromkeys(("the method mlp_speculator", "the method medusa"), "use eagle3 or mtp"),
        since=(0, 33),
    ),
)


def obsolete(line: ServeLine, version: Version) -> Iterator[str]:
    """What this version of vLLM does not have of a line, each with what to write instead."""
    keys = [f"the key {key}" for key in line.keys]
    for name in (*line.flags, *keys, f"the method {line.method}"):
        for one in OBSOLETE:
            if name in one.remedies and version >= one.since:
                yield f"{name} {one.problem}; {one.remedies[name]}"


def vllm_version(text: str) -> Version:
    """``0.32`` as (0, 32), ``v0.8.5.post1`` as (0, 8, 5); an untagged build as the newest.

    Raises:
        ArgumentTypeError: it does not begin like a version.
    """
    if is_untagged(text):
        return NEWEST

    match = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError("expected a version such as 0.32")
    return tuple(map(int, match[1].split(".")))


def shown(version: Version) -> str:
    """(0, 32) as ``0.32``."""
    return ".".join(map(str, version))
