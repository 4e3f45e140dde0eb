"""What the plug-in's state means, why a model has no split by temperature, and what to do."""

from typing import Final

from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginReport, PluginState
from sidecar.requests.messages import VERSION

# Both paths are the same setting: of the sidecar, and of the plug-in in vLLM.
_A_SOCKET_EACH: Final = (
    "Give each vLLM a sidecar and a socket of its own (SPECDEC_PLUGIN__SOCKET, the same path for"
    " both)."
)
# What it would add, wherever there is none.
_LACKS: Final = "there is no split by temperature and no measured speedup"
_DOCTOR: Final = "To find out why, run `python -m specdec_doctor` in vLLM's container."
_NO_SPLIT: Final = {
    NoSplitReason.REFUSED: "The plug-in does not observe engine {engine} of vLLM {vllm}: {reason}.",
    NoSplitReason.DISABLED: (
        "The plug-in failed on engine {engine} and disabled itself, so its model has no split by"
        " temperature: {reason}. vLLM is not affected; it loads the plug-in again when it restarts."
    ),
    NoSplitReason.RESTARTED_WITHOUT: (
        "vLLM has restarted, and since then no plug-in observes engine {engine}, so its model"
        f" has no split by temperature. {_DOCTOR}"
    ),
    NoSplitReason.CONTRADICTS_ITSELF: (
        "There is no split by temperature: a number of the plug-in of engine {engine} has fallen,"
        " which a restart of vLLM ends. Check what else writes to the sidecar's socket."
    ),
    NoSplitReason.COUNTS_OTHERWISE: (
        "There is no split by temperature: on engine {engine} the plug-in counted {share}"
        " (drafts, draft tokens or accepted tokens) in the last five minutes.{own} The split comes"
        f" back once they agree again. {_DOCTOR}"
    ),
    NoSplitReason.SILENT: (
        "There is no split by temperature: engine {engine} has drafted on for more than half a"
        " minute, and its plug-in has reported nothing of it.{own} With its next report the split"
        f" is back, and complete. {_DOCTOR}"
    ),
    NoSplitReason.SEVERAL_SENDERS: (
        "There is no split by temperature: several plug-ins are connected as engine {engine}, and"
        f" nothing tells which of them is this vLLM's. {_A_SOCKET_EACH} The split is back once only"
        " one is connected."
    ),
    NoSplitReason.FIRST_REPORT: (
        "The split by temperature begins with the next report of engine {engine}'s plug-in, which"
        " is connected."
    ),
    NoSplitReason.NOT_COMPARED: (
        "No id tells whether the plug-in that is connected as engine {engine} is this vLLM's, so"
        " the split by temperature begins once it has counted as much as vLLM has over a hundred"
        " drafts (or generated tokens, where nothing is drafted)."
    ),
    NoSplitReason.NOT_REPORTED: (
        "There is no split by temperature: engine {engine} has drafted, and no plug-in of it is"
        " connected. Under traffic it tries to connect once a second. If it does not, that engine"
        " has not loaded it, sends to another socket, or runs on another node, which this socket"
        f" does not reach. {_DOCTOR}"
    ),
}
_OWN: Final = (
    " Its scheduler's class has a method of its own ({}), which may not call vLLM's: then the"
    " plug-in does not see what vLLM counts."
)
_IDLE: Final = (
    "The plug-in is connected and reports requests; vLLM has drafted for none of them yet."
)
_NO_SPECULATION: Final = (
    "The plug-in is connected and reports requests; this vLLM does not speculate."
)
_CANNOT_LISTEN: Final = (
    f"The sidecar cannot listen for the plug-in ({{}}), so {_LACKS}. Set plugin.socket"
    " (SPECDEC_PLUGIN__SOCKET) to a path that the sidecar can write and no other sidecar uses."
)
_GONE: Final = (
    "The plug-in is no longer connected: vLLM has restarted without it, or it cannot reach the"
    " sidecar's socket."
)
_GONE_AS_WELL: Final = "The plug-in is no longer connected either."
_NONE_YET: Final = "No plug-in has connected yet."
_NEVER_CONNECTED: Final = (
    f"No plug-in has connected yet, so {_LACKS}. If vLLM has loaded the plug-in, it will connect"
    " with the next request. If it failed to load, vLLM's log has a line with `specdec`. If vLLM"
    " has not loaded it: `specdec-sidecar plugin DIR` writes it, and vLLM loads it once it is"
    " restarted with `PYTHONPATH=DIR`."
)
_LOADED: Final = (
    "vLLM has loaded the plug-in, which connects with the next request: then the split by"
    " temperature begins."
)
_LOADED_UNDER_TRAFFIC: Final = (
    f"vLLM has loaded the plug-in and serves requests, but no plug-in has connected, so {_LACKS}."
    " Either it sends to another socket than this sidecar's"
    " (SPECDEC_PLUGIN__SOCKET: the same path for both, in a directory that both share), or it"
    f" failed to load: then vLLM's log has a line with `specdec`. {_DOCTOR}"
)
_NEVER_CONNECTED_UNDER_TRAFFIC: Final = (
    f"No plug-in has connected although vLLM serves requests, so {_LACKS}. {_DOCTOR} Mostly vLLM"
    " has not loaded it: `specdec-sidecar plugin DIR` writes it, and vLLM loads it once it is"
    " restarted with `PYTHONPATH=DIR`."
)
_ELSEWHERE: Final = (
    "The plug-ins that are connected are of another server than vLLM's metrics, or of engines that"
    f" are not in them, so another vLLM sends to this sidecar's socket. {_A_SOCKET_EACH}"
)
_RENAMED: Final = (
    "The plug-in that is connected calls its model {}, and vLLM's metrics call theirs {}. If both"
    " are one vLLM, its metrics have another name than --served-model-name, as its Rust frontend's"
    " had before pull request 45465: upgrade vLLM, or leave --served-model-name out. If they are"
    f" two, the other sends to this sidecar's socket. {_A_SOCKET_EACH}"
)
_REPLICAS: Final = (
    "vLLM's metrics have several engines of the same number ({}), and a plug-in says only the"
    " number, so nobody knows which of them it is in, and there is no split by temperature. Let"
    " each replica have a sidecar, a page and a socket of its own."
)
_HEADLESS: Final = (
    "The plug-in of engine {} is connected all the same. If this is a headless node (`vllm serve"
    " --headless`), vLLM serves no metrics here, and there is nothing to compare the plug-in's"
    " numbers with: a sidecar is of use only beside vLLM's API server."
)
_FORMATS: Final = "The plug-in uses message format {}, but this sidecar reads format {}."
_OLDER_FORMAT: Final = (
    f"{_FORMATS} Rewrite the plug-in with this sidecar (`specdec-sidecar plugin DIR`) and restart"
    " vLLM."
)
_NEWER_FORMAT: Final = (
    f"{_FORMATS} Update the sidecar, or rewrite the plug-in with this one (`specdec-sidecar plugin"
    " DIR`) and restart vLLM."
)
_STILL_CONNECTED: Final = "The plug-in is still connected, so the engine's process exists."


