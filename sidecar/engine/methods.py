"""What follows from vLLM's method of speculation.

As in the code of 0.32 (config/vllm.py, v1/spec_decode/). A method that is not listed is taken for
one that drafts token by token with a model, as most are.
"""

from typing import Final

_NO_DRAFTER: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_ONE_PASS: Final = _NO_DRAFTER | {"dflash", "dspark", "medusa"}
_CUSTOM: Final = "custom_class"
_WITHOUT_ASYNC: Final = frozenset({"ngram", "suffix", "medusa", "mlp_speculator", _CUSTOM})
_WITHOUT_RUNNER_V2: Final = _WITHOUT_ASYNC - {"ngram"}
# With MTP: use_eagle().
_DROP_THE_LAST_BLOCK: Final = frozenset({"eagle", "eagle3", "dflash", "dspark"})
REJECTED: Final = ("min_p", "logit_bias")
"""Sampling parameters that vLLM from 0.14 on answers with status 400 while it speculates."""
# They assert a fixed K, or ignore it.
_WITHOUT_SCHEDULE: Final = frozenset({"suffix", "ngram_gpu", "medusa", _CUSTOM})


def drafts_by_token(method: str | None, *, in_parallel: bool) -> bool:
    """Whether each draft token costs a pass of a draft model.

    The rule of thumb on acceptance assumes that. ``in_parallel``: vLLM's parallel_drafting is on.
    Unknown for a class of one's own, so not assumed.
    """
    return not in_parallel and method not in _ONE_PASS | {_CUSTOM}


def drafts_with_a_model(method: str | None) -> bool:
    """Whether a model or a head of one drafts.

    If so, drafts do not depend on what the text repeats.
    """
    return method not in _NO_DRAFTER | {_CUSTOM}


def honours_draft_sampling(method: str | None) -> bool:
    """Whether ``draft_sample_method`` decides how the draft's tokens are chosen.

    See llm_base_proposer.py and runner V2.
    """
    return method not in _WITHOUT_ASYNC | _NO_DRAFTER | {"dspark", "extract_hidden_states"}


def drops_last_block(method: str | None) -> bool:
    """Whether the last block of a prefix-cache hit is computed again, for the draft head."""
    return method in _DROP_THE_LAST_BLOCK or is_mtp(method)


def is_mtp(method: str | None) -> bool:
    """Whether layers of the target itself draft.

    The method is ``mtp``, until 0.10 with a prefix such as ``deepseek_mtp``.
    """
    return method == "mtp" or (method or "").endswith("_mtp")


def follows_a_schedule(method: str | None) -> bool:
    """Whether the number of draft tokens may follow the batch size."""
    return method not in _WITHOUT_SCHEDULE


def given_up(method: str | None) -> tuple[str, ...]:
    """What vLLM does without because of the method.

    Plain decoding has it by default (0.14; 0.27, on GPUs).
    """
    scheduling = ("async scheduling",) * (method in _WITHOUT_ASYNC)
    runner = ("model runner V2",) * (method in _WITHOUT_RUNNER_V2)
    return scheduling + runner
