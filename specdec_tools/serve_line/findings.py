"""What does not work in a command line of vLLM, and what is worth knowing before it is used.

What vLLM itself rejects at its start, with a message that says what to write, is left to vLLM.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.evidence import SYNTHETIC
from sidecar.engine.methods import (
    REJECTED,
    can_sample_drafts,
    follows_a_schedule,
    given_up,
    is_mtp,
    needs_a_draft,
    offers_sampled_drafts,
    rejects_parameters,
)
from specdec_tools.serve_line.obsolete import NEWEST, Version, obsolete, shown
from specdec_tools.serve_line.reading import ServeLine

_SCHEDULE: Final = "num_speculative_tokens_per_batch_size"
_FLAPS: Final = (
    f"{_SCHEDULE} reaches 0 draft tokens: around that number of requests vLLM drafts at one step"
    " and not at the next, which halved the throughput in vLLM issue 49548; keep it away from the"
    " usual load"
)
_GRAPHS: Final = (
    "--max-cudagraph-capture-size {} counts tokens, and a request that drafts has {} in a step: "
    "beyond {} running, steps leave full CUDA graphs, which took four fifths of the throughput in "
    "vLLM issue 54933; set it to --max-num-seqs times {}, or leave it out"
)
_SAMPLING: Final = "draft_sample_method"
# They assert that every step drafts num_speculative_tokens.
_ENDED_BY_A_SCHEDULE: Final = frozenset({"suffix", "ngram_gpu", "medusa"})
_DROPS_SCHEDULES_FROM: Final[Version] = (0, 33)
# Pull request 46994 makes MTP work with pipeline stages, on model runner V2 and for some heads.
_STAGES_FROM: Final[Version] = (0, 32)
_PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
_THINKING: Final = ("--reasoning-parser", "--reasoning-config")
_THINKS_FROM: Final[Version] = (0, 26)  # about: model runner V2 by default, with such budgets
_DATA_PARALLEL: Final = ("--data-parallel-size", "-dp")
# Keys that keep vLLM from starting where drafts are sampled, and where that is.
_NO_SAMPLED_DRAFTS: Final = {
    "use_heterogeneous_vocab": "",
    "use_local_argmax_reduction": " with model runner V2",
}

_NOT_JSON: Final = (
    "--speculative-config is not a JSON object; in a shell, put it in single quotes: "
    "--speculative-config '{}'"
)
_EXAMPLE_METHOD: Final = "ngram"
_MOST_DIGITS: Final = 10
_NO_METRICS: Final = (
    "--disable-log-stats hides vLLM's metrics, so nothing can be monitored; remove it"
)
_NO_PORT: Final = (
    "with --uds, vLLM listens at a Unix socket alone, where neither the sidecar nor Prometheus can "
    "read its metrics; use --host and --port"
)
_DROPPED: Final = (
    "vLLM drops {}: the last --speculative-config takes the place of those before, and keys after "
    "a dot that of all JSON and of those after another spelling of the flag; write all of them in "
    "one JSON object"
)
_SYNTHETIC: Final = (
    "rejection_sample_method synthetic accepts draft tokens at a set rate, whatever the model says,"
    " so replies are not the model's: it is for benchmarks; remove it"
)
_NO_STAGES: Final = (
    "method {} with pipeline stages keeps vLLM from starting, or drafts wrongly, before about 0.32 "
    "(vLLM issues 49355 and 52069); remove one of the two"
)
_STAGES: Final = (
    "with pipeline stages, method {} needs model runner V2 and a head that supports them, such as "
    "DeepSeek's and Qwen3.5's (vllm pull request 46994); try it on one pod first"
)
_NO_BUDGET: Final = (
    "model runner V2 ignores a request's thinking_token_budget while vLLM speculates (vLLM issue "
    "54906); V1 keeps to it (VLLM_USE_V2_MODEL_RUNNER=0)"
)
_OFF: Final = "speculation is off: --speculative-config is not set, or empty"
_CONFIG_FILE: Final = "--config"
_FILE_NOT_READ: Final = (
    "this check does not read the file of --config, which can set --speculative-config and any "
    "other flag"
)
_GREEDY: Final = (
    "the draft picks its likeliest token at every temperature (draft_sample_method greedy, the "
    "default), so hot requests accept less; docs/why.md says when probabilistic helps"
)
_PROBABILISTIC: Final = (
    "draft_sample_method probabilistic keeps the draft's logits in GPU memory (`specdec-sidecar "
    "plan --sampled-drafts` counts them); with model runner V1 vLLM does not plan for that, and "
    "seeds no longer make outputs reproducible"
)


@dataclass(frozen=True, slots=True)
class LineFindings:
    """``faults`` are what does not work, ``notes`` what works but is worth knowing."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]


def line_findings(line: ServeLine, version: Version) -> LineFindings:
    """Checks a command line for this version of vLLM."""
    return LineFindings(tuple(_faults(line, version)), tuple(_notes(line, version)))


