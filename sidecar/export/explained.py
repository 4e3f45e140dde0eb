"""What the label values mean that name a loss or a limitation, and what to do; ``docs/metrics.md`` is made of it."""

from dataclasses import dataclass
from typing import Final

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.limitation import Limitation
from sidecar.requests.traces.options import TracesOptions

_PROXY: Final = ("proxy",)
_MIDDLEWARE: Final = ("middleware",)
_TRACES: Final = ("traces",)
_BYTES: Final = _PROXY + _MIDDLEWARE  # these two read the requests' own bytes
_ALL: Final = _BYTES + _TRACES
_MOST: Final = f"{AttributionOptions().most_requests:,}"
_EXPORT: Final = TracesOptions()
_ONE_VERSION: Final = (
    "The file in vLLM and the sidecar must be of one version: write it anew (`specdec-sidecar middleware --write`)."
)
_STARVED: Final = "Raise or remove the sidecar's CPU limit."
_OBSERVED: Final = (
    "Raise `proxy.observe_bytes` or, with the middleware, `SPECDEC_MIDDLEWARE__MAX_BODY_BYTES` (bytes, in vLLM's "
    "environment). Decoding takes about a millisecond a MiB."
)


@dataclass(frozen=True, slots=True)
class Drop:
    """One reason of ``specdec_request_events_dropped_total``, with the sources that count it in this meaning."""

    reason: str
    sources: tuple[str, ...]
    meaning: str
    cure: str


DROPS: Final = (
    Drop(
        "request_too_large",
        _BYTES,
        "A request's body was larger than is looked into (1 MiB). It was served; its temperature is `unknown`. Mostly "
        "images in the prompt.",
        _OBSERVED,
    ),
    Drop(
        "request_encoded",
        _BYTES,
        "A request's body is compressed, so its temperature is `unknown`.",
        "Let clients send it as it is, without `Content-Encoding`.",
    ),
    Drop(
        "request_malformed",
        _BYTES,
        "A request's body is not what its endpoint takes. vLLM mostly refuses it too.",
        "Look for status 400 in vLLM's log; it is the client that is to be mended.",
    ),
    Drop(
        "reply_too_large",
        _BYTES,
        "An answer, or one event of a stream, was larger than is looked into (1 MiB): without its token count it is "
        "not attributed. Mostly `logprobs`.",
        _OBSERVED,
    ),
    Drop(
        "reply_encoded",
        _BYTES,
        "An answer is compressed, so it has no token count and is not attributed.",
        "Compress in front of the sidecar, not between it and vLLM; take compressing middleware out of vLLM.",
    ),
    Drop(
        "reply_malformed",
        _BYTES,
        "An answer without an error status is not the JSON of its endpoint.",
        "See what answers at `vllm_url`. If it is vLLM, report it with vLLM's version.",
    ),
    Drop(
        "acceptance_malformed",
        _BYTES,
        "vLLM's numbers in an answer contradict themselves; they are not used, the request is inferred.",
        "Report it with vLLM's version.",
    ),
    Drop(
        "queue_full",
        _MIDDLEWARE,
        "The sidecar was away, or too slow, for longer than the queue in vLLM lasts.",
        "See that it runs and that both containers mount the folder of `middleware.socket`. " + _STARVED,
    ),
    Drop("internal", _MIDDLEWARE, "A fault of the middleware's own; the request was served.", _ONE_VERSION),
    Drop(
        "sender_gone",
        _MIDDLEWARE,
        "Requests that had begun when their vLLM process went away; they count as aborted.",
        "Find out why vLLM restarts (`specdec_vllm_restarts_total`).",
    ),
    Drop("contradictory", _MIDDLEWARE, "An event that can't follow those before it, or be true.", _ONE_VERSION),
    Drop("too_many_open", _MIDDLEWARE, "One process has begun more requests than can be open.", _ONE_VERSION),
    Drop(
        "too_many_senders",
        _MIDDLEWARE,
        "More processes connect to the socket than are taken.",
        "Give each vLLM a sidecar and a socket of its own.",
    ),
    Drop("malformed", _MIDDLEWARE, "What came over the socket is no packet of the middleware's.", _ONE_VERSION),
    Drop("other", _MIDDLEWARE, "The middleware gives a reason that this sidecar does not know.", _ONE_VERSION),
    Drop(
        "inconsistent",
        _TRACES,
        "A span whose times, counts or ids can't be true.",
        "Mostly clocks: synchronize those of vLLM's and the sidecar's machine.",
    ),
    Drop(
        "malformed",
        _TRACES,
        "An export that is not OTLP.",
        "Send OTLP over HTTP: `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf`.",
    ),
    Drop(
        "unsupported",
        _TRACES,
        "An export that is neither protobuf nor JSON, or compressed by something else than gzip.",
        "Set the exporter to `http/protobuf`, and its compression to gzip or none.",
    ),
    Drop(
        "too_large",
        _TRACES,
        f"An export of more than `traces.body_bytes`, or of more than {_EXPORT.max_spans:,} spans.",
        "Lower the Collector's `send_batch_max_size`, or raise `traces.body_bytes`.",
    ),
    Drop(
        "timeout",
        _TRACES,
        f"An export that did not arrive whole within {_EXPORT.body_seconds:g} s, or broke off.",
        "Look at the network between the sender and the sidecar. " + _STARVED,
    ),
    Drop(
        "overload",
        _TRACES,
        "More exports at one time than `traces.max_inflight`; senders are told to come again.",
        "Raise `traces.max_inflight`, or let the Collector send fewer, larger batches. " + _STARVED,
    ),
    Drop(
        "no_page_yet",
        _ALL,
        f"vLLM's page could not be read yet, and more than {_MOST} events waited for it.",
        "Make `vllm_url` reachable: `specdec-sidecar check` says what is in the way.",
    ),
    Drop(
        "in_flight",
        _ALL,
        f"A request did not end within `history`, or was the oldest of more than {_MOST} in flight: it no longer "
        "counts as running, so the inference is less exact.",
        "Raise `history` above the longest request's time.",
    ),
    Drop(
        "pending",
        _ALL,
        f"More than {_MOST} ended requests waited for what the counters tell; the oldest got no numbers.",
        "Let vLLM report per request (`--per-request-spec-decode-metrics summary`): such requests keep their numbers.",
    ),
)

LIMITATION_CURES: Final = {
    Limitation.V0_COUNTERS: "vLLM 0.11 or later, or `VLLM_USE_V1=1`.",
    Limitation.NO_SPECULATION: "`--speculative-config`, and no `--disable-log-stats`.",
    Limitation.DIFFUSION: "Nothing; it needs no watching.",
    Limitation.NO_REQUEST_TPOT: "vLLM 0.11 or later.",
    Limitation.NO_POSITIONS: "A newer vLLM; every V1 engine seen so far tells it.",
    Limitation.NO_KV_CACHE_CAPACITY: "A newer vLLM; every one from 0.10 on seen so far tells it.",
    Limitation.NO_KV_CACHE_USAGE: "A newer vLLM; every one seen so far tells it.",
    Limitation.SEVERAL_PROCESSES: "`--api-server-count 1`, where one API server is enough.",
}
