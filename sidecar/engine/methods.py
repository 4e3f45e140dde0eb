"""What follows from vLLM's method of speculation, where the engine itself does not say.

The tables are from the code of vLLM 0.32 (config/vllm.py, v1/spec_decode/); what differs by version
is from that of 0.12.0, 0.14.1, 0.20.2, 0.27.1 and 0.32.0. Tables go out of date, so what the
plug-in reports of an engine takes precedence. A method that is not listed is assumed to draft token
by token with a model, as most do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

Release = tuple[int, int]

WITHOUT_A_DRAFTER: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
HEADS: Final = frozenset({"eagle", "eagle3", "dflash"})
"""Methods that draft with a head that was trained for the target model."""
_ONE_PASS: Final = WITHOUT_A_DRAFTER | {"dflash", "dspark", "medusa"}
_CUSTOM: Final = "custom_class"
ASYNC_SCHEDULING: Final = "async scheduling"
RUNNER_V2: Final = "model runner V2"
# The release from which plain decoding has each by default; model runner V2 only on GPUs.
_ASYNC_FROM: Final[Release] = (0, 14)
_RUNNER_V2_FROM: Final[Release] = (0, 27)
# The release from which a method has it, too; None: never. Methods that are not listed always have
# it. With a draft model, 0.27.1 has neither and 0.32.0 has both: releases in between are assumed to
# have them.
_ALWAYS_WITHOUT: Final[Mapping[str, Release | None]] = dict.fromkeys(
    ("suffix", "medusa", "mlp_speculator", _CUSTOM)
)
_ASYNC_WITH_METHOD: Final[Mapping[str, Release | None]] = {
    **_ALWAYS_WITHOUT,
    "draft_model": (0, 28),
    "ngram": (0, 33),
}
_RUNNER_V2_WITH_METHOD: Final[Mapping[str, Release | None]] = {
    **_ALWAYS_WITHOUT,
    "draft_model": (0, 28),
    "ngram": (0, 28),
    "ngram_gpu": (0, 28),
}
_ASYNC_ONLY_ON_V2: Final = "ngram"
# MTP does, too: those for which vLLM's use_eagle() is true.
_DROP_THE_LAST_BLOCK: Final = frozenset({"eagle", "eagle3", "dflash", "dspark"})
_SAMPLES_DRAFTS: Final = frozenset({"draft_model", "eagle", "eagle3"})
_DFLASH2: Final = "DFlash2"
REJECTED: Final = ("min_p", "logit_bias")
"""Sampling parameters that vLLM rejects with status 400 while it speculates, from 0.14 on."""
_REJECTS_FROM: Final[Release] = (0, 14)  # pull requests 31982 and 32003
_SAMPLES_FROM: Final[Release] = (0, 22)
_UNTAGGED: Final = re.compile(r"v?0\.(0|1\.dev)")
# Methods for which vLLM 0.33 keeps a schedule on model runner V1; MTP is one, too. The others
# assert a fixed K, or ignore the schedule.
_WITH_SCHEDULE: Final = frozenset({"draft_model", "eagle", "eagle3", "dflash", "ngram"})


def drafts_by_token(method: str | None, *, in_parallel: bool) -> bool:
    """Whether each draft token costs a pass of a draft model.

    The rule of thumb on acceptance assumes that. ``in_parallel``: vLLM's parallel_drafting is on.
    For a custom class it is unknown, and so not assumed.
    """
    return not in_parallel and method not in _ONE_PASS | {_CUSTOM}


def drafts_with_a_model(method: str | None) -> bool:
    """Whether a model, or a head of one, drafts.

    If so, drafts do not depend on repetition in the text.
    """
    return method not in WITHOUT_A_DRAFTER | {_CUSTOM}


def needs_a_draft(method: str | None) -> bool:
    """Whether a model other than the target drafts, so that the configuration has to name it."""
    return drafts_with_a_model(method) and not is_mtp(method)


def can_sample_drafts(
    method: str | None, *, in_parallel: bool, architectures: Iterable[str]
) -> bool:
    """Whether sampled drafts can be accepted more often than greedy ones.

    vLLM honours ``draft_sample_method`` with these methods (llm_base_proposer.py, runner V2), but a
    draft that predicts all positions at once samples each without knowing the others: with the
    first DFlash, accepted tokens per step fell from 2.96 to 1.16 (z-lab/dflash 169). DFlash2 gains
    (syv-ai/qwen38-27b-rtx3090 73); only the draft's ``architectures`` tell the two apart.
    """
    if in_parallel:
        return False
    if method == "dflash":
        return any(_DFLASH2 in name for name in architectures)
    return method in _SAMPLES_DRAFTS or is_mtp(method)


def rejects_parameters(vllm: str | None) -> bool:
    """Whether this version rejects ``REJECTED`` while it speculates; unknown versions do."""
    return _is_at_least(_REJECTS_FROM, vllm)


def offers_sampled_drafts(vllm: str | None) -> bool:
    """Whether this version has the option ``draft_sample_method``; unknown versions do."""
    return _is_at_least(_SAMPLES_FROM, vllm)


def is_untagged(vllm: str) -> bool:
    """Whether a version is that of a build without git tags, which says nothing about its age.

    Such a build calls itself 0.1.dev1.
    """
    return _UNTAGGED.match(vllm) is not None


def _is_at_least(release: Release, vllm: str | None) -> bool:
    """Whether a version is at least ``release``, or unknown."""
    numbers = re.match(r"v?(\d+)\.(\d+)", vllm or "")
    if numbers is None or is_untagged(vllm or ""):
        return True
    return (int(numbers[1]), int(numbers[2])) >= release


def drops_last_block(method: str | None) -> bool:
    """Whether the last block of a prefix-cache hit is computed again, for the draft head."""
    return method in _DROP_THE_LAST_BLOCK or is_mtp(method)


def drafts_from_target_states(method: str | None) -> bool:
    """Whether the draft's own context is made of the target's hidden states of every token."""
    return method in {"dflash", "dspark"}


def is_mtp(method: str | None) -> bool:
    """Whether layers of the target itself draft.

    The method is ``mtp``, until 0.10 with a prefix such as ``deepseek_mtp``.
    """
    return method == "mtp" or (method or "").endswith("_mtp")


def follows_a_schedule(method: str | None, *, runner_v2: bool | None) -> bool:
    """Whether drafting fewer tokens with more requests saves time, as far as is known.

    Model runner V2 truncates the drafts itself, so n-gram on the GPU follows a schedule there, too.
    A draft model still makes all the tokens there (0.32, v1/worker/gpu/spec_decode/standalone_ar):
    at K = 0 it costs as much as at any K.
    """
    if method == "ngram_gpu":
        return runner_v2 is True
    if method == "draft_model" and runner_v2 is True:
        return False
    return method in _WITH_SCHEDULE or is_mtp(method)


def given_up(
    method: str | None, vllm: str | None, *, runner_v2: bool | None = None
) -> tuple[str, ...]:
    """What plain decoding has by default in this version, but not decoding with this method.

    An unknown version counts as the latest. ``runner_v2``: whether the engine runs on model runner
    V2; None: unknown, so it is assumed to be the version's default on GPUs.
    """
    return tuple(_given_up(method or "", vllm, runner_v2=runner_v2))


def _given_up(method: str, vllm: str | None, *, runner_v2: bool | None) -> Iterator[str]:
    lacks_async = _lacks(_ASYNC_WITH_METHOD, method, vllm)
    if method == _ASYNC_ONLY_ON_V2 and runner_v2 is False:
        lacks_async = True
    if lacks_async and _is_at_least(_ASYNC_FROM, vllm):
        yield ASYNC_SCHEDULING

    if _lacks(_RUNNER_V2_WITH_METHOD, method, vllm) and _is_at_least(_RUNNER_V2_FROM, vllm):
        yield RUNNER_V2


def _lacks(with_method: Mapping[str, Release | None], method: str, vllm: str | None) -> bool:
    """Whether this version lacks it with this method, by the table."""
    if method not in with_method:
        return False
    release = with_method[method]
    return release is None or not _is_at_least(release, vllm)