def _faults(line: ServeLine, version: Version) -> Iterator[str]:
    if line.config is None:
        yield _NOT_JSON.format(line.unquoted or _example(line.mentioned or _EXAMPLE_METHOD))

    if line.dropped:
        yield _DROPPED.format(", ".join(line.dropped))

    yield from obsolete(line, version)
    if line.keys.get(_SCHEDULE) is not None:
        yield from _schedule_faults(line, version)
    if line.keys.get(_SAMPLING) == "probabilistic":
        for key, where in _NO_SAMPLED_DRAFTS.items():
            if line.is_on(key):
                yield (
                    f"{key} with {_SAMPLING} probabilistic keeps vLLM from starting{where}; "
                    "remove one of the two"
                )

    if line.keys.get("rejection_sample_method") == SYNTHETIC:
        yield _SYNTHETIC

    if _has_stages(line) and is_mtp(line.method) and version < _STAGES_FROM:
        yield _NO_STAGES.format(line.method)

    yield from _unread_metrics(line)


def _unread_metrics(line: ServeLine) -> Iterator[str]:
    """Why nobody could read vLLM's metrics."""
    if "--disable-log-stats" in line.flags:
        yield _NO_METRICS
    if "--uds" in line.flags:
        yield _NO_PORT


def _has_stages(line: ServeLine) -> bool:
    """Whether the line asks for several pipeline stages."""
    return any(line.flags.get(flag, "1") != "1" for flag in _PIPELINE)


def _example(method: str) -> str:
    """What ``--speculative-config`` may look like with a method."""
    options: dict[str, str | int] = {"method": method}
    if needs_a_draft(method):
        options["model"] = "…"
    return json.dumps(options | {"num_speculative_tokens": 3}, ensure_ascii=False)


def _schedule_faults(line: ServeLine, version: Version) -> Iterator[str]:
    """Why the number of draft tokens does not follow the load, or what happens if it does."""
    method = line.method
    drops = version >= _DROPS_SCHEDULES_FROM and not follows_a_schedule(method, runner_v2=None)
    if method == "custom_class":
        yield f"{_SCHEDULE} has no effect with method {method}; remove it"
    elif method is not None and drops:
        yield f"model runner V1 ignores {_SCHEDULE} with method {method}; remove it"
    elif method in _ENDED_BY_A_SCHEDULE:
        yield (
            f"with method {method}, {_SCHEDULE} ends the engine (AssertionError) when it changes "
            "the number of draft tokens; remove it"
        )

    if any(line.flags.get(flag, "1") != "1" for flag in _DATA_PARALLEL):
        yield f"{_SCHEDULE} has no effect with data parallelism; remove one of the two"


def _notes(line: ServeLine, version: Version) -> Iterator[str]:
    if version[:2] > NEWEST:
        yield (
            f"this check knows vLLM up to {shown(NEWEST)}, and does not find what later versions "
            "removed"
        )

    has_file = _CONFIG_FILE in line.flags
    if has_file:
        yield _FILE_NOT_READ

    if line.config == {}:
        sets_old_flags = any(flag.startswith("--speculative-") for flag in line.flags)
        if not has_file and not sets_old_flags:
            yield _OFF
        return

    if rejects_parameters(shown(version)):
        yield f"vLLM rejects requests with {' or '.join(REJECTED)} (status 400) while it speculates"

    if _has_stages(line) and is_mtp(line.method) and version >= _STAGES_FROM:
        yield _STAGES.format(line.method)

    if any(flag in line.flags for flag in _THINKING) and version >= _THINKS_FROM:
        yield _NO_BUDGET

    if _reaches_none(line.keys.get(_SCHEDULE)):
        yield _FLAPS
    yield from _graph_notes(line)

    lost = given_up(line.method, shown(version))
    if lost:
        yield (
            f"with method {line.method}, vLLM does not use {' and '.join(lost)}, which it uses by "
            "default without speculation"
        )
    yield from _sampling_notes(line, version)


def _reaches_none(schedule: object) -> bool:
    """Whether vLLM drafts nothing at some loads; entries are [first, last, tokens]."""
    entries = schedule.values() if isinstance(schedule, dict) else schedule
    if not isinstance(entries, Iterable):
        return False
    return any((entry[-1:] if isinstance(entry, list) else [entry]) == [0] for entry in entries)


def _graph_notes(line: ServeLine) -> Iterator[str]:
    """Where CUDA graphs are captured for fewer requests than may run."""
    size = _whole(line.flags.get("--max-cudagraph-capture-size"))
    drafted = _whole(line.keys.get("num_speculative_tokens"))
    if not size or not drafted:
        return

    tokens = 1 + drafted
    requests = _whole(line.flags.get("--max-num-seqs"))
    if requests is None or requests * tokens > size:
        yield _GRAPHS.format(size, tokens, size // tokens, tokens)


def _whole(value: object) -> int | None:
    """A number that is given as one or as text; None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else None


def _sampling_notes(line: ServeLine, version: Version) -> Iterator[str]:
    """How the draft chooses its tokens, where vLLM lets one choose and sampling may gain."""
    in_parallel = line.is_on("parallel_drafting")
    can_sample = can_sample_drafts(line.method, in_parallel=in_parallel, architectures=())
    if not can_sample or not offers_sampled_drafts(shown(version)):
        return

    is_sampled = line.keys.get(_SAMPLING, "greedy") == "probabilistic"
    yield _PROBABILISTIC if is_sampled else _GREEDY
