"""What the plug-in's state means, why a model has no split by temperature, and what to do."""

from typing import Final

from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginReport, PluginState
from sidecar.requests.messages import READ_VERSIONS

_DOCTOR: Final = "To find out why, run `python -m specdec_doctor` in vLLM's container."
_NO_SPLIT: Final = {
    NoSplitReason.REFUSED: "The plug-in does not observe engine {engine} of vLLM {vllm}: {reason}.",
    NoSplitReason.CHECKING: (
        "The split by temperature begins once a step with drafts has shown that engine {engine}'s"
        " scheduler calls vLLM's own methods: {reason}."
    ),
    NoSplitReason.DISABLED: (
        "The plug-in failed on engine {engine} and disabled itself, so its model has no split by"
        " temperature: {reason}. vLLM is not affected; it loads the plug-in again when it restarts."
    ),
    NoSplitReason.RESTARTED_WITHOUT: (
        "vLLM has restarted, and since then no plug-in observes engine {engine}, so its model"
        f" has no split by temperature. {_DOCTOR}"
    ),
    NoSplitReason.CONTRADICTS_ITSELF: (
        "There is no split by temperature: the plug-in of engine {engine} contradicts itself, which"
        " a restart of vLLM ends. Check what else writes to the sidecar's socket."
    ),
    NoSplitReason.COUNTS_OTHERWISE: (
        "There is no split by temperature: on engine {engine} the plug-in counted {share}"
        f" (drafts, draft tokens or accepted tokens). {_DOCTOR}"
    ),
    NoSplitReason.SEVERAL_CLAIM: (
        "There is no split by temperature: several plug-ins claim to be engine {engine} with vLLM's"
        " own numbers. Only one vLLM, with one plug-in per engine, may use this sidecar's socket."
        " Remove the others, then restart the sidecar."
    ),
    NoSplitReason.NOT_COMPARED: (
        "The split by temperature begins once vLLM's counters confirm what the plug-in reports of"
        " engine {engine}."
    ),
    NoSplitReason.NOT_REPORTED: (
        "The split by temperature begins once the plug-in of engine {engine} has connected, which"
        " it does with the engine's next request."
    ),
}
_READ: Final = " and ".join(map(str, READ_VERSIONS))
_CANNOT_LISTEN: Final = (
    "The sidecar cannot listen for the plug-in ({}), so there is no split by temperature. Set"
    " plugin.socket (SPECDEC_PLUGIN__SOCKET) to a path that the sidecar can write and no other"
    " sidecar uses."
)
_GONE: Final = (
    "The plug-in is no longer connected: vLLM has stopped or restarted without it, or it cannot"
    " reach the sidecar's socket."
)
_NEVER_CONNECTED: Final = (
    "No plug-in has connected yet, so there is no split by temperature. If vLLM has loaded the"
    " plug-in, it will connect with the next request. If it refused this vLLM or failed, vLLM's log"
    " has a line with `specdec`. If vLLM has not loaded it: `specdec-sidecar plugin DIR` writes it,"
    " and `PYTHONPATH=DIR vllm serve MODEL` loads it."
)
_OTHER_FORMAT: Final = (
    "The plug-in uses message format {}, but this sidecar reads formats {}. Rewrite the plug-in with"
    " this sidecar (`specdec-sidecar plugin DIR`) and restart vLLM."
)


def plugin_sentence(report: PluginReport) -> str:
    """What the state of the plug-in means."""
    state, observed, expected = report.state, report.observed, report.expected
    match state:
        case PluginState.OTHER_FORMAT:
            sentence = _OTHER_FORMAT.format(report.unreadable_format, _READ)
        case PluginState.NOT_CONNECTED if report.problem:
            sentence = _CANNOT_LISTEN.format(report.problem)
        case PluginState.NOT_CONNECTED:
            sentence = _GONE if report.heard else _NEVER_CONNECTED
        case PluginState.REFUSED | PluginState.DISABLED | PluginState.CHECKING:
            failed = next(engine for engine in report.engines if engine.state is state)
            no_split = NoSplit(
                NoSplitReason(state), failed.engine, failed.reason, failed.vllm_version
            )
            sentence = no_split_sentence(no_split, report)
        case _ if not observed and expected:
            sentence = (
                "The plug-in's engines are not in vLLM's metrics; each vLLM needs its own sidecar."
            )
        case PluginState.IDLE:
            sentence = "The plug-in is connected; vLLM has not drafted for any request yet."
        case _ if observed < expected:
            engines = f"{observed} of {expected} engines"
            sentence = (
                f"The plug-in observes {engines}: the split by temperature covers only these."
            )
        case _:
            sentence = f"The plug-in observes {'every' if expected > 1 else 'the'} engine."
    return sentence


def no_split_sentence(no_split: NoSplit, plugin: PluginReport) -> str:
    """Why a model has no split by temperature."""
    if no_split.code is NoSplitReason.NOT_CONNECTED:
        return plugin_sentence(plugin)
    ratio = no_split.ratio
    is_near = ratio is None or abs(ratio - 1) < 0.005  # then the plug-in has been silent
    share = "other numbers than vLLM" if is_near else f"{ratio:.1%} of what vLLM counted"
    return _NO_SPLIT[no_split.code].format(
        engine=no_split.engine, reason=no_split.reason, vllm=no_split.vllm_version, share=share
    )
