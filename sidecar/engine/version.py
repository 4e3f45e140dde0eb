"""Which vLLM versions a page may come from, by its metric families."""

from enum import StrEnum

from sidecar.engine import names
from sidecar.engine.exposition import Layout


class VersionFamily(StrEnum):
    """Ranges of versions with the same metric families; the value is for display."""

    V0 = "V0 engine, 0.10.2 or earlier"
    V1_EARLY = "V1 engine, 0.7.3 to 0.8.4"
    V1_08 = "V1 engine, 0.8.5 to 0.9.1"
    V1_09 = "V1 engine, 0.9.2 to 0.10.1"
    V1_10 = "V1 engine, 0.10.2"
    V1_11 = "V1 engine, 0.11 (or 0.12 with hidden metrics shown)"
    V1_12 = "V1 engine, 0.12 or 0.13"
    V1_14 = "V1 engine, 0.14 or 0.15"
    V1_16 = "V1 engine, 0.16 to 0.19"
    V1_20 = "V1 engine, 0.20 to 0.29"
    V1_32 = "V1 engine, 0.30 or later"
    UNKNOWN = "unknown: a filtered or unfamiliar page"


_PREFIX_CACHE = frozenset({"prefix_cache_queries", "gpu_prefix_cache_queries"})

# (versions, has one of, lacks all of), newest first; the first row that matches applies. From the recorded pages of
# these versions (tests/data/pages).
_MARKS: tuple[tuple[VersionFamily, frozenset[str], frozenset[str]], ...] = (
    (VersionFamily.V1_32, frozenset({"request_num_preemptions"}), frozenset()),
    (VersionFamily.V1_20, frozenset({"num_requests_waiting_by_reason"}), frozenset()),
    (VersionFamily.V1_16, frozenset({"prompt_tokens_by_source"}), frozenset()),
    (VersionFamily.V1_14, frozenset({"request_prefill_kv_computed_tokens"}), frozenset()),
    # V1 has counted prefix-cache queries from its first version on; V0 never did.
    (VersionFamily.V0, frozenset({"request_success"}), _PREFIX_CACHE),
    (
        VersionFamily.V1_12,
        frozenset({"request_time_per_output_token_seconds"}),
        frozenset({"time_per_output_token_seconds"}),
    ),
    (VersionFamily.V1_11, frozenset({"request_time_per_output_token_seconds"}), frozenset()),
    (VersionFamily.V1_10, frozenset({"inter_token_latency_seconds"}), frozenset()),
    (VersionFamily.V1_09, frozenset({"kv_cache_usage_perc"}), frozenset()),
    (VersionFamily.V1_08, frozenset({"spec_decode_num_drafts", "num_preemptions"}), frozenset()),
    (VersionFamily.V1_EARLY, _PREFIX_CACHE, frozenset()),
)


def version_family(layout: Layout) -> VersionFamily:
    """The range of versions whose families the page has; unknown for a filtered page."""
    families = {names.split(name)[1].removesuffix("_total") for name in layout.families}
    if "request_success" not in families:
        return VersionFamily.UNKNOWN
    return next(
        (version for version, has, lacks in _MARKS if families & has and not families & lacks),
        VersionFamily.UNKNOWN,
    )