def plugin_sentence(report: PluginReport, *, is_up: bool = True) -> str:
    """What the state of the plug-in means; ``is_up``: whether vLLM answers."""
    if not is_up and report.state in (PluginState.OBSERVING, PluginState.IDLE):
        return _STILL_CONNECTED

    match report.state:
        case PluginState.OTHER_FORMAT:
            sentence = _other_format(report)
        case PluginState.NOT_CONNECTED:
            sentence = _not_connected(report, is_up=is_up)
        case PluginState.ELSEWHERE:
            sentence = _elsewhere(report)
        case PluginState.SEVERAL_SENDERS:
            engines = ", ".join(key.engine for key in report.shared)
            sentence = _NO_SPLIT[NoSplitReason.SEVERAL_SENDERS].format(engine=engines)
        case PluginState.REFUSED | PluginState.DISABLED:
            sentence = _not_observing(report)
        case PluginState.IDLE:
            sentence = _idle(report)
        case PluginState.OBSERVING:
            sentence = _observing(report)

    return sentence


def _idle(report: PluginReport) -> str:
    speculates = any(engine.speculates for engine in report.engines)
    return _IDLE if speculates else _NO_SPECULATION


def _not_observing(report: PluginReport) -> str:
    failed = next(engine for engine in report.engines if engine.state is report.state)
    no_split = NoSplit(
        NoSplitReason(report.state), failed.engine, failed.reason, failed.vllm_version
    )
    return no_split_sentence(no_split, report)


def _elsewhere(report: PluginReport) -> str:
    if report.replicas:
        return _REPLICAS.format(", ".join(key.engine for key in report.replicas))
    if report.renamed:
        return _RENAMED.format(*report.renamed[0])
    return _ELSEWHERE


def _other_format(report: PluginReport) -> str:
    theirs = report.unreadable_format
    sentence = _NEWER_FORMAT if theirs is not None and theirs > VERSION else _OLDER_FORMAT
    return sentence.format(theirs, VERSION)


def _not_connected(report: PluginReport, *, is_up: bool) -> str:
    if report.problem:
        return _CANNOT_LISTEN.format(report.problem)
    if report.heard:
        return _GONE if is_up else _GONE_AS_WELL
    if not is_up:  # it is no matter until vLLM answers
        return _NONE_YET
    if report.is_loaded:
        return _LOADED_UNDER_TRAFFIC if report.has_served else _LOADED
    return _NEVER_CONNECTED_UNDER_TRAFFIC if report.has_served else _NEVER_CONNECTED


_ON_ANOTHER_NODE: Final = (
    "A plug-in on another node, as of a headless vLLM, cannot reach this socket."
)


def _observing(report: PluginReport) -> str:
    if report.observed >= report.expected:
        return f"The plug-in observes {'every' if report.expected > 1 else 'the'} engine."

    engines = f"{report.observed} of {report.expected} engines"
    sentence = f"The plug-in observes {engines}: the split by temperature covers only these."
    if report.unreadable_format is None:
        return f"{sentence} {_ON_ANOTHER_NODE}"
    return f"{sentence} {_other_format(report)}"


def headless_sentence(report: PluginReport) -> str:
    """What it means that plug-ins are connected where vLLM has never served metrics; else ""."""
    if not report.engines:
        return ""
    return _HEADLESS.format(" and ".join(dict.fromkeys(one.engine for one in report.engines)))


def no_split_sentence(no_split: NoSplit, plugin: PluginReport) -> str:
    """Why a model has no split by temperature."""
    if no_split.code is NoSplitReason.NOT_CONNECTED:
        return plugin_sentence(plugin)
    ratio = no_split.ratio
    is_near = ratio is None or abs(ratio - 1) < 0.005
    share = "other numbers than vLLM" if is_near else f"{ratio:.1%} of what vLLM counted"
    own = _OWN.format(" and ".join(no_split.own)) if no_split.own else ""
    return _NO_SPLIT[no_split.code].format(
        engine=no_split.engine,
        reason=no_split.reason,
        vllm=no_split.vllm_version,
        share=share,
        own=own,
    )
